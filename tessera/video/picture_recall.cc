// recall.png: kept mass against sparsity.
#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "tessera/video/picture_parts.h"
#include "tessera/video/pictures.h"

namespace tessera::video {
namespace {

constexpr int kWidth = 1240, kHeight = 800;
constexpr double kLeft = 96, kTop = 100, kPlotWidth = 790, kPlotHeight = 590;

struct Style {
  Color color;
  double width, dash;
};

Style style_of(const std::string& name) {
  if (name == "n = 1") return {{0.58, 0.75, 0.91}, 2.6, 0};
  if (name == "n = 2") return {{0.26, 0.57, 0.84}, 2.6, 0};
  if (name == "n = 4") return {{0.05, 0.32, 0.66}, 3.4, 0};
  if (name == "n = 8") return {{0.45, 0.18, 0.60}, 2.6, 0};
  if (name == "oracle") return {{0.10, 0.11, 0.13}, 2.4, 8};
  return {{0.80, 0.35, 0.25}, 2.4, 4};
}

std::string meaning_of(const std::string& name) {
  if (name == "oracle") return "knows the true mass";
  if (name == "random lists") return "no routing";
  if (name == "n = 1") return "block means";
  return "router, " + name.substr(4) + " cells a block";
}

struct Axes {
  double x0, x1, y0, y1;
  double x(double v) const { return kLeft + (v - x0) / (x1 - x0) * kPlotWidth; }
  double y(double v) const { return kTop + (y1 - v) / (y1 - y0) * kPlotHeight; }
};

void draw_axes(Canvas* canvas, const Axes& axes) {
  for (double s = axes.x0; s < axes.x1 + 1e-9; s += 0.05) {
    canvas->line(axes.x(s), kTop, axes.x(s), kTop + kPlotHeight, 1, kGridLine);
    canvas->text(axes.x(s), kTop + kPlotHeight + 24, format("%.2f", s), 15, kInk, Align::kCenter);
  }
  for (double m = axes.y0; m < axes.y1 + 1e-9; m += 0.1) {
    canvas->line(kLeft, axes.y(m), kLeft + kPlotWidth, axes.y(m), 1, kGridLine);
    canvas->text(kLeft - 12, axes.y(m) + 5, format("%.1f", m), 15, kInk, Align::kRight);
  }
  canvas->stroke_rect(kLeft, kTop, kPlotWidth, kPlotHeight, 1.4, kFaint);
  canvas->text(kLeft + kPlotWidth / 2, kTop + kPlotHeight + 58,
               "sparsity (share of key blocks skipped)", 17, kInk, Align::kCenter);
  canvas->vertical_text(38, kTop + kPlotHeight / 2, "kept softmax mass (recall)", 17, kInk);
}

double value_near(const RecallCurves& curves, const RecallCurve& curve, double sparsity) {
  size_t best = 0;
  for (size_t i = 0; i < curves.sparsity.size(); ++i) {
    if (std::abs(curves.sparsity[i] - sparsity) < std::abs(curves.sparsity[best] - sparsity)) {
      best = i;
    }
  }
  return curve.mass[best];
}

void draw_legend(Canvas* canvas, const RecallCurves& curves, double star_sparsity,
                 double star_mass) {
  const double x = kLeft + kPlotWidth + 34;
  double y = kTop + 12;
  canvas->text(kWidth - 28, y, "at 0.75", 14, kFaint, Align::kRight);
  canvas->text(x, y, "curve", 14, kFaint);
  // Best first, so that the legend has the order of the lines.
  std::vector<const RecallCurve*> order;
  for (const RecallCurve& c : curves.curves) order.push_back(&c);
  std::stable_sort(order.begin(), order.end(), [&](const RecallCurve* a, const RecallCurve* b) {
    return value_near(curves, *a, 0.75) > value_near(curves, *b, 0.75);
  });
  for (const RecallCurve* curve : order) {
    y += 50;
    const Style s = style_of(curve->name);
    canvas->polyline({{x, y - 5}, {x + 40, y - 5}}, s.width, s.color, s.dash);
    canvas->text(x + 52, y, curve->name, 17, kInk, Align::kLeft, true);
    canvas->text(x + 52, y + 18, meaning_of(curve->name), 13, kFaint);
    canvas->text(kWidth - 28, y, format("%.3f", value_near(curves, *curve, 0.75)), 17, kInk,
                 Align::kRight);
  }
  y += 62;
  canvas->dot(x + 20, y - 5, 8, kInk);
  canvas->dot(x + 20, y - 5, 6, kKept);
  canvas->text(x + 52, y, "this run", 17, kInk, Align::kLeft, true);
  canvas->text(x + 52, y + 18, format("sparsity %.3f", star_sparsity), 13, kFaint);
  canvas->text(kWidth - 28, y, format("%.3f", star_mass), 17, kInk, Align::kRight);
}

}  // namespace

Status draw_recall(const RecallCurves& curves, const Experiment& e, std::vector<uint8_t>* png) {
  double lowest = 1.0;
  for (const RecallCurve& c : curves.curves) {
    for (double m : c.mass) lowest = std::min(lowest, m);
  }
  const Axes axes{curves.sparsity.front(), curves.sparsity.back(),
                  std::clamp(std::floor(lowest * 10) / 10, 0.0, 0.9), 1.0};
  Canvas canvas(kWidth, kHeight, kPaper);
  canvas.text(kLeft, 44, "How much attention survives at a given sparsity", 24, kInk, Align::kLeft,
              true);
  canvas.text(kLeft, 72,
              format("Softmax mass inside the kept key blocks, mean over %d heads and %s query "
                     "rows; kept = ceil((1 - sparsity) x %d blocks)",
                     e.plan.shape.heads, with_commas(int64_t(e.recall.size())).c_str(),
                     e.layout.query_blocks),
              14, kFaint);
  draw_axes(&canvas, axes);
  for (const RecallCurve& curve : curves.curves) {
    const Style s = style_of(curve.name);
    std::vector<std::pair<double, double>> points;
    for (size_t i = 0; i < curve.mass.size(); ++i) {
      points.emplace_back(axes.x(curves.sparsity[i]), axes.y(curve.mass[i]));
    }
    canvas.polyline(points, s.width, s.color, s.dash);
  }
  const double sparsity = 1.0 - e.stats.density();
  if (sparsity >= axes.x0 && sparsity <= axes.x1 && e.mean_recall >= axes.y0) {
    canvas.dot(axes.x(sparsity), axes.y(e.mean_recall), 8, kInk);
    canvas.dot(axes.x(sparsity), axes.y(e.mean_recall), 6, kKept);
  }
  draw_legend(&canvas, curves, sparsity, e.mean_recall);
  return canvas.png(png);
}

}  // namespace tessera::video
