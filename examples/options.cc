// Parses the options of the published backend and prints the accepted set, or the reason why not:
//   build/examples/options 'sparsity=0.8,n_k=2'
#include <cstdio>

#include "tessera/io/backend_options.h"

int main(int argc, char** argv) {
  tessera::io::BackendOptions options;
  const char* text = argc > 1 ? argv[1] : "";
  if (tessera::Status s = tessera::io::parse_backend_options(text, &options); !s.ok()) {
    std::fprintf(stderr, "options: %s\n", s.message().c_str());
    return 2;
  }
  std::printf("%s\n", tessera::io::describe(options).c_str());
  const int32_t kept = tessera::blocks_for_sparsity(options.sparsity, 590, 8);
  std::printf("keeps %d of 590 key blocks\n", kept);
  return 0;
}
