// Lists of faults as messages.
#include "h3/weights/faults.h"

#include "h3/common/error.h"
#include "tessera/io/text.h"

namespace h3::weights {

std::string capped_list(const std::vector<std::string>& names, size_t cap) {
  std::string text;
  for (size_t i = 0; i < names.size() && i < cap; ++i) {
    text += (i > 0 ? ", " : "") + names[i];
  }
  if (names.size() > cap) text += " and " + std::to_string(names.size() - cap) + " more";
  return text;
}

void Faults::add_list(const std::string& what, const std::vector<std::string>& names) {
  if (names.empty()) return;
  add(std::to_string(names.size()) + " " + what + ": " + capped_list(names));
}

void Faults::throw_if_any(const std::string& hint) const {
  if (faults_.empty()) return;
  const std::string label = tessera::io::detail::printable(label_, 1024);
  if (faults_.size() == 1) {
    throw Error(ErrorCode::kInvalidArgument, label + ": " + faults_.front(), hint);
  }
  std::string text = label + ": " + std::to_string(faults_.size()) + " faults";
  for (const std::string& fault : faults_) text += "\n  " + fault;
  throw Error(ErrorCode::kInvalidArgument, hint.empty() ? text : text + "\n  " + hint);
}

}  // namespace h3::weights
