#include "h3/attention/layers.h"

#include <algorithm>
#include <charconv>

namespace h3 {
namespace {

struct StackPrefix {
  std::string_view prefix;
  LayerStack stack;
};

// Names of the published checkpoint and of diffusers.
constexpr StackPrefix kPrefixes[] = {
    {"blocks.", LayerStack::kDenoise},
    {"transformer_blocks.", LayerStack::kDenoise},
    {"token_refiner.blocks.", LayerStack::kRefiner},
    {"token_refiner.refiner_blocks.", LayerStack::kRefiner},
};

bool is_digit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

std::string_view to_text(AttentionRole role) {
  return role == AttentionRole::kSelf ? "self" : "cross";
}

std::optional<StackPosition> position_from_name(std::string_view module_name) {
  for (const StackPrefix& p : kPrefixes) {
    if (!module_name.starts_with(p.prefix)) continue;
    const std::string_view rest = module_name.substr(p.prefix.size());
    // from_chars would take a minus sign.
    if (rest.empty() || !is_digit(rest[0])) return {};
    StackPosition position{p.stack, 0};
    const char* const end = rest.data() + rest.size();
    const auto [at, error] = std::from_chars(rest.data(), end, position.index);
    if (error != std::errc() || at == end || *at != '.') return {};
    return position;
  }
  return {};
}

std::string parent_component(std::string_view component) {
  const size_t underscore = component.rfind('_');
  if (underscore == std::string_view::npos || underscore == 0) return {};
  const std::string_view number = component.substr(underscore + 1);
  if (number.empty() || !std::all_of(number.begin(), number.end(), is_digit)) return {};
  return std::string(component.substr(0, underscore));
}

}  // namespace h3
