// Apart from the tests: where the compiler could see both sides, it would complain that memory of
// operator new goes to free().
#include "h3/attention/tests/allocations.h"

#include <cstdlib>
#include <new>

namespace {
thread_local int64_t g_allocations = 0;
}  // namespace

void* operator new(std::size_t size) {
  ++g_allocations;
  if (void* p = std::malloc(size)) return p;
  throw std::bad_alloc();
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }

namespace h3::testing {

int64_t allocations() { return g_allocations; }

}  // namespace h3::testing
