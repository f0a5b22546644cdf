// Runs independent work items on a few threads. Which thread runs an item never matters to a
// result.
#pragma once

#include <cstdint>
#include <functional>

#include "tessera/execution.h"
#include "tessera/status.h"

namespace tessera::internal {

/// exec.threads (4096 at most), or every hardware thread when it is 0; at least 1.
int thread_count(const Execution& exec);

/// Calls body(item, worker) for every item in [0, items), worker in [0, threads). Items are handed
/// out in order, one at a time. The calling thread takes part and reports progress. Returns
/// kOutOfMemory when a body threw bad_alloc, kInternal for any other exception; remaining items are
/// then skipped.
Status parallel_for(int threads, int64_t items, const std::function<void(int64_t, int)>& body,
                    const std::function<void(int64_t, int64_t)>& progress = {});

/// Runs `body`, turning an escaping exception into a Status.
Status guarded(const std::function<Status()>& body);

}  // namespace tessera::internal
