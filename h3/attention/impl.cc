#include "h3/attention/impl.h"

#include "h3/common/error.h"

namespace h3 {

AttentionPartial AttentionImpl::forward_with_lse(const Qkv&) {
  throw Error(ErrorCode::kUnsupported,
              "this attention backend gives no log-sum-exp, which merging partial results (ring "
              "attention) needs",
              "choose a backend that does, such as fa");
}

}  // namespace h3
