// Ranks that exchange tensors. A group checks that its ranks call alike, counts what it moves, and
// hands every failure of a collective to the world, which ends all ranks instead of leaving the
// others waiting.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

namespace c10d {
class Backend;
class Work;
}  // namespace c10d

namespace h3::parallel {

/// What a call must have in common on all ranks: an operation and numbers (sizes, dtype, modes).
class Signature {
 public:
  explicit Signature(const char* operation) : operation_(operation) {}
  Signature& add(const char* name, int64_t value) {
    values_.push_back({name, value});
    return *this;
  }
  Signature& add(const char* name, at::IntArrayRef values);
  uint64_t hash() const;
  std::string text() const;  // "forward q [1, 9, 4, 8] dtype 6"

 private:
  struct Value {
    const char* name;  // null: one more number of the list before
    int64_t value;
  };
  const char* operation_;
  std::vector<Value> values_;
};

/// When ranks compare the signatures of their calls: each time, or (for devices, where it would
/// wait for the host) the first time each signature appears. The second finds every mismatch in
/// which all ranks bring something new; other mismatches end in the timeout, which names the ranks.
enum class Agreement { kAlways, kNewSignatures };

/// What a rank is doing, for the message that names a rank which did not come.
class CallObserver {
 public:
  virtual ~CallObserver() = default;
  virtual void enter(const std::string& group, const char* operation, uint64_t number) = 0;
  virtual void leave() = 0;
  /// Ends all ranks; does not return.
  [[noreturn]] virtual void collective_failed(const std::string& group, const char* operation,
                                              const std::string& reason) = 0;
};

/// A collective under way. Its tensors stay alive and untouched until wait().
class Pending {
 public:
  Pending(c10::intrusive_ptr<c10d::Work> work, class Group* group, const char* operation,
          std::vector<at::Tensor> tensors);
  Pending(Pending&&) noexcept;
  Pending& operator=(Pending&&) noexcept;
  ~Pending();
  /// CPU: blocks until done. CUDA: the current stream waits, the host does not.
  void wait();

 private:
  c10::intrusive_ptr<c10d::Work> work_;
  Group* group_;
  const char* operation_;
  std::vector<at::Tensor> tensors_;
};

/// Bytes travel as they are: every dtype, bit for bit. All tensors contiguous; a group uses one
/// thread at a time. `host` serves CPU tensors and the agreement checks, `device` CUDA tensors (may
/// be null). A group of one rank needs neither.
class Group {
 public:
  struct Parts {
    std::string name;        // "ulysses {0, 1}"
    std::vector<int> ranks;  // world ranks in group order
    int rank = 0;            // index of this process in `ranks`
    c10::intrusive_ptr<c10d::Backend> host, device;
    Agreement agreement = Agreement::kAlways;
    CallObserver* observer = nullptr;
  };
  explicit Group(Parts parts);
  ~Group();

  const std::string& name() const { return parts_.name; }
  const std::vector<int>& ranks() const { return parts_.ranks; }
  int rank() const { return parts_.rank; }
  int size() const { return static_cast<int>(parts_.ranks.size()); }

  /// Piece i of `in` (in_counts[i] elements) goes to rank i, out_counts[i] elements come from rank
  /// i. Empty counts: equal pieces. Same dtype and device on both sides.
  void all_to_all(const at::Tensor& out, const at::Tensor& in, std::vector<int64_t> out_counts = {},
                  std::vector<int64_t> in_counts = {});
  Pending start_all_to_all(const at::Tensor& out, const at::Tensor& in,
                           std::vector<int64_t> out_counts = {},
                           std::vector<int64_t> in_counts = {});
  /// out [size * numel(in)], rank order.
  void all_gather(const at::Tensor& out, const at::Tensor& in);
  void broadcast(const at::Tensor& tensor, int root);
  /// Sum over all ranks, in place, in the tensor's dtype. The only operation that reads values.
  void all_reduce_sum(const at::Tensor& tensor);
  /// All ranks of the group have come here (host side).
  void barrier();

  /// Closes the device engine in an orderly way. All ranks call it, with nothing under way.
  void shut_down();

  /// Throws kInvalidArgument on every rank of the group, with the same text, if signatures differ.
  void require_agreement(const Signature& signature);

  /// Collectives that moved data since the start (agreement checks not counted), and bytes sent.
  int64_t collectives() const { return collectives_; }
  int64_t bytes_sent() const { return bytes_sent_; }

 private:
  friend class Pending;
  c10d::Backend& engine(const at::Tensor& tensor, const char* operation);
  Pending start(const char* operation, std::vector<at::Tensor> tensors,
                const std::function<c10::intrusive_ptr<c10d::Work>(c10d::Backend&)>& call);
  [[noreturn]] void failed(const char* operation, const char* reason);

  Parts parts_;
  std::unordered_set<uint64_t> agreed_;
  uint64_t number_ = 0;
  int64_t collectives_ = 0, bytes_sent_ = 0;
};

}  // namespace h3::parallel
