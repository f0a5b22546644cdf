#include "h3/parallel/config_record.h"

#include <cstdio>
#include <utility>

#include "h3/common/hash.h"

namespace h3::parallel {

void ConfigRecord::set(const std::string& key, std::string value) {
  fields_[key] = std::move(value);
}

void ConfigRecord::add(const Degrees& d) {
  set("parallel.tensor", d.tensor);
  set("parallel.sequence", d.sequence);
  set("parallel.pipeline", d.pipeline);
  set("parallel.guidance", d.guidance);
  set("parallel.data", d.data);
  set("parallel.ulysses", d.ulysses);
  set("parallel.ring", d.ring);
  set("parallel.kv_gather", !d.kv_gather ? "off" : d.kv_gather_automatic ? "automatic" : "on");
}

std::string ConfigRecord::digest() const {
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(fnv1a(serialize())));
  return text;
}

// Lengths in front instead of separators, so that no value needs escaping.
std::string ConfigRecord::serialize() const {
  std::string text;
  for (const auto& [key, value] : fields_)
    text += std::to_string(key.size()) + ":" + key + std::to_string(value.size()) + ":" + value;
  return text;
}

ConfigRecord ConfigRecord::parse(const std::string& text) {
  ConfigRecord record;
  size_t at = 0;
  auto next = [&] {
    size_t colon = text.find(':', at);
    size_t length = std::stoul(text.substr(at, colon - at));
    std::string part = text.substr(colon + 1, length);
    at = colon + 1 + length;
    return part;
  };
  while (at < text.size()) {
    std::string key = next();
    record.fields_[key] = next();
  }
  return record;
}

std::optional<std::string> ConfigRecord::difference(const ConfigRecord& other,
                                                    const std::string& here,
                                                    const std::string& there) const {
  auto shown = [](const ConfigRecord& record, const std::string& key) {
    auto it = record.fields_.find(key);
    return it == record.fields_.end() ? std::string("nothing") : "'" + it->second + "'";
  };
  std::map<std::string, std::string> all = fields_;
  all.insert(other.fields_.begin(), other.fields_.end());
  for (const auto& [key, value] : all) {
    std::string a = shown(*this, key), b = shown(other, key);
    if (a != b) return "field " + key + ": " + here + " has " + a + ", " + there + " has " + b;
  }
  return std::nullopt;
}

}  // namespace h3::parallel
