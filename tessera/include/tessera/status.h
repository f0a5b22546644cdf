// The result of every library call that can fail: a code and a message.
// The library never throws, prints or exits. Usage:
//   if (Status s = tessera::attend(params, exec); !s.ok()) return s;
#pragma once

#include <string>
#include <string_view>
#include <utility>

namespace tessera {

enum class StatusCode {
  kOk,
  kInvalidArgument,  // the caller's input breaks a documented rule
  kUnsupported,      // the input is legal, but nothing here can run it (device, dtype, head_dim)
  kOutOfMemory,      // an allocation failed
  kIo,               // a file could not be read or written
  kInternal,         // a broken invariant: a bug in this library
};

/// One-line meaning of a code, for messages and logs.
std::string_view describe(StatusCode code);

/// A refusal's message names the value got, the values accepted and the next thing to try.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

inline Status invalid_argument(std::string m) {
  return {StatusCode::kInvalidArgument, std::move(m)};
}
inline Status unsupported(std::string m) { return {StatusCode::kUnsupported, std::move(m)}; }
inline Status out_of_memory(std::string m) { return {StatusCode::kOutOfMemory, std::move(m)}; }
inline Status io_error(std::string m) { return {StatusCode::kIo, std::move(m)}; }
inline Status internal_error(std::string m) { return {StatusCode::kInternal, std::move(m)}; }

}  // namespace tessera

/// Returns from the enclosing function when `expr` (a Status) is not ok.
#define TESSERA_RETURN_IF_ERROR(expr)                                                              \
  do {                                                                                             \
    if (::tessera::Status tessera_status_ = (expr); !tessera_status_.ok()) return tessera_status_; \
  } while (false)
