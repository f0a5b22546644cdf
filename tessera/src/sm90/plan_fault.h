// How the kernels report a plan that breaks a rule.
#pragma once

#include <cstdint>

namespace tessera::sm90 {

/// The first broken rule of a plan, found on the device. `code` is claimed with one atomic.
enum FaultCode : int32_t { kNoFault, kBadCount, kBadId, kDuplicateId, kBadBit };
struct PlanFault {
  int32_t code = 0, batch = 0, head = 0, row = 0, slot = 0, value = 0, limit = 0;
};

}  // namespace tessera::sm90
