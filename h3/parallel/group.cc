#include "h3/parallel/group.h"

#include <ATen/ops/empty.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <algorithm>
#include <cstring>
#include <utility>

#include "h3/common/error.h"
#include "h3/parallel/text.h"

namespace h3::parallel {
namespace {

constexpr int64_t kSignatureBytes = 384;

// Collectives see bytes: engines differ in the dtypes they know, and moving needs none.
at::Tensor bytes_of(const at::Tensor& tensor) {
  if (!tensor.is_contiguous())
    throw Error(ErrorCode::kInternal, "a collective got a tensor that is not contiguous");
  return tensor.view({tensor.numel()}).view(at::kByte);
}

void scale(std::vector<int64_t>* counts, int64_t by) {
  for (int64_t& count : *counts) count *= by;
}

}  // namespace

Signature& Signature::add(const char* name, at::IntArrayRef values) {
  add(name, static_cast<int64_t>(values.size()));
  for (int64_t value : values) values_.push_back({nullptr, value});
  return *this;
}

uint64_t Signature::hash() const {
  uint64_t hash = 14695981039346656037u;
  auto mix = [&](uint64_t value) {
    hash = (hash ^ value) * 1099511628211u;
    hash ^= hash >> 29;
  };
  for (const char* c = operation_; *c; ++c) mix(static_cast<unsigned char>(*c));
  for (const Value& value : values_) mix(static_cast<uint64_t>(value.value));
  return hash;
}

std::string Signature::text() const {
  std::string text = operation_;
  for (size_t i = 0; i < values_.size(); ++i) {
    text += std::string(" ") + values_[i].name + " ";
    const bool list = i + 1 < values_.size() && values_[i + 1].name == nullptr;
    if (!list) {
      text += std::to_string(values_[i].value);
      continue;
    }
    text += "[";
    for (int64_t left = values_[i].value; left > 0; --left)
      text += std::to_string(values_[++i].value) + (left > 1 ? ", " : "]");
  }
  return text;
}

Pending::Pending(c10::intrusive_ptr<c10d::Work> work, Group* group, const char* operation,
                 std::vector<at::Tensor> tensors)
    : work_(std::move(work)), group_(group), operation_(operation), tensors_(std::move(tensors)) {}
Pending::Pending(Pending&&) noexcept = default;
Pending& Pending::operator=(Pending&&) noexcept = default;
Pending::~Pending() = default;

void Pending::wait() {
  if (!work_) return;
  try {
    work_->wait();
  } catch (const std::exception& error) {
    group_->failed(operation_, error.what());
  }
  work_.reset();
  tensors_.clear();
  if (group_->parts_.observer) group_->parts_.observer->leave();
}

Group::Group(Parts parts) : parts_(std::move(parts)) {}
Group::~Group() = default;

void Group::failed(const char* operation, const char* reason) {
  const std::string line = first_line(reason);
  if (parts_.observer) parts_.observer->collective_failed(name(), operation, line);
  throw Error(ErrorCode::kUnavailable, std::string(operation) + " of " + name() + ": " + line);
}

c10d::Backend& Group::engine(const at::Tensor& tensor, const char* operation) {
  auto& engine = tensor.is_cpu() ? parts_.host : parts_.device;
  if (!engine)
    throw Error(ErrorCode::kUnsupported,
                std::string(operation) + " of " + name() + " got a tensor on " +
                    tensor.device().str() + ", and the ranks were started for the " +
                    (tensor.is_cpu() ? "GPU" : "CPU"),
                "start the world with the device of the model");
  return *engine;
}

Pending Group::start(const char* operation, std::vector<at::Tensor> tensors,
                     const std::function<c10::intrusive_ptr<c10d::Work>(c10d::Backend&)>& call) {
  c10d::Backend& backend = engine(tensors.front(), operation);
  if (parts_.observer) parts_.observer->enter(name(), operation, ++number_);
  try {
    return Pending(call(backend), this, operation, std::move(tensors));
  } catch (const std::exception& error) {
    failed(operation, error.what());
  }
}

Pending Group::start_all_to_all(const at::Tensor& out, const at::Tensor& in,
                                std::vector<int64_t> out_counts, std::vector<int64_t> in_counts) {
  at::Tensor to = bytes_of(out), from = bytes_of(in);
  scale(&out_counts, static_cast<int64_t>(out.element_size()));
  scale(&in_counts, static_cast<int64_t>(in.element_size()));
  ++collectives_;
  const int64_t kept = in_counts.empty() ? from.numel() / size() : in_counts[rank()];
  bytes_sent_ += from.numel() - kept;
  return start("all_to_all", {to, from}, [&](c10d::Backend& backend) {
    return backend.alltoall_base(to, from, out_counts, in_counts);
  });
}

void Group::all_to_all(const at::Tensor& out, const at::Tensor& in, std::vector<int64_t> out_counts,
                       std::vector<int64_t> in_counts) {
  start_all_to_all(out, in, std::move(out_counts), std::move(in_counts)).wait();
}

void Group::all_gather(const at::Tensor& out, const at::Tensor& in) {
  at::Tensor to = bytes_of(out), from = bytes_of(in);
  ++collectives_;
  bytes_sent_ += from.numel() * (size() - 1);
  start("all_gather", {to, from}, [&](c10d::Backend& backend) {
    return backend._allgather_base(to, from);
  }).wait();
}

void Group::broadcast(const at::Tensor& tensor, int root) {
  std::vector<at::Tensor> bytes{bytes_of(tensor)};
  ++collectives_;
  if (rank() == root) bytes_sent_ += bytes[0].numel() * (size() - 1);
  c10d::BroadcastOptions options;
  options.rootRank = root;
  start("broadcast", bytes, [&](c10d::Backend& backend) {
    return backend.broadcast(bytes, options);
  }).wait();
}

void Group::all_reduce_sum(const at::Tensor& tensor) {
  if (size() == 1) return;
  std::vector<at::Tensor> values{tensor};
  ++collectives_;
  bytes_sent_ += static_cast<int64_t>(tensor.nbytes());
  start("all_reduce", values, [&](c10d::Backend& backend) {
    return backend.allreduce(values);
  }).wait();
}

void Group::barrier() {
  if (size() == 1) return;
  at::Tensor token = at::empty({1}, at::kByte);
  start("barrier", {token}, [](c10d::Backend& backend) { return backend.barrier(); }).wait();
}

void Group::shut_down() {
  if (parts_.device) parts_.device->shutdown();
}

void Group::require_agreement(const Signature& signature) {
  if (size() == 1) return;
  if (parts_.agreement == Agreement::kNewSignatures && !agreed_.insert(signature.hash()).second)
    return;
  // Texts and not hashes travel, so that every rank can say what the others asked for.
  at::Tensor mine = at::empty({kSignatureBytes}, at::kByte).zero_();
  at::Tensor all = at::empty({size() * kSignatureBytes}, at::kByte);
  std::string text = signature.text();
  if (text.size() >= kSignatureBytes - 20)
    text = text.substr(0, kSignatureBytes - 20) + " " + std::to_string(signature.hash() >> 32);
  std::memcpy(mine.data_ptr(), text.data(), text.size());
  start("agreement check", {all, mine}, [&](c10d::Backend& backend) {
    return backend._allgather_base(all, mine);
  }).wait();
  auto text_of = [&](int rank) {
    const char* start = static_cast<const char*>(all.data_ptr()) + rank * kSignatureBytes;
    return std::string(start, strnlen(start, kSignatureBytes));
  };
  const std::string first = text_of(0);
  for (int other = 1; other < size(); ++other)
    if (text_of(other) != first)
      throw Error(ErrorCode::kInvalidArgument,
                  "ranks of group " + name() + " call differently: rank " +
                      std::to_string(ranks()[0]) + " " + first + ", rank " +
                      std::to_string(ranks()[other]) + " " + text_of(other),
                  "all ranks must pass the same shapes, dtype and modes; for unequal row counts "
                  "pass seq_lens");
}

}  // namespace h3::parallel
