// report.json and summary.txt.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "tessera/device.h"
#include "tessera/types.h"
#include "tessera/video/picture_parts.h"
#include "tessera/video/study.h"

namespace tessera::video {
namespace {

using Json = nlohmann::ordered_json;

Json budget_json(const Budget& budget) {
  switch (budget.kind) {
    case BudgetKind::kSparsity:
      return {
          {"kind", "sparsity"}, {"sparsity", budget.sparsity}, {"granularity", budget.granularity}};
    case BudgetKind::kKeep: return {{"kind", "keep"}, {"keep", budget.keep}};
    case BudgetKind::kMass:
      return {{"kind", "mass"},
              {"mass", budget.mass},
              {"min_keep", budget.min_keep},
              {"max_keep", budget.max_keep}};
  }
  return {};
}

std::string budget_text(const Budget& budget) {
  switch (budget.kind) {
    case BudgetKind::kSparsity: return format("sparsity %g", budget.sparsity);
    case BudgetKind::kKeep: return format("keep %d", budget.keep);
    case BudgetKind::kMass: return format("target mass %g", budget.mass);
  }
  return {};
}

Json curves_json(const RecallCurves& curves) {
  Json json;
  json["sparsity"] = curves.sparsity;
  for (const RecallCurve& c : curves.curves) json["kept_mass"][c.name] = c.mass;
  return json;
}

// "40 of 131", or "8 to 96 (mean 31.5) of 131" where rows differ.
std::string kept_text(const Experiment& e) {
  const PlanStats& s = e.stats;
  if (s.rows == s.dense_rows) return format("all %d", e.layout.max_key_blocks);
  if (s.min_kept == s.max_kept) return format("%d of %d", s.max_kept, e.layout.max_key_blocks);
  return format("%d to %d (mean %.1f) of %d", s.min_kept, s.max_kept, s.mean_kept,
                e.layout.max_key_blocks);
}

std::string curve_text(const RecallCurves& curves) {
  const auto at = std::find_if(curves.sparsity.begin(), curves.sparsity.end(),
                               [](double s) { return std::abs(s - 0.75) < 1e-9; });
  std::string text;
  for (const RecallCurve& c : curves.curves) {
    text += (text.empty() ? "" : ", ") + c.name + " " +
            format("%.3f", c.mass[size_t(at - curves.sparsity.begin())]);
  }
  return text;
}

std::string line(const char* label, const std::string& text) {
  return format("%-12s", label) + text + "\n";
}

}  // namespace

std::string report_json(const Study& s) {
  const Experiment& e = s.experiment;
  Json json;
  json["tessera_version"] = version();
  json["clip"] = {{"path", s.info.path},
                  {"container", s.info.container},
                  {"codec", s.info.codec},
                  {"width", s.info.width},
                  {"height", s.info.height},
                  {"fps", s.info.fps},
                  {"declared_frames", s.info.declared_frames},
                  {"used_frames", s.grid.frames()},
                  {"lost_frames", s.lost_frames},
                  {"damaged_frames", s.damaged_frames},
                  {"unused_frames", s.unused_frames}};
  json["grid"] = {{"t", s.grid.t},
                  {"h", s.grid.h},
                  {"w", s.grid.w},
                  {"width", s.grid.width()},
                  {"height", s.grid.height()},
                  {"tokens", s.grid.tokens()},
                  {"blocks", e.layout.query_blocks}};
  json["heads"] = {{"count", s.options.qkv.heads},
                   {"dimension", kHeadDim},
                   {"seed", s.options.qkv.seed},
                   {"shared_part", s.options.qkv.shared},
                   {"locality", s.options.qkv.locality}};
  for (int h = 0; h < s.options.qkv.heads; ++h) {
    json["heads"]["gain"].push_back(head_gain(s.options.qkv, h));
  }
  json["features"] = {{"components", s.pca_rank}, {"explained_variance", s.pca_explained}};
  json["router"] = {{"n_q", s.router.n_q},
                    {"n_k", s.router.n_k},
                    {"budget", budget_json(s.router.budget)},
                    {"kept_pairs", e.stats.kept_pairs},
                    {"total_pairs", e.stats.total_pairs},
                    {"kept_min", e.stats.min_kept},
                    {"kept_max", e.stats.max_kept},
                    {"kept_mean", e.stats.mean_kept},
                    {"dense_rows", e.stats.dense_rows},
                    {"density", e.stats.density()}};
  json["recall"] = {
      {"mean", e.mean_recall}, {"reached_by_99_percent", e.low_recall}, {"by_head", e.head_recall}};
  json["lists"] = {{"neighbour_overlap", e.overlap}, {"sharing_of_3", e.sharing_of_3}};
  json["error"] = {{"relative_l2", e.errors.relative_l2},
                   {"cosine", e.errors.cosine},
                   {"max_abs", e.errors.max_abs},
                   {"non_finite", e.errors.non_finite},
                   {"pixel_rms", s.pixel_rms}};
  json["seconds"] = {{"route", e.route_s},   {"sparse", e.sparse_s},   {"dense", e.dense_s},
                     {"repeats", e.repeats}, {"prepare", s.prepare_s}, {"total", s.total_s}};
  json["speed_up"] = e.speed_up();
  json["kernel"] = e.kernel;
  json["threads"] = s.threads;
  json["curves"] = curves_json(s.curves);
  json["files"] = s.files;
  // A path with bytes that are not UTF-8 must not stop the report.
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string summary_text(const Study& s) {
  const Experiment& e = s.experiment;
  std::string text;
  text +=
      line("clip", s.info.path +
                       format(": %s, %d x %d, %.4g fps, ", s.info.codec.c_str(), s.info.width,
                              s.info.height, s.info.fps) +
                       (s.info.declared_frames > 0 ? with_commas(s.info.declared_frames) + " frames"
                                                   : std::string("unknown length")));
  text += line("used", format("%d frames at %d x %d = %d x %d x %d tokens (time x height x width)",
                              s.grid.frames(), s.grid.width(), s.grid.height(), s.grid.t, s.grid.h,
                              s.grid.w));
  if (s.lost_frames > 0 || s.damaged_frames > 0) {
    text += line("damage", format("%lld frames lost, %lld repaired by the decoder",
                                  static_cast<long long>(s.lost_frames),
                                  static_cast<long long>(s.damaged_frames)));
  }
  text += line("attention", with_commas(s.grid.tokens()) +
                                format(" tokens in %d blocks of %d, %d heads of %d, bf16, "
                                       "%d threads, kernel %s",
                                       e.layout.query_blocks, kBlockTokens, s.options.qkv.heads,
                                       kHeadDim, s.threads, e.kernel.c_str()));
  text += line("router", format("n_q %d, n_k %d, ", s.router.n_q, s.router.n_k) +
                             budget_text(s.router.budget) + ": " + kept_text(e) +
                             " key blocks kept (" + format("%.1f %%)", 100 * e.stats.density()));
  std::string heads;
  for (double r : e.head_recall) heads += format(" %.3f", r);
  text += line("recall", format("%.4f of the softmax mass kept; 99 %% of the rows keep %.3f or "
                                "more; by head",
                                e.mean_recall, e.low_recall) +
                             heads);
  text += line("", "at sparsity 0.75: " + curve_text(s.curves));
  text += line("lists", format("neighbouring query blocks overlap by %.2f (Jaccard); groups of 3 "
                               "share %.2f times",
                               e.overlap, e.sharing_of_3));
  text +=
      line("error", format("sparse against dense: relative L2 %.4f, cosine %.5f, largest %.3g; "
                           "pixels %.2f of 255 (rms)",
                           e.errors.relative_l2, e.errors.cosine, e.errors.max_abs, s.pixel_rms));
  text += line("time", format("route %.3f s + sparse %.3f s = %.3f s, dense %.3f s (median of %d)",
                              e.route_s, e.sparse_s, e.route_s + e.sparse_s, e.dense_s, e.repeats));
  text += line("speed-up", format("%.2f times, routing included; the whole job took %.1f s",
                                  e.speed_up(), s.total_s));
  return text;
}

}  // namespace tessera::video
