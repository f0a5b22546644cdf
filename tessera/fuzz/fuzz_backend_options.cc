// Any text as backend options: refused with a message, or a legal set that reads back the same from
// its own description. Opens no file.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "tessera/io/backend_options.h"
#include "tessera/io/backend_options_text.h"
#include "tessera/io/text.h"

namespace {

using tessera::io::BackendOptions;

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "broken: %s\n", what);
  std::abort();
}

bool cells(int n) { return n == 1 || n == 2 || n == 4 || n == 8; }

void check(const tessera::Status& s, const BackendOptions& o) {
  if (!s.ok()) {
    require(!s.message().empty(), "a refusal says why");
    require(tessera::io::detail::valid_utf8(s.message()), "a message is UTF-8");
    require(s.message().size() < 4096, "a message is short");
    require(s.code() == tessera::StatusCode::kInvalidArgument ||
                s.code() == tessera::StatusCode::kUnsupported,
            "damaged text is the caller's fault");
    require(describe(o) == describe(BackendOptions{}), "a refusal changes nothing");
    return;
  }
  require(o.sparsity >= 0 && o.sparsity < 1, "sparsity is in [0, 1)");
  require(cells(o.n_k) && cells(o.n_q), "cells are 1, 2, 4 or 8");
  require(o.skip_first_steps >= 0 && o.skip_first_layers >= 0 && o.min_seq_len >= 0,
          "counts are not negative");
  require(o.compute_mode == "bf16", "compute_mode is bf16");
  std::string pairs = describe(o);
  for (char& c : pairs) c = c == ' ' ? ',' : c;
  BackendOptions again;
  require(tessera::io::detail::parse_backend_text(pairs, "description", &again).ok(),
          "the description is accepted");
  require(describe(again) == describe(o), "the description reads back the same");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  BackendOptions options;
  check(tessera::io::detail::parse_backend_text(text, "fuzz", &options), options);

  // The public entry too, except where it would open a file.
  tessera::io::detail::OptionSource source;
  if (!tessera::io::detail::locate_backend_text(text, &source).ok() || !source.path.empty()) {
    return 0;
  }
  BackendOptions published;
  check(parse_backend_options(text, &published), published);
  return 0;
}
