// Aligned scratch memory, on huge pages where it is large.
#include <sys/mman.h>

#include <new>

#include "tessera/src/cpu/fast_kernels.h"

namespace tessera::cpu {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

}  // namespace

Scratch::Scratch(size_t bytes)
    : alignment_(bytes >= 2 * kHugePage ? kHugePage : 64),
      data_(::operator new (bytes, std::align_val_t{alignment_})) {
#ifdef MADV_HUGEPAGE
  // Advice only: where the kernel declines, small pages do.
  if (alignment_ == kHugePage) (void)madvise(data_, bytes, MADV_HUGEPAGE);
#endif
}

Scratch::~Scratch() { ::operator delete (data_, std::align_val_t{alignment_}); }

}  // namespace tessera::cpu
