// Order of the segments, tags and timesteps. The axes are in positions.cc.
#include "h3/models/dit/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>

#include "h3/common/error.h"
#include "h3/models/dit/positions.h"

namespace h3::dit {
namespace {

constexpr int64_t kChannels = 2;  // audio is stereo, one channel after the other
// 40 times the longest request; keeps every product below in range.
constexpr int64_t kMaxRows = int64_t{1} << 22;

[[noreturn]] void refuse(const std::string& message, const std::string& hint = {}) {
  throw Error(ErrorCode::kInvalidArgument, message, hint);
}

void check_count(const std::string& field, int64_t value, int64_t least) {
  if (value < least || value > kMaxRows) {
    refuse(fmt::format("{} is {}; accepted: {} to {}", field, value, least, kMaxRows));
  }
}

void check_shape(const std::string& field, const LatentShape& shape) {
  check_count(field + ".frames", shape.frames, 1);
  for (const auto& [name, value] :
       {std::pair{".height", shape.height}, std::pair{".width", shape.width}}) {
    check_count(field + name, value, 2);
    if (value % 2 != 0) {
      refuse(fmt::format("{}{} is {}; accepted: even numbers of latents", field, name, value),
             "canvas sides are multiples of 32 pixels, 16 to a latent");
    }
  }
  // In double: three factors up to 2^22 do not fit into 64 bits.
  if (double(shape.frames) * double(shape.height / 2) * double(shape.width / 2) > kMaxRows) {
    refuse(fmt::format("{} of {} x {} x {} latents has over {} rows", field, shape.frames,
                       shape.height, shape.width, kMaxRows));
  }
}

void check_flags(const std::string& field, const std::vector<uint8_t>& flags, int64_t rows) {
  if (!flags.empty() && int64_t(flags.size()) != rows) {
    refuse(fmt::format("{} has {} entries; accepted: none or text_rows = {}", field, flags.size(),
                       rows));
  }
}

void check_keyframes(const std::vector<Keyframe>& keyframes) {
  const bool ordered =
      keyframes.size() < 2 || (keyframes.size() == 2 && keyframes[0] == Keyframe::kFirst &&
                               keyframes[1] == Keyframe::kLast);
  if (ordered) return;
  std::string got;
  for (const Keyframe k : keyframes) {
    got += fmt::format("{}{}", got.empty() ? "" : ", ", k == Keyframe::kFirst ? "first" : "last");
  }
  refuse(fmt::format("keyframes is [{}]; accepted: [], [first], [last] or [first, last]", got));
}

void check_reference(const std::string& field, const Reference& r) {
  if (r.kind == ReferenceKind::kAudio) {
    if (r.visual.frames != 0 || r.visual.height != 0 || r.visual.width != 0) {
      refuse(fmt::format("{}.visual is {} x {} x {}; accepted for audio: 0 x 0 x 0", field,
                         r.visual.frames, r.visual.height, r.visual.width));
    }
    check_count(field + ".audio_latents", r.audio_latents, 1);
    return;
  }
  check_shape(field + ".visual", r.visual);
  check_count(field + ".audio_latents", r.audio_latents, 0);
  if (r.kind == ReferenceKind::kImage && r.visual.frames != 1) {
    refuse(fmt::format("{}.visual.frames is {}; accepted for an image: 1", field, r.visual.frames));
  }
  if (r.kind == ReferenceKind::kImage && r.audio_latents != 0) {
    refuse(fmt::format("{}.audio_latents is {}; accepted for an image: 0", field, r.audio_latents));
  }
}

void check(const LayoutRequest& request) {
  check_count("text_rows", request.text_rows, 1);
  check_flags("text_is_vision", request.text_is_vision, request.text_rows);
  check_flags("text_is_video_pad", request.text_is_video_pad, request.text_rows);
  check_keyframes(request.keyframes);
  check_shape("target", request.target);
  check_count("target_audio_latents", request.target_audio_latents, 1);
  int64_t rows = request.text_rows + request.target.rows() +
                 kChannels * request.target_audio_latents +
                 int64_t(request.keyframes.size()) * request.target.rows() / request.target.frames;
  for (size_t i = 0; i < request.references.size() && rows <= kMaxRows; ++i) {
    const Reference& r = request.references[i];
    check_reference(fmt::format("references[{}]", i), r);
    rows += r.visual.rows() + kChannels * r.audio_latents;
  }
  if (rows > kMaxRows) refuse(fmt::format("the sequence has over {} rows", kMaxRows));
}

// Appends segments; every call advances `used`.
class Packer {
 public:
  explicit Packer(const LayoutRequest& request) : request_(request) {}

  void text() {
    out_.text_rows = request_.text_rows;
    for (int64_t row = 0; row < request_.text_rows; ++row) {
      if (flag(request_.text_is_video_pad, row)) out_.sparse_rows.push_back(row);
      add(double(row), 0, 0, flag(request_.text_is_vision, row) ? kTagVideo : kTagText);
    }
  }

  void frame(const FrameGrid& grid, double time, bool sparse) {
    for (const double h : grid.height) {
      for (const double w : grid.width) {
        if (sparse) out_.sparse_rows.push_back(out_.used);
        out_.video_rows.push_back(out_.used);
        add(time, h, w, kTagVideo);
      }
    }
  }

  void video(const FrameGrid& grid, int64_t frames, double origin) {
    for (const double time : frame_times(frames, origin)) frame(grid, time, true);
  }

  // Left and right stand at the outer columns of the grid.
  void audio(const FrameGrid& grid, int64_t latents, double origin) {
    for (const double w : {grid.width.front(), grid.width.back()}) {
      for (int64_t i = 0; i < latents; ++i) {
        out_.audio_rows.push_back(out_.used);
        add(origin + double(i), 0, w, kTagAudio);
      }
    }
  }

  void end_of_conditions() {
    out_.condition_video_rows = int64_t(out_.video_rows.size());
    out_.condition_audio_rows = int64_t(out_.audio_rows.size());
  }

  PackedLayout padded(int64_t ranks) && {
    const int64_t multiple = std::lcm(kRowAlignment, ranks);
    out_.rows = (out_.used + multiple - 1) / multiple * multiple;
    out_.positions.resize(size_t(out_.rows) * 3, 0.0);
    out_.tags.resize(size_t(out_.rows), kTagPadding);
    return std::move(out_);
  }

 private:
  static bool flag(const std::vector<uint8_t>& flags, int64_t row) {
    return !flags.empty() && flags[size_t(row)] != 0;
  }

  void add(double t, double h, double w, int8_t tag) {
    out_.positions.insert(out_.positions.end(), {t, h, w});
    out_.tags.push_back(tag);
    ++out_.used;
  }

  const LayoutRequest& request_;
  PackedLayout out_;
};

// The clock after all references: each takes its place in time, an image one unit.
double target_origin(const LayoutRequest& request) {
  double clock = double(request.text_rows);
  for (const Reference& r : request.references) {
    if (r.kind == ReferenceKind::kImage) {
      clock += 1;
    } else if (r.kind == ReferenceKind::kAudio) {
      clock += double(r.audio_latents);
    } else {
      clock += std::max(double(r.audio_latents), span_in_order(r.visual.frames));
    }
  }
  return clock;
}

void add_references(const LayoutRequest& request, const FrameGrid& target, Packer* packer) {
  double clock = double(request.text_rows);
  for (const Reference& r : request.references) {
    if (r.kind == ReferenceKind::kAudio) {
      packer->audio(target, r.audio_latents, clock);
      clock += double(r.audio_latents);
      continue;
    }
    const FrameGrid grid = frame_grid(r.visual.height, r.visual.width);
    if (r.kind == ReferenceKind::kImage) {
      packer->frame(grid, clock, false);
      clock += 1;
    } else {
      packer->audio(grid, r.audio_latents, clock);
      packer->video(grid, r.visual.frames, clock);
      clock += std::max(double(r.audio_latents), span_in_order(r.visual.frames));
    }
  }
}

}  // namespace

PackedLayout pack_layout(const LayoutRequest& request, int64_t ranks) {
  check(request);
  if (ranks < 1) refuse(fmt::format("ranks is {}; accepted: 1 and more", ranks));
  const FrameGrid grid = frame_grid(request.target.height, request.target.width);
  const double origin = target_origin(request);
  Packer packer(request);
  packer.text();
  for (const Keyframe k : request.keyframes) {
    const bool first = k == Keyframe::kFirst;
    packer.frame(grid, first ? origin : last_keyframe_time(request.target.frames, origin), false);
  }
  add_references(request, grid, &packer);
  packer.end_of_conditions();
  packer.audio(grid, request.target_audio_latents, origin);
  packer.video(grid, request.target.frames, origin);
  return std::move(packer).padded(ranks);
}

RowTimesteps row_timesteps(const PackedLayout& layout, const StepTimes& times) {
  for (const auto& [name, value] :
       {std::pair{"video", times.video}, std::pair{"audio", times.audio},
        std::pair{"condition_video", times.condition_video},
        std::pair{"condition_audio", times.condition_audio}}) {
    if (!std::isfinite(value)) refuse(fmt::format("times.{} is {}; accepted: finite", name, value));
  }
  const float condition_video = std::max(times.video, times.condition_video);
  const float condition_audio = std::max(times.audio, times.condition_audio);
  RowTimesteps out;
  out.unique = {times.video};  // text rows always exist
  if (layout.condition_video_rows > 0) out.unique.push_back(condition_video);
  if (layout.condition_audio_rows > 0) out.unique.push_back(condition_audio);
  if (layout.condition_audio_rows < int64_t(layout.audio_rows.size())) {
    out.unique.push_back(times.audio);
  }
  std::sort(out.unique.begin(), out.unique.end());
  out.unique.erase(std::unique(out.unique.begin(), out.unique.end()), out.unique.end());
  const auto slot = [&](float value) {
    return int32_t(std::lower_bound(out.unique.begin(), out.unique.end(), value) -
                   out.unique.begin());
  };
  out.inverse.assign(size_t(layout.rows), slot(times.video));
  for (int64_t i = 0; i < layout.condition_video_rows; ++i) {
    out.inverse[size_t(layout.video_rows[size_t(i)])] = slot(condition_video);
  }
  for (int64_t i = 0; i < int64_t(layout.audio_rows.size()); ++i) {
    const bool condition = i < layout.condition_audio_rows;
    out.inverse[size_t(layout.audio_rows[size_t(i)])] =
        slot(condition ? condition_audio : times.audio);
  }
  return out;
}

std::vector<int32_t> adaln_rows(const PackedLayout& layout, const RowTimesteps& timesteps) {
  if (timesteps.inverse.size() != layout.tags.size()) {
    refuse(fmt::format("timesteps.inverse has {} rows; accepted: those of the layout, {}",
                       timesteps.inverse.size(), layout.tags.size()));
  }
  std::vector<int32_t> out(layout.tags.size());
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = 3 * timesteps.inverse[i] + std::max<int32_t>(layout.tags[i], 0);
  }
  return out;
}

}  // namespace h3::dit
