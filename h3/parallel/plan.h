// How the ranks of a run are factored into tensor, sequence, pipeline, guidance and data
// parallelism, which rank belongs to which group, and which degrees a model admits. No torch, no
// processes: the same answers on every rank and in a dry run.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace h3::parallel {

/// What the user asked for. Unset degrees are inferred by resolve_degrees.
struct DegreeRequest {
  int64_t world_size = 1;
  int64_t tensor = 1;
  int64_t pipeline = 1;
  int64_t guidance = 1;  // classifier-free guidance branches
  int64_t data = 1;
  std::optional<int64_t> sequence;  // the product of the two below
  std::optional<int64_t> ulysses;
  std::optional<int64_t> ring;
  std::optional<int64_t> kv_gather;  // excludes ulysses > 1 and ring > 1
};

/// A complete factoring: world = tensor * sequence * pipeline * guidance * data and
/// sequence = ulysses * ring.
struct Degrees {
  int64_t tensor = 1, sequence = 1, pipeline = 1, guidance = 1, data = 1;
  int64_t ulysses = 1, ring = 1;
  // Keys and values are gathered instead of exchanged. `ulysses` then names the group it runs in.
  bool kv_gather = false;
  bool kv_gather_automatic = false;  // nobody asked: layers that cannot gather use Ulysses

  int64_t world_size() const { return tensor * sequence * pipeline * guidance * data; }
};

/// Infers the unset degrees. sequence = world / (tensor * pipeline * guidance * data); ulysses =
/// sequence / ring; with none of ulysses, ring and kv_gather set, two sequence ranks gather K and V
/// and other counts use Ulysses alone. An unset ring stays 1: it narrows the choice of backends, so
/// it is never chosen for the user. Throws kInvalidArgument naming the degrees and the legal
/// values.
Degrees resolve_degrees(const DegreeRequest& request);

enum class GroupKind {
  kTensor,
  kSequence,
  kUlysses,
  kRing,
  kPipeline,
  kGuidance,
  kData,
  kEncoderData,  // all ranks of one replica with the same tensor index
  kVaeDecode,    // all ranks of one replica
};
inline constexpr GroupKind kAllGroupKinds[] = {
    GroupKind::kTensor, GroupKind::kSequence,    GroupKind::kUlysses,
    GroupKind::kRing,   GroupKind::kPipeline,    GroupKind::kGuidance,
    GroupKind::kData,   GroupKind::kEncoderData, GroupKind::kVaeDecode};
const char* describe(GroupKind kind);

/// All groups of one kind; together they hold every rank once. Ranks are numbered with tensor
/// fastest, then sequence, pipeline, guidance, data. Inside a sequence group Ulysses groups are
/// consecutive runs and ring groups are strided: sequence rank = ring rank * ulysses + ulysses
/// rank.
std::vector<std::vector<int>> group_lists(const Degrees& degrees, GroupKind kind);

/// The list of that kind which holds `rank`.
std::vector<int> group_of(const Degrees& degrees, GroupKind kind, int rank);

/// Heads of one attention layer and what its backend can do.
struct LayerFacts {
  std::string name;      // for messages, e.g. "transformer"
  int64_t heads = 0;     // of the whole model
  int64_t kv_heads = 0;  // 0: as heads
  std::string backend;   // resolved backend of this layer
  bool sparse = false;
  bool supports_ring = false;           // the kernel returns the log-sum-exp
  bool skip_sequence_parallel = false;  // local attention: no sequence rule applies
};

/// Refuses (kInvalidArgument) heads that tensor or Ulysses degrees do not divide, with the heads
/// per tensor rank and the legal Ulysses degrees; refuses (kUnsupported) ring > 1 with a backend
/// that cannot rotate or is sparse. A component override is a layer of its own: admit each of them.
void admit_layer(const Degrees& degrees, const LayerFacts& layer);

/// Rule of the H3 transformer on top: no guidance parallelism, because the model is distilled to
/// one branch (kUnsupported).
void admit_h3(const Degrees& degrees);
inline constexpr int64_t kPackedAlignment = 64;  // rows; more padding where ranks do not divide it

/// Divisors of `heads`, ascending: "1, 2, 4, 7".
std::string legal_degrees(int64_t heads);

}  // namespace h3::parallel
