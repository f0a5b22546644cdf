// Streaming header parser: nothing is built from the JSON text but the entries themselves, so
// nesting and duplicates are seen as they come and hostile text costs no more than its size.
#include "tessera/io/safetensors_header.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "tessera/io/json_check.h"
#include "tessera/io/text.h"

namespace tessera::io::detail {
namespace {

struct DtypeName {
  Dtype dtype;
  std::string_view name;
};

constexpr std::array kDtypeNames = {
    DtypeName{Dtype::kBf16, "BF16"}, DtypeName{Dtype::kF16, "F16"}, DtypeName{Dtype::kF32, "F32"},
    DtypeName{Dtype::kF64, "F64"},   DtypeName{Dtype::kI8, "I8"},   DtypeName{Dtype::kU8, "U8"},
    DtypeName{Dtype::kBool, "BOOL"}, DtypeName{Dtype::kI16, "I16"}, DtypeName{Dtype::kU16, "U16"},
    DtypeName{Dtype::kI32, "I32"},   DtypeName{Dtype::kU32, "U32"}, DtypeName{Dtype::kI64, "I64"},
    DtypeName{Dtype::kU64, "U64"}};

// Legal in the format, without a counterpart here.
constexpr std::array<std::string_view, 7> kForeignDtypes = {
    "F8_E4M3", "F8_E5M2", "F8_E8M0", "F6_E2M3", "F6_E3M2", "F4", "C64"};

constexpr std::string_view kNeeded = "each tensor needs dtype, shape and data_offsets, once";

std::string accepted_dtypes() {
  std::string out;
  for (const DtypeName& d : kDtypeNames) out += (out.empty() ? "" : ", ") + std::string(d.name);
  return out;
}

using Json = nlohmann::json;

class HeaderReader : public nlohmann::json_sax<Json> {
 public:
  explicit HeaderReader(Header* out) : out_(out) {}

  Status error() const { return error_; }

  bool null() override { return unexpected("null"); }
  bool boolean(bool value) override { return unexpected(value ? "true" : "false"); }
  bool number_integer(number_integer_t value) override {
    if (value >= 0) return integer(static_cast<uint64_t>(value));
    return unexpected(std::to_string(value));
  }
  bool number_unsigned(number_unsigned_t value) override { return integer(value); }
  // Fractions, exponents and integers beyond 64 bits.
  bool number_float(number_float_t, const string_t& raw) override {
    return unexpected(printable(raw, 40));
  }
  bool binary(binary_t&) override { return unexpected("binary data"); }

  bool string(string_t& value) override {
    if (place_ == Place::kMetadata) {
      out_->metadata.emplace(key_, value);
      return true;
    }
    if (place_ == Place::kTensor && key_ == "dtype") return dtype(value);
    return unexpected("the string " + in_quotes(value, 40));
  }

  bool start_object(size_t) override {
    if (place_ == Place::kOutside) {
      place_ = Place::kHeader;
    } else if (place_ == Place::kHeader && key_ == kMetadataName) {
      place_ = Place::kMetadata;
    } else if (place_ == Place::kHeader) {
      place_ = Place::kTensor;
      tensor_ = HeaderTensor{};
      tensor_.name = key_;
      has_dtype_ = has_shape_ = has_offsets_ = false;
    } else {
      return unexpected("an object");
    }
    return true;
  }

  bool key(string_t& value) override {
    key_ = value;
    if (place_ == Place::kHeader && !names_.insert(value).second) {
      return fail("tensor " + in_quotes(value) + " is given twice; names must be unique");
    }
    if (place_ == Place::kMetadata && out_->metadata.contains(value)) {
      return fail("__metadata__ has the key " + in_quotes(value) + " twice; keys must be unique");
    }
    if (place_ == Place::kTensor) {
      bool* seen = nullptr;
      if (value == "dtype") seen = &has_dtype_;
      if (value == "shape") seen = &has_shape_;
      if (value == "data_offsets") seen = &has_offsets_;
      if (seen == nullptr)
        return fail_tensor("unknown field " + in_quotes(value) + "; " + needed());
      if (*seen) return fail_tensor("field " + in_quotes(value) + " is given twice; " + needed());
      *seen = true;
    }
    return true;
  }

  bool end_object() override {
    if (place_ == Place::kTensor) {
      if (!has_dtype_) return fail_tensor("dtype is missing; " + needed());
      if (!has_shape_) return fail_tensor("shape is missing; " + needed());
      if (!has_offsets_) return fail_tensor("data_offsets is missing; " + needed());
      if (!tensor_bytes(tensor_.dtype, tensor_.shape, &tensor_.bytes)) {
        return fail_tensor("shape " + shape_text(tensor_.shape) + " of " +
                           std::string(dtype_name(tensor_.dtype)) +
                           " overflows 63 bits of bytes; give the real shape");
      }
      out_->tensors.push_back(std::move(tensor_));
    }
    place_ = place_ == Place::kHeader ? Place::kOutside : Place::kHeader;
    return true;
  }

  bool start_array(size_t) override {
    if (place_ == Place::kTensor && key_ == "shape") {
      place_ = Place::kShape;
    } else if (place_ == Place::kTensor && key_ == "data_offsets") {
      place_ = Place::kOffsets;
      offsets_seen_ = 0;
    } else {
      return unexpected("an array");
    }
    return true;
  }

  bool end_array() override {
    if (place_ == Place::kOffsets && offsets_seen_ != 2) {
      return fail_tensor("data_offsets has " + std::to_string(offsets_seen_) +
                         " numbers, [begin, end] is needed");
    }
    place_ = Place::kTensor;
    return true;
  }

  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    return fail("header is not JSON at byte " + std::to_string(position) + " of the header: " +
                syntax_error_text(error.what()) + "; the file is damaged or not safetensors");
  }

 private:
  enum class Place { kOutside, kHeader, kMetadata, kTensor, kShape, kOffsets };

  static std::string needed() { return std::string(kNeeded); }

  bool fail(std::string message) {
    error_ = invalid_argument(std::move(message));
    return false;
  }
  bool fail_tensor(const std::string& message) {
    return fail("tensor " + in_quotes(tensor_.name) + ": " + message);
  }

  // A value of a kind that the current place does not allow.
  bool unexpected(const std::string& got) {
    switch (place_) {
      case Place::kOutside: return fail("header must be a JSON object, got " + got);
      case Place::kHeader:
        return fail(
            (key_ == kMetadataName ? std::string("__metadata__") : "tensor " + in_quotes(key_)) +
            " must be an object, got " + got);
      case Place::kMetadata:
        return fail("__metadata__ key " + in_quotes(key_) + " must be a string, got " + got);
      case Place::kTensor:
        return fail_tensor(key_ + " must be " +
                           (key_ == "dtype" ? "a string" : "an array of integers") + ", got " +
                           got);
      case Place::kShape:
        return fail_tensor("shape[" + std::to_string(tensor_.shape.size()) +
                           "] must be an integer from 0 to 9223372036854775807, got " + got);
      case Place::kOffsets:
        return fail_tensor("data_offsets[" + std::to_string(offsets_seen_) +
                           "] must be an integer from 0 to 18446744073709551615, got " + got);
    }
    return false;
  }

  bool integer(uint64_t value) {
    if (place_ == Place::kShape) {
      if (value > static_cast<uint64_t>(INT64_MAX)) return unexpected(std::to_string(value));
      if (tensor_.shape.size() == kMaxRank) {
        return fail_tensor("shape has more than " + std::to_string(kMaxRank) + " sizes");
      }
      tensor_.shape.push_back(static_cast<int64_t>(value));
      return true;
    }
    if (place_ == Place::kOffsets) {
      if (offsets_seen_ == 2) {
        return fail_tensor("data_offsets has more than 2 numbers, [begin, end] is needed");
      }
      (offsets_seen_++ == 0 ? tensor_.begin : tensor_.end) = value;
      return true;
    }
    return unexpected(std::to_string(value));
  }

  bool dtype(const std::string& name) {
    const auto known = std::find_if(kDtypeNames.begin(), kDtypeNames.end(),
                                    [&](const DtypeName& d) { return d.name == name; });
    if (known != kDtypeNames.end()) {
      tensor_.dtype = known->dtype;
      return true;
    }
    const std::string message = "tensor " + in_quotes(tensor_.name) + ": dtype " +
                                in_quotes(name, 40) + " is not supported, accepted are " +
                                accepted_dtypes() + "; convert the tensor";
    const bool foreign =
        std::find(kForeignDtypes.begin(), kForeignDtypes.end(), name) != kForeignDtypes.end();
    error_ = foreign ? unsupported(message) : invalid_argument(message);
    return false;
  }

  Header* out_;
  Status error_;
  Place place_ = Place::kOutside;
  std::string key_;  // the last key read
  std::set<std::string> names_;
  HeaderTensor tensor_;
  bool has_dtype_ = false, has_shape_ = false, has_offsets_ = false;
  int offsets_seen_ = 0;
};

}  // namespace

std::string_view safetensors_dtype(Dtype dtype) {
  for (const DtypeName& d : kDtypeNames) {
    if (d.dtype == dtype) return d.name;
  }
  return {};
}

bool tensor_bytes(Dtype dtype, const std::vector<int64_t>& shape, uint64_t* bytes) {
  auto product = static_cast<int64_t>(dtype_bytes(dtype));
  bool empty = false;
  for (const int64_t size : shape) {
    if (size < 0) return false;
    if (size == 0) {
      empty = true;
    } else if (__builtin_mul_overflow(product, size, &product)) {
      return false;
    }
  }
  *bytes = empty ? 0 : static_cast<uint64_t>(product);
  return true;
}

Status parse_header(std::string_view text, std::string_view label, Header* out) {
  const auto refuse = [&](StatusCode code, const std::string& message) {
    return Status(code, in_quotes(label, 1024) + ": " + message);
  };
  if (text.empty() || text[0] != '{') {
    return refuse(StatusCode::kInvalidArgument,
                  "header must be a JSON object beginning with '{', got " +
                      (text.empty() ? std::string("no bytes") : in_quotes(text, 16)) +
                      "; the file is damaged or not safetensors");
  }
  if (const size_t at = nul_position(text); at != 0) {
    return refuse(
        StatusCode::kInvalidArgument,
        "header is not JSON at byte " + std::to_string(at) +
            " of the header: it holds a NUL byte; the file is damaged or not safetensors");
  }
  Header header;
  HeaderReader reader(&header);
  if (!Json::sax_parse(text.begin(), text.end(), &reader)) {
    return refuse(reader.error().code(), reader.error().message());
  }
  *out = std::move(header);
  return {};
}

}  // namespace tessera::io::detail
