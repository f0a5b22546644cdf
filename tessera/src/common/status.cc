// Meanings of the status codes.
#include "tessera/status.h"

namespace tessera {

std::string_view describe(StatusCode code) {
  switch (code) {
    case StatusCode::kOk: return "ok";
    case StatusCode::kInvalidArgument: return "the input breaks a documented rule";
    case StatusCode::kUnsupported: return "nothing here can run this input";
    case StatusCode::kOutOfMemory: return "an allocation failed";
    case StatusCode::kIo: return "a file could not be read or written";
    case StatusCode::kInternal: return "a broken invariant inside the library";
  }
  return "unknown status";
}

}  // namespace tessera
