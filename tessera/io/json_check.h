// What every JSON reader here needs around the parser: a check for the byte it treats as the end of
// the text, and a readable, bounded account of a syntax error.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tessera::io::detail {

/// Position (from 1) of the first NUL byte, 0 if there is none. The JSON parser takes NUL for the
/// end of its input, so text behind it would be ignored in silence.
size_t nul_position(std::string_view text);

/// The parser's account of a syntax error without its internal prefix, bounded and printable.
std::string syntax_error_text(std::string_view parser_message);

}  // namespace tessera::io::detail
