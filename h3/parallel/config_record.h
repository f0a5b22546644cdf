// The settings that all ranks must share, as named text fields. Ranks compare records at start; a
// difference is reported with the field, never as a hang or a wrong picture.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "h3/parallel/plan.h"

namespace h3::parallel {

class ConfigRecord {
 public:
  /// Keys are single words (dots allowed); values are free text. Setting a key twice replaces it.
  void set(const std::string& key, std::string value);
  void set(const std::string& key, int64_t value) { set(key, std::to_string(value)); }
  /// The fields that follow from the degrees, under "parallel.".
  void add(const Degrees& degrees);

  /// FNV-1a of all fields, 16 hexadecimal digits. Equal records have equal digests.
  std::string digest() const;
  /// Reversible text form; control characters in values survive.
  std::string serialize() const;
  static ConfigRecord parse(const std::string& text);

  /// First field in which `other` differs from this record, as "field: here <a>, there <b>".
  std::optional<std::string> difference(const ConfigRecord& other, const std::string& here,
                                        const std::string& there) const;

 private:
  std::map<std::string, std::string> fields_;
};

}  // namespace h3::parallel
