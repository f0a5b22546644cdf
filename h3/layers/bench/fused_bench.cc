// Times the fused sites on a GPU beside the same arithmetic as ATen operations, in one process:
//   h3_fused_bench [--rows 37760] [--samples 30] [--json]
// Sizes of the real model. Before every sample a buffer larger than L2 is read, so that nothing of
// the inputs is there. GB: what one pass has to read and write. A line per site, then one layer:
// two fused residual + norm sites, one SwiGLU, one q and k norm with rotation.
#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "h3/layers/composed.h"
#include "h3/layers/fused.h"

namespace {

using namespace h3::layers;

constexpr int64_t kHidden = 5376, kFfn = 14336, kHeads = 56, kTables = 12;
constexpr double kEps = 1e-5;
constexpr int64_t kFlushBytes = int64_t{256} << 20;

struct Options {
  int64_t rows = 37760, samples = 30;
  bool json = false;
};

struct Timing {
  double median = 0, p10 = 0, p90 = 0;  // microseconds
};

class Bench {
 public:
  explicit Bench(int64_t samples)
      : samples_(samples),
        flush_(at::zeros({kFlushBytes / 4}, at::device(at::kCUDA).dtype(at::kFloat))) {}

  Timing time(const std::function<void()>& call) const {
    const c10::impl::VirtualGuardImpl device(at::kCUDA);
    const c10::Stream stream = device.getStream(flush_.device());
    for (int i = 0; i < 3; ++i) call();
    std::vector<double> times;
    for (int64_t i = 0; i < samples_; ++i) {
      const at::Tensor read = flush_.sum();
      c10::Event begin(at::kCUDA, c10::EventFlag::BACKEND_DEFAULT),
          end(at::kCUDA, c10::EventFlag::BACKEND_DEFAULT);
      begin.record(stream);
      call();
      end.record(stream);
      device.synchronizeStream(stream);
      times.push_back(begin.elapsedTime(end) * 1e3);
    }
    std::sort(times.begin(), times.end());
    const auto part = [&](double share) {
      return times[static_cast<size_t>(share * (times.size() - 1) + 0.5)];
    };
    return {part(0.5), part(0.1), part(0.9)};
  }

 private:
  int64_t samples_;
  at::Tensor flush_;
};

struct Line {
  std::string name;
  int64_t rows = 0;
  double bytes = 0;
  Timing fused, composed;
  double fused_tb_s() const { return bytes / fused.median * 1e-6; }
};

class Table {
 public:
  Table(const Bench& bench, bool json) : bench_(bench), json_(json) {
    if (!json_) {
      std::printf("%-32s %7s %8s %10s %10s %10s %7s %12s %7s\n", "site", "rows", "GB", "us", "p10",
                  "p90", "TB/s", "ATen us", "times");
    }
  }

  Line run(const char* name, int64_t rows, double bytes, const std::function<void()>& fused,
           const std::function<void()>& composed) {
    Line line{name, rows, bytes, bench_.time(fused), bench_.time(composed)};
    print(line);
    return line;
  }

  void print(const Line& line) {
    lines_.push_back(line);
    if (json_) return;
    std::printf("%-32s %7lld %8.3f %10.1f %10.1f %10.1f %7.3f %12.1f %7.2f\n", line.name.c_str(),
                static_cast<long long>(line.rows), line.bytes * 1e-9, line.fused.median,
                line.fused.p10, line.fused.p90, line.fused_tb_s(), line.composed.median,
                line.composed.median / line.fused.median);
  }

  nlohmann::json json() const {
    nlohmann::json all = nlohmann::json::array();
    for (const Line& line : lines_) {
      all.push_back({{"name", line.name},
                     {"rows", line.rows},
                     {"bytes", line.bytes},
                     {"us", line.fused.median},
                     {"us_p10", line.fused.p10},
                     {"us_p90", line.fused.p90},
                     {"tb_per_s", line.fused_tb_s()},
                     {"aten_us", line.composed.median}});
    }
    return all;
  }

 private:
  const Bench& bench_;
  bool json_;
  std::vector<Line> lines_;
};

Line sum_of(const char* name, const std::vector<std::pair<int, Line>>& parts) {
  Line sum{name, parts.front().second.rows, 0, {}, {}};
  for (const auto& [count, line] : parts) {
    sum.bytes += count * line.bytes;
    for (const auto& [to, from] :
         {std::pair{&sum.fused, &line.fused}, std::pair{&sum.composed, &line.composed}}) {
      to->median += count * from->median;
      to->p10 += count * from->p10;
      to->p90 += count * from->p90;
    }
  }
  return sum;
}

void run(const Options& options) {
  const auto like = at::device(at::kCUDA).dtype(at::kBFloat16);
  const int64_t rows = options.rows, quarter = std::max<int64_t>(rows / 4, 1);
  const Bench bench(options.samples);
  Table table(bench, options.json);
  const auto bytes = [](int64_t r, int64_t width) { return 2.0 * r * width; };
  Line norm, fused, residual, qk, swiglu_all, swiglu_part;
  {
    at::Tensor x = at::randn({rows, kHidden}, like), y = at::randn({rows, kHidden}, like);
    const at::Tensor weight = at::ones({kHidden}, like);
    // Small gates: x stays finite over all the calls.
    const auto chunks = (at::randn({kTables, 6 * kHidden}, like) * 0.01).chunk(6, 1);
    // As packed: a little text and audio, then video.
    at::Tensor row = at::zeros({rows}, at::device(at::kCUDA).dtype(at::kInt));
    row.slice(0, 0, std::min<int64_t>(50, rows)).fill_(1);
    row.slice(0, std::min<int64_t>(50, rows), std::min<int64_t>(464, rows)).fill_(2);
    const at::Tensor copy = at::empty_like(x);
    table.run(
        "copy (at::copy_ both times)", rows, 2 * bytes(rows, kHidden), [&] { copy.copy_(x); },
        [&] { copy.copy_(x); });
    table.run(
        "rms_norm", rows, 2 * bytes(rows, kHidden), [&] { rms_norm(x, weight, kEps); },
        [&] { composed::rms_norm(x, weight, kEps); });
    norm = table.run(
        "rms_norm_modulate", rows, 2 * bytes(rows, kHidden),
        [&] { rms_norm_modulate(x, weight, kEps, chunks[1], chunks[0], row); },
        [&] { composed::rms_norm_modulate(x, weight, kEps, chunks[1], chunks[0], row); });
    residual = table.run(
        "gated_residual", rows, 3 * bytes(rows, kHidden),
        [&] { gated_residual_(x, y, chunks[2], row); },
        [&] { composed::gated_residual_(x, y, chunks[2], row); });
    const auto both = [&](auto site) {
      return [&, site] { site(x, y, chunks[2], weight, kEps, chunks[1], chunks[0], row); };
    };
    fused = table.run("gated_residual_norm_modulate", rows, 4 * bytes(rows, kHidden),
                      both(gated_residual_norm_modulate_),
                      both(composed::gated_residual_norm_modulate_));
    // Every row another table row than its neighbours: the worst case of the row kernels.
    const at::Tensor ordered = row.clone();
    row.copy_(at::arange(rows, row.options()).remainder(kTables));
    table.run("  the same, rows shuffled", rows, 4 * bytes(rows, kHidden),
              both(gated_residual_norm_modulate_), both(composed::gated_residual_norm_modulate_));
  }
  {
    const at::Tensor gate_up = at::randn({rows, 2 * kFfn}, like);
    swiglu_all = table.run(
        "swiglu", rows, 3 * bytes(rows, kFfn), [&] { swiglu(gate_up); },
        [&] { composed::swiglu(gate_up); });
    const at::Tensor part = gate_up.slice(0, 0, quarter);
    swiglu_part = table.run(
        "swiglu, a quarter", quarter, 3 * bytes(quarter, kFfn), [&] { swiglu(part); },
        [&] { composed::swiglu(part); });
  }
  {
    const int64_t width = kHeads * 128;
    at::Tensor qkv = at::randn({rows, 3 * width}, like);
    const at::Tensor weight = at::ones({128}, like);
    const at::Tensor angles = at::randn({rows, 48}, like);
    const at::Tensor cos_sin = at::cat({angles.cos(), angles.sin()}, 1);
    qk = table.run(
        "qk_norm_rope", rows, 4 * bytes(rows, width),
        [&] { qk_norm_rope_(qkv, kHeads, weight, weight, kEps, cos_sin); },
        [&] { composed::qk_norm_rope_(qkv, kHeads, weight, weight, kEps, cos_sin); });
  }
  table.print(sum_of("layer (2 fused + swiglu + qk)", {{2, fused}, {1, swiglu_all}, {1, qk}}));
  table.print(sum_of("layer, swiglu in quarters", {{2, fused}, {4, swiglu_part}, {1, qk}}));
  table.print(sum_of("layer, residual and norm apart",
                     {{2, residual}, {2, norm}, {1, swiglu_all}, {1, qk}}));
  if (options.json) std::printf("%s\n", table.json().dump(2).c_str());
}

int usage(const std::string& fault) {
  std::fprintf(stderr,
               "h3_fused_bench: %s\nusage: h3_fused_bench [--rows N] [--samples N] [--json]\n",
               fault.c_str());
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--json") {
      options.json = true;
      continue;
    }
    int64_t* const value = name == "--rows"      ? &options.rows
                           : name == "--samples" ? &options.samples
                                                 : nullptr;
    if (value == nullptr) return usage("unknown option '" + name + "'");
    const char* const text = ++i < argc ? argv[i] : "";
    const auto [end, error] = std::from_chars(text, text + std::strlen(text), *value);
    if (error != std::errc{} || *end != '\0' || *value < 1) {
      return usage(name + " takes a positive number, not '" + text + "'");
    }
  }
  try {
    if (!at::hasCUDA()) {
      std::fprintf(stderr, "h3_fused_bench: no CUDA device; this program measures GPU kernels\n");
      return 2;
    }
    if (!uses_fused_kernels(at::empty({1, 8}, at::device(at::kCUDA).dtype(at::kBFloat16)))) {
      std::fprintf(stderr, "h3_fused_bench: the fused kernels do not run here: %s\n",
                   fused_kernels_available() ? "the device has not compute capability 9.0"
                                             : "the build has TESSERA_CUDA=OFF");
      return 2;
    }
    run(options);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "h3_fused_bench: %s\n", e.what());
    return 1;
  }
  return 0;
}
