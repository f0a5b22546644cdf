// Heap allocations of this thread so far: the test binary's operator new counts.
#pragma once

#include <cstdint>

namespace h3::testing {

int64_t allocations();

}  // namespace h3::testing
