// The one exception type of the engine. Thrown at interfaces, never inside loops; internal
// invariants use H3_DCHECK and cannot be reached from user input.
#pragma once

#include <exception>
#include <string>
#include <utility>

namespace h3 {

enum class ErrorCode {
  kInvalidArgument,  // a value the caller can mend; the command line exits with 2
  kUnsupported,      // understood, but nothing here can do it
  kUnavailable,      // a peer, a device or a file did not answer
  kOutOfMemory,      // does not fit; the command line exits with 5
  kCancelled,        // stopped on request; the command line exits with 130
  kInternal,         // a defect of the engine
};

/// what() is "message; hint". The message names the value got and the values accepted, the hint
/// what to try next.
class Error : public std::exception {
 public:
  Error(ErrorCode code, std::string message, std::string hint = {})
      : code_(code), message_(std::move(message)), hint_(std::move(hint)) {
    what_ = hint_.empty() ? message_ : message_ + "; " + hint_;
  }

  ErrorCode code() const { return code_; }
  const std::string& message() const { return message_; }
  const std::string& hint() const { return hint_; }
  const char* what() const noexcept override { return what_.c_str(); }

 private:
  ErrorCode code_;
  std::string message_, hint_, what_;
};

}  // namespace h3
