#include "h3/attention/devices.h"

#include <fmt/format.h>

#include <charconv>

#include "h3/common/error.h"
#include "tessera/io/text.h"

namespace h3 {

Platform cpu_platform() { return {}; }

Platform cuda_platform(int major, int minor, bool cuda_kernels) {
  return {true, {major, minor}, cuda_kernels};
}

std::string to_text(const Platform& platform) {
  if (!platform.cuda) return "cpu";
  return fmt::format("capability {}.{}", platform.capability.major, platform.capability.minor);
}

Capability capability_from_text(std::string_view text) {
  const std::string_view word = tessera::io::detail::trimmed(text);
  const char* const end = word.data() + word.size();
  Capability c{-1, -1};
  const auto [dot, first] = std::from_chars(word.data(), end, c.major);
  if (first == std::errc() && dot != end && *dot == '.') {
    const auto [last, second] = std::from_chars(dot + 1, end, c.minor);
    if (second == std::errc() && last == end && c.major > 0 && c.minor >= 0 && c.minor <= 9) {
      return c;
    }
  }
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("compute capability {} is no MAJOR.MINOR pair",
                          tessera::io::detail::in_quotes(text, 40)),
              "write it as 9.0");
}

}  // namespace h3
