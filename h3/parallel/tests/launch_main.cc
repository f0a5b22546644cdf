// The launcher alone, without the rest of the command line: run_ranks N program arguments...
#include <cstdio>
#include <cstdlib>

#include "h3/common/error.h"
#include "h3/parallel/launch.h"

int main(int argc, char** argv) {
  h3::parallel::LaunchOptions options;
  options.ranks = argc > 1 ? std::atoi(argv[1]) : 0;
  for (int i = 2; i < argc; ++i) options.command.emplace_back(argv[i]);
  try {
    return h3::parallel::launch(options).exit_code;
  } catch (const h3::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
