// Names of the fields of a request: what is read, what has no effect here, and what is always
// refused, with the reason.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace h3::request_fields {

using Names = std::vector<std::string>;

inline constexpr std::string_view kSchema = "minimax_h3.request/v1";

extern const Names kTop, kTarget, kCondition;
extern const Names kIgnored;  // geometry of other interfaces; what concerns the file, not the video
extern const Names kAspects;  // of t2va and ref2va

/// A field that no request may have.
struct Rejected {
  const char* name;
  const char* reason;
  bool false_is_absent = false;
};

/// Null if the field is not one of them.
const Rejected* rejected(std::string_view name);

bool contains(const Names& names, std::string_view name);

}  // namespace h3::request_fields
