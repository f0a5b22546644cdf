// Host side of the sm_90 router.
#pragma once

#include <cstddef>

#include "tessera/execution.h"
#include "tessera/src/router/problem.h"

namespace tessera::sm90 {

size_t router_workspace(const internal::RouteProblem& problem);

/// Enqueues pooling, scores and selection per routed document; no host synchronisation, no
/// allocation.
Status route_cuda(const internal::RouteProblem& problem, const Execution& exec,
                  const RouteOutputs& out);

}  // namespace tessera::sm90
