// kept_blocks.png: which key blocks a query block attends to, drawn over the frames.
#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "tessera/types.h"
#include "tessera/video/picture_parts.h"
#include "tessera/video/pictures.h"

namespace tessera::video {
namespace {

constexpr int kQueries = 4;
constexpr int kColumns = 6;
constexpr double kMargin = 28, kGap = 10, kHeader = 118, kRowTitle = 30, kFrameLabel = 20,
                 kRowGap = 16;

// Query blocks at different times and heights of the picture, so that the rows differ.
std::vector<int> pick_queries(const TokenGrid& grid, int blocks) {
  constexpr std::array<double, kQueries> kHeights = {0.35, 0.60, 0.45, 0.75};
  std::vector<int> queries;
  for (int i = 0; i < kQueries; ++i) {
    const int t = std::min(grid.t - 1, int((i + 0.5) / kQueries * grid.t));
    const int64_t token =
        grid.token(t, std::min(grid.h - 1, int(kHeights[i] * grid.h)), grid.w / 2);
    const int block = int(std::min<int64_t>(token / kBlockTokens, blocks - 1));
    if (std::find(queries.begin(), queries.end(), block) == queries.end()) queries.push_back(block);
  }
  return queries;
}

// Scales a colour picture down to grey and dark, or gives a kept place a slight warm tint.
void shade_token(RgbImage* image, int x0, int y0, bool kept) {
  for (int y = y0; y < y0 + kTokenPixels; ++y) {
    for (int x = x0; x < x0 + kTokenPixels; ++x) {
      uint8_t* p = image->pixel(y, x);
      if (kept) {
        const std::array<double, 3> tint = {kKept.r, kKept.g, kKept.b};
        for (int c = 0; c < 3; ++c) p[c] = uint8_t(0.86 * p[c] + 0.14 * 255 * tint[c]);
      } else {
        const double grey = 0.30 * p[0] + 0.59 * p[1] + 0.11 * p[2];
        for (int c = 0; c < 3; ++c) p[c] = uint8_t(0.10 * p[c] + 0.22 * grey + 6);
      }
    }
  }
}

struct Place {
  double x, y, width, height;
};

// Draws the sides at which the block id passes `inside` and its neighbour's does not.
template <class Inside>
void outline(Canvas* canvas, const TokenGrid& grid, int step, const Place& at, double width,
             Color color, const Inside& inside) {
  const double cw = at.width / grid.w, ch = at.height / grid.h;
  const auto in = [&](int h, int w) {
    return h >= 0 && h < grid.h && w >= 0 && w < grid.w &&
           inside(int(grid.token(step, h, w) / kBlockTokens));
  };
  for (int h = 0; h < grid.h; ++h) {
    for (int w = 0; w < grid.w; ++w) {
      if (!in(h, w)) continue;
      const double x = at.x + w * cw, y = at.y + h * ch;
      if (!in(h - 1, w)) canvas->line(x, y, x + cw, y, width, color);
      if (!in(h + 1, w)) canvas->line(x, y + ch, x + cw, y + ch, width, color);
      if (!in(h, w - 1)) canvas->line(x, y, x, y + ch, width, color);
      if (!in(h, w + 1)) canvas->line(x + cw, y, x + cw, y + ch, width, color);
    }
  }
}

struct QueryRow {
  int block = 0, step = 0;
  std::vector<char> kept;  // [key blocks]
  int count = 0;
  double mass = 0;
};

QueryRow query_row(const TokenGrid& grid, const Experiment& e, int head, int block) {
  const int blocks = e.layout.query_blocks;
  const int64_t row = int64_t{head} * blocks + block;
  QueryRow q{.block = block, .kept = std::vector<char>(size_t(blocks), 0)};
  const int64_t first = int64_t{block} * kBlockTokens;
  const int64_t middle = std::min(first + kBlockTokens / 2, grid.tokens() - 1);
  q.step = int(middle / grid.per_step());
  const bool dense = !e.plan.dense_rows.empty() && e.plan.dense_rows[size_t(block)] != 0;
  q.count = dense ? blocks : e.plan.count[size_t(row)];
  for (int i = 0; i < q.count; ++i) {
    const int id = dense ? i : e.plan.index[size_t(row * e.plan.shape.width + i)];
    q.kept[size_t(id)] = 1;
    q.mass += e.block_mass[size_t(row * blocks + id)];
  }
  return q;
}

void draw_frame(Canvas* canvas, const Clip& clip, const TokenGrid& grid, const QueryRow& q,
                int step, const Place& at) {
  RgbImage image = clip_frame(clip, step * kTokenFrames);
  for (int h = 0; h < grid.h; ++h) {
    for (int w = 0; w < grid.w; ++w) {
      const int64_t block = grid.token(step, h, w) / kBlockTokens;
      shade_token(&image, w * kTokenPixels, h * kTokenPixels, q.kept[size_t(block)]);
    }
  }
  canvas->image(image, at.x, at.y, at.width, at.height);
  outline(canvas, grid, step, at, 1.5, kKept, [&](int b) { return q.kept[size_t(b)] != 0; });
  outline(canvas, grid, step, at, 5.0, kInk, [&](int b) { return b == q.block; });
  outline(canvas, grid, step, at, 2.6, kQuery, [&](int b) { return b == q.block; });
}

void draw_header(Canvas* canvas, const TokenGrid& grid, const Experiment& e, int head) {
  canvas->text(kMargin, 42, "Which key blocks the router keeps", 24, kInk, Align::kLeft, true);
  canvas->text(kMargin, 68,
               format("Head %d of %d (lowest recall). %d x %d x %d tokens (time x height x width), "
                      "64 consecutive tokens a block, %d blocks. ",
                      head + 1, e.plan.shape.heads, grid.t, grid.h, grid.w, e.layout.query_blocks) +
                   "Each row below is one query block.",
               14, kFaint);
  double x = kMargin;
  const auto key = [&](Color fill, Color edge, const std::string& words) {
    canvas->fill_rect(x, 84, 26, 16, fill);
    canvas->stroke_rect(x, 84, 26, 16, 2.4, edge);
    canvas->text(x + 34, 97, words, 14, kInk);
    x += 34 + canvas->text_width(words, 14) + 36;
  };
  key({0.98, 0.90, 0.76}, kKept, "kept key blocks, in colour");
  key({0.20, 0.20, 0.20}, {0.20, 0.20, 0.20}, "skipped, dark");
  key({0.90, 0.98, 1.0}, kQuery, "the query block itself");
}

}  // namespace

Status draw_kept_blocks(const Clip& clip, const TokenGrid& grid, const Experiment& e,
                        std::vector<uint8_t>* png) {
  const int head = e.worst_head();
  const std::vector<int> queries = pick_queries(grid, e.layout.query_blocks);
  const int columns = std::min(kColumns, grid.t);
  // Wide enough for the header, no taller than a screen allows.
  double frame_w = columns >= kColumns ? 280 : 300;
  double frame_h = frame_w * grid.h / grid.w;
  if (frame_h > 260) {
    frame_h = 260;
    frame_w = std::max(24.0, frame_h * grid.w / grid.h);
  }
  const double column_w = std::max(frame_w, 150.0);
  const double row_h = kRowTitle + frame_h + kFrameLabel + kRowGap;
  const double width = std::max(1180.0, 2 * kMargin + columns * column_w + (columns - 1) * kGap);
  const double height = kHeader + double(queries.size()) * row_h + 8;
  Canvas canvas(int(std::ceil(width)), int(std::ceil(height)), kPaper);
  draw_header(&canvas, grid, e, head);
  double y = kHeader;
  for (int block : queries) {
    const QueryRow q = query_row(grid, e, head, block);
    canvas.text(kMargin, y + 20,
                format("Query block %d: keeps %d of %d key blocks (%.0f %%), which carry %.1f %% "
                       "of its softmax mass",
                       block, q.count, e.layout.query_blocks,
                       100.0 * q.count / e.layout.query_blocks, 100.0 * q.mass),
                16, kInk, Align::kLeft, true);
    const std::vector<int> steps = spread_steps(grid, columns, q.step);
    for (size_t i = 0; i < steps.size(); ++i) {
      const Place at{kMargin + double(i) * (column_w + kGap), y + kRowTitle, frame_w, frame_h};
      draw_frame(&canvas, clip, grid, q, steps[i], at);
      canvas.text(at.x, at.y + frame_h + 15,
                  step_label(clip, steps[i]) + (steps[i] == q.step ? " (query)" : ""), 12, kFaint);
    }
    y += row_h;
  }
  return canvas.png(png);
}

}  // namespace tessera::video
