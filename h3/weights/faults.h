// Everything that is wrong with an input, told at once: a user mends a file in one round, not ten.
//
//   Faults faults("model/transformer");
//   faults.add("hidden_size is 0; 1 to 1048576 is accepted");
//   faults.throw_if_any("download the folder again");
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace h3::weights {

/// Longest list of names of one kind that is printed; the rest is counted.
inline constexpr size_t kListedNames = 20;

/// "a, b, c and 4 more".
std::string capped_list(const std::vector<std::string>& names, size_t cap = kListedNames);

class Faults {
 public:
  /// `label` (a path) begins the message.
  explicit Faults(std::string label) : label_(std::move(label)) {}

  void add(std::string fault) { faults_.push_back(std::move(fault)); }
  /// "3 WHAT: a, b, c"; nothing if there are no names.
  void add_list(const std::string& what, const std::vector<std::string>& names);

  bool empty() const { return faults_.empty(); }
  const std::vector<std::string>& list() const { return faults_; }

  /// Throws one kInvalidArgument with all faults: on one line if there is one, else a line each.
  void throw_if_any(const std::string& hint) const;

 private:
  std::string label_;
  std::vector<std::string> faults_;
};

}  // namespace h3::weights
