// tessera video: a real clip to routed, block-sparse attention, with pictures and a report.
#pragma once

#include <string>

#include "tessera/status.h"

namespace tessera::cli {

/// "640x352" to two numbers. kInvalidArgument names the text and the accepted form.
Status parse_size(const std::string& text, int* width, int* height);

}  // namespace tessera::cli
