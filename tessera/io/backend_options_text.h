// The part of parse_backend_options that opens no file, for callers that must not (fuzzing).
#pragma once

#include <string_view>

#include "tessera/io/backend_options.h"

namespace tessera::io::detail {

/// JSON object or key=value list; empty text gives the defaults. `source` begins the messages.
Status parse_backend_text(std::string_view text, std::string_view source, BackendOptions* out);

/// Where the options of `text` stand: in the text itself (`path` empty) or in a file. A leading
/// byte order mark and blanks around are dropped.
struct OptionSource {
  std::string_view text;
  std::string path;
};
Status locate_backend_text(std::string_view text, OptionSource* out);

}  // namespace tessera::io::detail
