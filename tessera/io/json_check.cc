// Guards around the JSON parser.
#include "tessera/io/json_check.h"

#include "tessera/io/text.h"

namespace tessera::io::detail {

size_t nul_position(std::string_view text) {
  const size_t at = text.find('\0');
  return at == std::string_view::npos ? 0 : at + 1;
}

std::string syntax_error_text(std::string_view parser_message) {
  // "[json.exception.parse_error.101] parse error at line 1, column 2: syntax error while ..."
  const size_t bracket = parser_message.find("] ");
  if (bracket != std::string_view::npos) parser_message.remove_prefix(bracket + 2);
  const size_t colon = parser_message.find(": ");
  if (parser_message.starts_with("parse error at ") && colon != std::string_view::npos) {
    parser_message.remove_prefix(colon + 2);
  }
  return printable(parser_message, 200);
}

}  // namespace tessera::io::detail
