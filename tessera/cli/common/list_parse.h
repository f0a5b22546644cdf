// Lists of block numbers as people type them: "0,3,5-9".
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/status.h"

namespace tessera::cli {

/// Ascending, without repetitions. Numbers are non-negative and fit int32; a range a-b includes
/// both ends. kInvalidArgument names `option`, the text and the offending part. Empty text gives an
/// empty list.
Status parse_block_list(const std::string& option, const std::string& text,
                        std::vector<int32_t>* out);

}  // namespace tessera::cli
