// Quoting, UTF-8 checks and small number formatting for messages.
#include "tessera/io/text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <system_error>

namespace tessera::io::detail {
namespace {

bool continuation(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

std::string hex_escape(unsigned char byte) {
  std::array<char, 8> buffer{};
  std::snprintf(buffer.data(), buffer.size(), "\\x%02x", byte);
  return buffer.data();
}

}  // namespace

size_t utf8_sequence_bytes(std::string_view text) {
  if (text.empty()) return 0;
  const auto first = static_cast<unsigned char>(text[0]);
  if (first < 0x80) return 1;
  size_t length = 0;
  uint32_t code = 0;
  if (first >= 0xc2 && first <= 0xdf) {
    length = 2;
    code = first & 0x1f;
  } else if (first >= 0xe0 && first <= 0xef) {
    length = 3;
    code = first & 0x0f;
  } else if (first >= 0xf0 && first <= 0xf4) {
    length = 4;
    code = first & 0x07;
  } else {
    return 0;
  }
  if (text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if (!continuation(text[i])) return 0;
    code = code << 6 | (static_cast<unsigned char>(text[i]) & 0x3f);
  }
  // Overlong forms, surrogates and values beyond Unicode are malformed.
  if (length == 3 && (code < 0x800 || (code >= 0xd800 && code <= 0xdfff))) return 0;
  if (length == 4 && (code < 0x10000 || code > 0x10ffff)) return 0;
  return length;
}

bool valid_utf8(std::string_view text) {
  while (!text.empty()) {
    const size_t n = utf8_sequence_bytes(text);
    if (n == 0) return false;
    text.remove_prefix(n);
  }
  return true;
}

std::string printable(std::string_view text, size_t max_bytes) {
  std::string out;
  size_t at = 0;
  while (at < text.size()) {
    const std::string_view rest = text.substr(at);
    const size_t n = std::max<size_t>(1, utf8_sequence_bytes(rest));
    if (at + n > max_bytes) {
      out += "... (" + std::to_string(text.size()) + " bytes)";
      break;
    }
    const auto byte = static_cast<unsigned char>(rest[0]);
    if (byte == '\n') {
      out += "\\n";
    } else if (byte == '\r') {
      out += "\\r";
    } else if (byte == '\t') {
      out += "\\t";
    } else if (byte < 0x20 || byte == 0x7f || utf8_sequence_bytes(rest) == 0) {
      out += hex_escape(byte);
    } else {
      out.append(rest.substr(0, n));
    }
    at += n;
  }
  return out;
}

std::string in_quotes(std::string_view text, size_t max_bytes) {
  std::string out = "'";
  out += printable(text, max_bytes);
  return out += '\'';
}

std::string errno_text(int error) {
  return std::generic_category().message(error) + " (errno " + std::to_string(error) + ")";
}

std::string shape_text(const std::vector<int64_t>& shape) {
  constexpr size_t kShown = 8;
  std::string out = "[";
  for (size_t i = 0; i < shape.size() && i < kShown; ++i) {
    if (i > 0) out += ", ";
    out += std::to_string(shape[i]);
  }
  if (shape.size() > kShown) out += ", ... (rank " + std::to_string(shape.size()) + ")";
  return out + "]";
}

std::string number_text(double value) {
  std::array<char, 64> buffer{};
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value).ptr;
  return {buffer.data(), end};
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r\n";
  const size_t first = text.find_first_not_of(kBlank);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlank) - first + 1);
}

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substitute = diagonal + (lower(a[i - 1]) == lower(b[j - 1]) ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitute});
    }
  }
  return row[b.size()];
}

}  // namespace tessera::io::detail
