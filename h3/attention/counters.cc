#include "h3/attention/counters.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <numeric>

namespace h3 {

int64_t CounterValues::all_dense_calls() const {
  return std::accumulate(dense_calls.begin(), dense_calls.end(), int64_t{0});
}

std::optional<double> CounterValues::mean_mass() const {
  if (mass_rows == 0) return {};
  return mass_sum / static_cast<double>(mass_rows);
}

CounterValues& CounterValues::operator+=(const CounterValues& other) {
  sparse_calls += other.sparse_calls;
  for (size_t i = 0; i < kDenseReasons; ++i) dense_calls[i] += other.dense_calls[i];
  sparse_documents += other.sparse_documents;
  dense_documents += other.dense_documents;
  blocks_kept += other.blocks_kept;
  blocks_total += other.blocks_total;
  mass_sum += other.mass_sum;
  mass_rows += other.mass_rows;
  return *this;
}

std::string describe(const CounterValues& values) {
  std::string text = fmt::format("{} sparse calls", values.sparse_calls);
  if (values.sparse_calls > 0) text += fmt::format(" (kept {:.4f}", values.kept_ratio());
  if (const auto mass = values.mean_mass()) text += fmt::format(", estimated mass {:.4f}", *mass);
  if (values.sparse_calls > 0) text += ")";
  text += fmt::format(", {} dense", values.all_dense_calls());
  std::string reasons;
  for (size_t i = 0; i < kDenseReasons; ++i) {
    if (values.dense_calls[i] == 0) continue;
    reasons += fmt::format("{}{} {}", reasons.empty() ? "" : ", ",
                           to_text(static_cast<DenseReason>(i)), values.dense_calls[i]);
  }
  return reasons.empty() ? text : text + " (" + reasons + ")";
}

std::string counters_json(const CounterValues& values) {
  nlohmann::ordered_json json;
  json["sparse_calls"] = values.sparse_calls;
  json["dense_calls"] = nlohmann::ordered_json::object();
  for (size_t i = 0; i < kDenseReasons; ++i) {
    if (values.dense_calls[i] == 0) continue;
    json["dense_calls"][std::string(to_text(static_cast<DenseReason>(i)))] = values.dense_calls[i];
  }
  json["sparse_documents"] = values.sparse_documents;
  json["dense_documents"] = values.dense_documents;
  json["blocks_kept"] = values.blocks_kept;
  json["blocks_total"] = values.blocks_total;
  json["kept_ratio"] = values.kept_ratio();
  const auto mass = values.mean_mass();
  json["estimated_mass"] = mass ? nlohmann::ordered_json(*mass) : nlohmann::ordered_json();
  return json.dump();
}

void LayerCounters::add_sparse(int64_t sparse_documents, int64_t dense_documents, int64_t kept,
                               int64_t total) {
  add(&sparse_calls_, 1);
  add(&sparse_documents_, sparse_documents);
  add(&dense_documents_, dense_documents);
  add(&blocks_kept_, kept);
  add(&blocks_total_, total);
}

void LayerCounters::add_mass(double sum, int64_t rows) {
  mass_sum_.fetch_add(sum, std::memory_order_relaxed);
  add(&mass_rows_, rows);
}

CounterValues LayerCounters::values() const {
  CounterValues v;
  v.sparse_calls = sparse_calls_.load(std::memory_order_relaxed);
  for (size_t i = 0; i < kDenseReasons; ++i) {
    v.dense_calls[i] = dense_calls_[i].load(std::memory_order_relaxed);
  }
  v.sparse_documents = sparse_documents_.load(std::memory_order_relaxed);
  v.dense_documents = dense_documents_.load(std::memory_order_relaxed);
  v.blocks_kept = blocks_kept_.load(std::memory_order_relaxed);
  v.blocks_total = blocks_total_.load(std::memory_order_relaxed);
  v.mass_sum = mass_sum_.load(std::memory_order_relaxed);
  v.mass_rows = mass_rows_.load(std::memory_order_relaxed);
  return v;
}

void LayerCounters::reset() {
  sparse_calls_ = 0;
  for (auto& counter : dense_calls_) counter = 0;
  sparse_documents_ = 0;
  dense_documents_ = 0;
  blocks_kept_ = 0;
  blocks_total_ = 0;
  mass_sum_ = 0;
  mass_rows_ = 0;
}

}  // namespace h3
