// Text helpers for messages: everything that came from outside is quoted, shortened and made
// valid UTF-8 before it enters a message, so that messages can always be printed and put into JSON.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::io::detail {

/// Bytes of the well-formed UTF-8 sequence at the start of `text`; 0 if there is none.
size_t utf8_sequence_bytes(std::string_view text);

bool valid_utf8(std::string_view text);

/// Control characters and malformed bytes as escapes; cut after `max_bytes` of input.
std::string printable(std::string_view text, size_t max_bytes = 120);

/// `printable` in single quotes.
std::string in_quotes(std::string_view text, size_t max_bytes = 120);

/// "No such file or directory (errno 2)".
std::string errno_text(int error);

/// "[2, 3, 64]"; long shapes are cut.
std::string shape_text(const std::vector<int64_t>& shape);

/// Shortest decimal that reads back as the same double.
std::string number_text(double value);

/// Without leading and trailing blanks, tabs and line ends (CR and LF).
std::string_view trimmed(std::string_view text);

/// Levenshtein distance in bytes, letters compared without case.
size_t edit_distance(std::string_view a, std::string_view b);

}  // namespace tessera::io::detail
