// attention.png: the attention output of V = pixel content, dense beside sparse.
#include <algorithm>
#include <cmath>
#include <vector>

#include "tessera/types.h"
#include "tessera/video/picture_parts.h"
#include "tessera/video/pictures.h"

namespace tessera::video {
namespace {

constexpr int kRows = 3;
constexpr double kMargin = 28, kGap = 12, kHeader = 116, kLabel = 26;

// Patches [tokens of one step, 768] of one head's output.
std::vector<float> step_patches(const TokenGrid& grid, const Pca& pca,
                                const std::vector<uint16_t>& out, int heads, int head, int step) {
  std::vector<float> components(size_t(grid.per_step()) * kComponents);
  for (int64_t i = 0; i < grid.per_step(); ++i) {
    const int64_t token = step * grid.per_step() + i;
    const uint16_t* from = out.data() + (token * heads + head) * kHeadDim;
    for (int d = 0; d < kComponents; ++d) {
      components[size_t(i * kComponents + d)] = bf16_to_f32(from[d]);
    }
  }
  return reconstruct(pca, components);
}

// First frame of the step, one pixel a cell; `value` maps a patch value to 0..255.
template <class Value>
RgbImage render(const TokenGrid& grid, const Value& value) {
  RgbImage image(grid.w * kCells, grid.h * kCells);
  for (int y = 0; y < image.height; ++y) {
    for (int x = 0; x < image.width; ++x) {
      const size_t token = size_t(y / kCells) * grid.w + x / kCells;
      const size_t cell = (size_t(y % kCells) * kCells + x % kCells) * 3;
      for (int c = 0; c < 3; ++c) {
        const double v = value(token * kPatchValues + cell + c);
        image.pixel(y, x)[c] = uint8_t(std::lround(std::clamp(v, 0.0, 255.0)));
      }
    }
  }
  return image;
}

double level(float value) { return 255.0 * std::clamp(value, 0.0f, 1.0f); }

struct StepOutputs {
  int step = 0;
  std::vector<float> dense, sparse;
};

// A power of two that brings all but the largest 0.5 % of the differences into the visible range.
int amplification(const std::vector<StepOutputs>& steps) {
  std::vector<double> differences;
  for (const StepOutputs& s : steps) {
    for (size_t i = 0; i < s.dense.size(); ++i) {
      differences.push_back(std::abs(level(s.dense[i]) - level(s.sparse[i])));
    }
  }
  const auto at = differences.begin() + int64_t(double(differences.size() - 1) * 0.995);
  std::nth_element(differences.begin(), at, differences.end());
  int factor = 1;
  while (factor < 64 && *at * factor * 2 <= 255.0) factor *= 2;
  return factor;
}

}  // namespace

double pixel_difference(const TokenGrid& grid, const Pca& pca, const Experiment& e) {
  double sum = 0;
  int64_t values = 0;
  const int heads = e.plan.shape.heads;
  for (int head = 0; head < heads; ++head) {
    for (int step = 0; step < grid.t; ++step) {
      const std::vector<float> a = step_patches(grid, pca, e.dense_out, heads, head, step);
      const std::vector<float> b = step_patches(grid, pca, e.sparse_out, heads, head, step);
      for (size_t i = 0; i < a.size(); ++i) {
        const double d = level(a[i]) - level(b[i]);
        sum += d * d;
      }
      values += int64_t(a.size());
    }
  }
  return std::sqrt(sum / double(values));
}

Status draw_attention(const Clip& clip, const TokenGrid& grid, const Pca& pca, const Experiment& e,
                      std::vector<uint8_t>* png) {
  const int head = e.worst_head(), heads = e.plan.shape.heads;
  std::vector<StepOutputs> steps;
  for (int step : spread_steps(grid, kRows + 2)) {
    steps.push_back({step, step_patches(grid, pca, e.dense_out, heads, head, step),
                     step_patches(grid, pca, e.sparse_out, heads, head, step)});
  }
  if (int(steps.size()) == kRows + 2) {
    steps.pop_back();
    steps.erase(steps.begin());
  }
  const int factor = amplification(steps);
  double cell_w = 390, cell_h = cell_w * grid.h / grid.w;
  if (cell_h > 400) {
    cell_h = 400;
    cell_w = std::max(40.0, cell_h * grid.w / grid.h);
  }
  const double column_w = std::max(cell_w, 290.0);
  Canvas canvas(int(2 * kMargin + 4 * column_w + 3 * kGap),
                int(kHeader + double(steps.size()) * (cell_h + kLabel) + 12), kPaper);
  canvas.text(kMargin, 42, "Attention output, rendered: dense beside block-sparse", 24, kInk,
              Align::kLeft, true);
  canvas.text(kMargin, 68,
              format("V holds the pixels (128 principal components), so each output token is a "
                     "weighted mean of patches. Head %d of %d, the one with the lowest recall "
                     "(%.3f).",
                     head + 1, heads, e.head_recall[size_t(head)]),
              14, kFaint);
  const std::vector<std::string> titles = {
      "clip", "dense attention", format("sparse, %.0f %% of the blocks", 100 * e.stats.density()),
      format("difference x %d", factor)};
  for (int i = 0; i < 4; ++i) {
    canvas.text(kMargin + i * (column_w + kGap), kHeader - 12, titles[size_t(i)], 17, kInk,
                Align::kLeft, true);
  }
  double y = kHeader;
  for (const StepOutputs& s : steps) {
    const auto x = [&](int column) { return kMargin + column * (column_w + kGap); };
    canvas.image(clip_frame(clip, s.step * kTokenFrames), x(0), y, cell_w, cell_h);
    canvas.image(render(grid, [&](size_t i) { return level(s.dense[i]); }), x(1), y, cell_w,
                 cell_h);
    canvas.image(render(grid, [&](size_t i) { return level(s.sparse[i]); }), x(2), y, cell_w,
                 cell_h);
    canvas.image(render(grid,
                        [&](size_t i) {
                          const size_t pixel = i - i % 3;  // the three channels as one grey
                          double sum = 0;
                          for (size_t c = pixel; c < pixel + 3; ++c) {
                            sum += std::abs(level(s.dense[c]) - level(s.sparse[c]));
                          }
                          return factor * sum / 3;
                        }),
                 x(3), y, cell_w, cell_h);
    double square = 0;
    for (size_t i = 0; i < s.dense.size(); ++i) {
      const double d = level(s.dense[i]) - level(s.sparse[i]);
      square += d * d;
    }
    canvas.text(x(0), y + cell_h + 16, step_label(clip, s.step), 13, kFaint);
    canvas.text(x(3), y + cell_h + 16,
                format("root mean square %.2f of 255 grey levels",
                       std::sqrt(square / double(s.dense.size()))),
                13, kFaint);
    y += cell_h + kLabel;
  }
  return canvas.png(png);
}

}  // namespace tessera::video
