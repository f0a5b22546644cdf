// Options of the published backend (`--attention-backend-config`), parsed strictly in one place.
//
// Accepted text: JSON object, `@file`, a path to a file, or `key=value,key=value`. Keys and
// defaults are those of SGLang 0.5.23's subblock_sparse_attn.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tessera/router.h"
#include "tessera/status.h"

namespace tessera::io {

struct BackendOptions {
  double sparsity = 0.75;             // [0, 1); 0 turns sparsity off
  int n_k = 4;                        // 1, 2, 4 or 8
  int n_q = 4;                        // 1, 2, 4 or 8
  int64_t skip_first_steps = 10;      // >= 0
  int64_t skip_first_layers = 0;      // >= 0
  int64_t min_seq_len = 4096;         // >= 0
  std::string compute_mode = "bf16";  // "bf16"; "sage_fp8" is a known name that nothing here runs
};

/// Text that begins with '@' or names an existing file (or looks like a path: ends with ".json", or
/// holds a '/' but no '=') is read from that file, where a byte order mark and CRLF line ends are
/// accepted; other text is parsed itself. An integer is accepted for `sparsity`; 4.0 is no integer.
///
/// Unknown keys (with the nearest known key), wrong types (booleans, strings and fractions are
/// never converted), values out of range, keys given twice, damaged JSON (with position, the text
/// received and a hint) and unreadable files are kInvalidArgument; compute_mode "sage_fp8" is
/// kUnsupported. Empty text and `{}` give the defaults. `out` is only changed on success.
Status parse_backend_options(std::string_view text, BackendOptions* out);

/// One line: "sparsity=0.75 n_k=4 n_q=4 skip_first_steps=10 ...".
std::string describe(const BackendOptions& options);

/// The router settings these options stand for.
RouterConfig router_config(const BackendOptions& options);

}  // namespace tessera::io
