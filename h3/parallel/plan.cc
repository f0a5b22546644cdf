#include "h3/parallel/plan.h"

#include <algorithm>
#include <utility>

#include "h3/common/error.h"

namespace h3::parallel {
namespace {

std::string str(int64_t value) { return std::to_string(value); }

void require_positive(const char* name, int64_t value) {
  if (value < 1)
    throw Error(ErrorCode::kInvalidArgument,
                std::string(name) + " is " + str(value) + "; accepted: 1 or more");
}

std::string product(const DegreeRequest& r) {
  return "tensor " + str(r.tensor) + " x pipeline " + str(r.pipeline) + " x guidance " +
         str(r.guidance) + " x data " + str(r.data);
}

// Positions of a rank on the axes, tensor fastest.
struct Axes {
  int64_t tensor, sequence, pipeline, guidance, data;
};

int rank_at(const Degrees& d, const Axes& a) {
  return static_cast<int>(
      a.tensor +
      d.tensor * (a.sequence +
                  d.sequence * (a.pipeline + d.pipeline * (a.guidance + d.guidance * a.data))));
}

Axes axes_of(const Degrees& d, int64_t rank) {
  Axes a{};
  for (auto [position, degree] : {std::pair{&a.tensor, d.tensor},
                                  {&a.sequence, d.sequence},
                                  {&a.pipeline, d.pipeline},
                                  {&a.guidance, d.guidance},
                                  {&a.data, d.data}}) {
    *position = rank % degree;
    rank /= degree;
  }
  return a;
}

// Ranks that share a key form a group. The key is the rank number with the group's own axes set to
// their first position, so groups come out ordered by their smallest rank.
int group_key(const Degrees& d, GroupKind kind, int rank) {
  Axes a = axes_of(d, rank);
  switch (kind) {
    case GroupKind::kTensor: a.tensor = 0; break;
    case GroupKind::kSequence: a.sequence = 0; break;
    case GroupKind::kUlysses: a.sequence -= a.sequence % d.ulysses; break;
    case GroupKind::kRing: a.sequence %= d.ulysses; break;
    case GroupKind::kPipeline: a.pipeline = 0; break;
    case GroupKind::kGuidance: a.guidance = 0; break;
    case GroupKind::kData: a.data = 0; break;
    case GroupKind::kEncoderData: a.sequence = a.pipeline = a.guidance = 0; break;
    case GroupKind::kVaeDecode: a.tensor = a.sequence = a.pipeline = a.guidance = 0; break;
  }
  return rank_at(d, a);
}

}  // namespace

const char* describe(GroupKind kind) {
  switch (kind) {
    case GroupKind::kTensor: return "tensor";
    case GroupKind::kSequence: return "sequence";
    case GroupKind::kUlysses: return "ulysses";
    case GroupKind::kRing: return "ring";
    case GroupKind::kPipeline: return "pipeline";
    case GroupKind::kGuidance: return "guidance";
    case GroupKind::kData: return "data";
    case GroupKind::kEncoderData: return "encoder-data";
    case GroupKind::kVaeDecode: return "vae-decode";
  }
  return "unknown";
}

std::string legal_degrees(int64_t heads) {
  std::string list;
  for (int64_t degree = 1; degree <= heads; ++degree)
    if (heads % degree == 0) list += (list.empty() ? "" : ", ") + str(degree);
  return list;
}

Degrees resolve_degrees(const DegreeRequest& request) {
  require_positive("world size", request.world_size);
  require_positive("tensor degree", request.tensor);
  require_positive("pipeline degree", request.pipeline);
  require_positive("guidance degree", request.guidance);
  require_positive("data degree", request.data);
  for (auto [name, value] : {std::pair{"sequence degree", request.sequence},
                             {"ulysses degree", request.ulysses},
                             {"ring degree", request.ring},
                             {"kv-gather degree", request.kv_gather}})
    if (value) require_positive(name, *value);

  Degrees d;
  d.tensor = request.tensor;
  d.pipeline = request.pipeline;
  d.guidance = request.guidance;
  d.data = request.data;
  const int64_t others = d.tensor * d.pipeline * d.guidance * d.data;
  if (request.world_size % others != 0)
    throw Error(ErrorCode::kInvalidArgument,
                str(request.world_size) + " ranks are not a multiple of " + product(request) +
                    " = " + str(others),
                "choose degrees whose product divides " + str(request.world_size) + " (" +
                    legal_degrees(request.world_size) + ")");
  const int64_t available = request.world_size / others;
  d.sequence = request.sequence.value_or(available);
  if (d.sequence != available)
    throw Error(ErrorCode::kInvalidArgument,
                "sequence degree " + str(d.sequence) + " with " + product(request) + " makes " +
                    str(d.sequence * others) + " ranks, but " + str(request.world_size) +
                    " are there",
                "set the sequence degree to " + str(available) + " or start " +
                    str(d.sequence * others) + " ranks");

  const bool chosen = request.ulysses || request.ring || request.kv_gather;
  if (request.kv_gather && *request.kv_gather > 1) {
    if (request.ulysses.value_or(1) > 1 || request.ring.value_or(1) > 1)
      throw Error(ErrorCode::kInvalidArgument,
                  "kv-gather degree " + str(*request.kv_gather) + " excludes ulysses degree " +
                      str(request.ulysses.value_or(1)) + " and ring degree " +
                      str(request.ring.value_or(1)) + "; accepted with it: 1 and 1",
                  "leave the ulysses and ring degrees away");
    if (*request.kv_gather != d.sequence)
      throw Error(ErrorCode::kInvalidArgument, "kv-gather degree " + str(*request.kv_gather) +
                                                   " must equal the sequence degree, which is " +
                                                   str(d.sequence));
    d.kv_gather = true;
  } else if (!chosen && d.sequence == 2) {
    d.kv_gather = d.kv_gather_automatic = true;
  }
  if (d.kv_gather) {
    d.ulysses = d.sequence;
    return d;
  }

  d.ring = request.ring.value_or(1);
  if (!request.ulysses && d.sequence % d.ring != 0)
    throw Error(ErrorCode::kInvalidArgument,
                "ring degree " + str(d.ring) + " does not divide the sequence degree " +
                    str(d.sequence) + "; accepted: " + legal_degrees(d.sequence));
  d.ulysses = request.ulysses.value_or(d.sequence / d.ring);
  if (d.ulysses * d.ring != d.sequence)
    throw Error(ErrorCode::kInvalidArgument,
                "ulysses degree " + str(d.ulysses) + " x ring degree " + str(d.ring) + " = " +
                    str(d.ulysses * d.ring) + ", but the sequence degree is " + str(d.sequence),
                d.sequence % d.ulysses == 0
                    ? "set the ring degree to " + str(d.sequence / d.ulysses) +
                          " or the ulysses degree to " + str(d.sequence)
                    : "accepted ulysses degrees: " + legal_degrees(d.sequence));
  return d;
}

std::vector<std::vector<int>> group_lists(const Degrees& degrees, GroupKind kind) {
  std::vector<std::vector<int>> lists;
  std::vector<int> list_of_key(degrees.world_size(), -1);
  for (int rank = 0; rank < degrees.world_size(); ++rank) {
    int& list = list_of_key[group_key(degrees, kind, rank)];
    if (list < 0) {
      list = static_cast<int>(lists.size());
      lists.emplace_back();
    }
    lists[list].push_back(rank);
  }
  return lists;
}

std::vector<int> group_of(const Degrees& degrees, GroupKind kind, int rank) {
  for (auto& list : group_lists(degrees, kind))
    if (std::find(list.begin(), list.end(), rank) != list.end()) return list;
  throw Error(ErrorCode::kInvalidArgument, "rank " + str(rank) +
                                               " is outside the world; accepted: 0 to " +
                                               str(degrees.world_size() - 1));
}

void admit_layer(const Degrees& d, const LayerFacts& layer) {
  const std::string subject = layer.name.empty() ? "attention" : layer.name;
  for (auto [what, heads] : {std::pair{"heads", layer.heads},
                             {"key/value heads", layer.kv_heads ? layer.kv_heads : layer.heads}}) {
    if (heads < 1 || heads % d.tensor != 0)
      throw Error(ErrorCode::kInvalidArgument,
                  subject + " has " + str(heads) + " " + what + ", tensor degree " + str(d.tensor) +
                      " does not divide them (ulysses degree " + str(d.ulysses) + ")",
                  "accepted tensor degrees: " + legal_degrees(heads));
    // Gathering moves whole heads; only what falls back to the exchange splits them.
    const bool splits_heads =
        !layer.skip_sequence_parallel && (!d.kv_gather || (d.kv_gather_automatic && layer.sparse));
    const int64_t local = heads / d.tensor;
    if (splits_heads && local % d.ulysses != 0)
      throw Error(ErrorCode::kInvalidArgument,
                  subject + " has " + str(heads) + " " + what + ", tensor degree " + str(d.tensor) +
                      " leaves " + str(local) + " per rank, ulysses degree " + str(d.ulysses) +
                      " does not divide " + str(local),
                  "accepted ulysses degrees: " + legal_degrees(local));
  }
  if (layer.skip_sequence_parallel) return;
  if (d.ring > 1 && layer.sparse)
    throw Error(ErrorCode::kUnsupported,
                subject + ": ring degree " + str(d.ring) + " with the sparse backend " +
                    layer.backend +
                    ": a ring step sees one part of the keys, the choice of blocks needs them all",
                "use ring degree 1 with ulysses, or a dense backend that returns the log-sum-exp");
  if (d.ring > 1 && !layer.supports_ring)
    throw Error(ErrorCode::kUnsupported,
                subject + ": ring degree " + str(d.ring) +
                    " needs a backend that returns the "
                    "log-sum-exp, and " +
                    layer.backend + " does not",
                "use ring degree 1, or a backend with the ring capability (fa)");
  if (d.kv_gather && !d.kv_gather_automatic && layer.sparse)
    throw Error(ErrorCode::kUnsupported,
                subject + ": K/V gather is not implemented for the sparse backend " + layer.backend,
                "use the ulysses degree instead of kv-gather");
}

void admit_h3(const Degrees& d) {
  if (d.guidance != 1)
    throw Error(ErrorCode::kUnsupported,
                "guidance degree " + str(d.guidance) +
                    "; accepted: 1, because the model is distilled to one branch");
}

}  // namespace h3::parallel
