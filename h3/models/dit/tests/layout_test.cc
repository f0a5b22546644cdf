// Equality with diffusers is in h3/tests/parity/test_layout.py; here are numbers computed by hand,
// properties and refusals.
#include "h3/models/dit/layout.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <numeric>
#include <set>

#include "h3/common/error.h"
#include "h3/models/dit/positions.h"

namespace h3::dit {
namespace {

LayoutRequest small() {
  LayoutRequest r;
  r.text_rows = 5;
  r.target = {7, 6, 8};
  r.target_audio_latents = 12;
  return r;
}

LayoutRequest with_references() {
  LayoutRequest r = small();
  r.references = {{ReferenceKind::kImage, {1, 4, 4}, 0},
                  {ReferenceKind::kVideo, {2, 4, 6}, 3},
                  {ReferenceKind::kAudio, {}, 5}};
  return r;
}

std::vector<int64_t> range(int64_t from, int64_t to) {
  std::vector<int64_t> out(static_cast<size_t>(to - from));
  std::iota(out.begin(), out.end(), from);
  return out;
}

TEST(Layout, TextAudioVideo_StandInThatOrderAndArePadded) {
  const PackedLayout l = pack_layout(small());
  EXPECT_EQ(l.text_rows, 5);
  EXPECT_EQ(l.used, 113);  // 5 + 2 x 12 + 7 x 3 x 4
  EXPECT_EQ(l.rows, 128);
  EXPECT_EQ(l.audio_rows, range(5, 29));
  EXPECT_EQ(l.video_rows, range(29, 113));
  EXPECT_EQ(l.sparse_rows, l.video_rows);
  EXPECT_EQ(l.condition_video_rows, 0);
  EXPECT_EQ(l.condition_audio_rows, 0);
  for (size_t row = 113; row < 128; ++row) {
    EXPECT_EQ(l.tags[row], kTagPadding);
    for (size_t axis = 0; axis < 3; ++axis) EXPECT_EQ(l.positions[row * 3 + axis], 0.0);
  }
}

TEST(Layout, FiveSeconds768p_HasThePublishedRowsAndAxes) {
  LayoutRequest r;
  r.text_rows = 50;
  r.target = {37, 48, 84};
  r.target_audio_latents = 207;
  const PackedLayout l = pack_layout(r);
  EXPECT_EQ(l.used, 37760);
  EXPECT_EQ(l.rows, 37760);
  EXPECT_EQ(l.audio_rows, range(50, 464));
  EXPECT_EQ(l.sparse_rows, range(464, 37760));
  EXPECT_NEAR(l.positions[464 * 3 + 1], 3.905137, 1e-6);
  EXPECT_NEAR(l.positions[464 * 3 + 2], -5.166010, 1e-6);
  EXPECT_NEAR(l.positions[37759 * 3 + 1], 27.086958, 1e-6);
  EXPECT_NEAR(l.positions[37759 * 3 + 2], 36.158105, 1e-6);
  EXPECT_EQ(l.positions[50 * 3], 50.0);
  EXPECT_NEAR(l.positions[464 * 3], 50.0, 1e-9);
}

TEST(Layout, FrameTimes_FollowThePatternOfTheAutoencoder) {
  const std::vector<double> want = {0, 5 / 3., 25 / 3., 15, 65 / 3., 85 / 3., 30};
  const std::vector<double> got = frame_times(7, 100);
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], 100 + want[i], 1e-12) << i;
  EXPECT_NEAR(span_in_order(7), 30 + 20 / 3., 1e-12);
  EXPECT_NEAR(last_keyframe_time(7, 100), 100 + 30 + 5., 1e-12);
}

TEST(Layout, SpanOrders_DifferOnlyInTheLastBits) {
  int different = 0;
  for (int64_t frames = 1; frames <= 300; ++frames) {
    const double a = span_in_order(frames), b = span_pairwise(frames);
    EXPECT_NEAR(a, b, 1e-9) << frames;
    EXPECT_EQ(float(a), float(b)) << frames;
    if (frames < 16) {
      EXPECT_EQ(a, b) << frames;
    }
    different += a != b;
  }
  EXPECT_GT(different, 0);  // or the two orders are one
}

TEST(Layout, Keyframes_StandAtBothEndsOfTheTarget) {
  LayoutRequest r = small();
  r.keyframes = {Keyframe::kFirst, Keyframe::kLast};
  const PackedLayout l = pack_layout(r);
  EXPECT_EQ(l.condition_video_rows, 24);
  EXPECT_EQ(l.used, 113 + 24);
  std::vector<int64_t> video = range(5, 29);
  for (const int64_t row : range(53, 137)) video.push_back(row);
  EXPECT_EQ(l.video_rows, video);
  EXPECT_EQ(l.positions[5 * 3], 5.0);
  EXPECT_NEAR(l.positions[17 * 3], 5 + 35, 1e-12);
  // Same places in the frame as the target, and never sparse.
  for (int64_t i = 0; i < 12; ++i) {
    for (int64_t axis = 1; axis < 3; ++axis) {
      EXPECT_EQ(l.positions[size_t((5 + i) * 3 + axis)], l.positions[size_t((53 + i) * 3 + axis)]);
    }
  }
  EXPECT_EQ(l.sparse_rows, range(53, 137));
}

TEST(Layout, References_MoveTheClockOfTheTarget) {
  const PackedLayout l = pack_layout(with_references());
  // text 0-4 | image 5-8 | sound 9-14, video 15-26 | audio 27-36 | target audio 37-60, video 61-144
  EXPECT_EQ(l.condition_video_rows, 16);
  EXPECT_EQ(l.condition_audio_rows, 16);
  EXPECT_EQ(l.used, 145);
  EXPECT_EQ(l.positions[5 * 3], 5.0);   // image
  EXPECT_EQ(l.positions[9 * 3], 6.0);   // one unit later
  EXPECT_EQ(l.positions[15 * 3], 6.0);  // its picture starts with its sound
  const double clock = 6.0 + 25 / 3.;   // the picture is longer than 3 audio latents
  EXPECT_NEAR(l.positions[27 * 3], clock, 1e-12);
  EXPECT_NEAR(l.positions[37 * 3], clock + 5, 1e-12);
  EXPECT_NEAR(l.positions[61 * 3], clock + 5, 1e-12);
  std::vector<int64_t> sparse = range(15, 27);
  for (const int64_t row : range(61, 145)) sparse.push_back(row);
  EXPECT_EQ(l.sparse_rows, sparse);
}

TEST(Layout, StereoAudio_StandsAtTheOuterColumnsOfItsOwnGrid) {
  const PackedLayout l = pack_layout(with_references());
  const FrameGrid own = frame_grid(4, 6), target = frame_grid(6, 8);
  const auto column = [&](size_t row) { return l.positions[row * 3 + 2]; };
  EXPECT_EQ(column(9), own.width.front());
  EXPECT_EQ(column(12), own.width.back());
  EXPECT_EQ(column(27), target.width.front());
  EXPECT_EQ(column(36), target.width.back());
  EXPECT_EQ(column(37), target.width.front());
  EXPECT_EQ(column(60), target.width.back());
  EXPECT_EQ(l.positions[9 * 3], l.positions[12 * 3]);  // both channels at one time
  EXPECT_EQ(l.positions[10 * 3], l.positions[9 * 3] + 1);
}

TEST(Layout, VisionText_HasTheVideoTagAndOnlyPadsAreSparse) {
  LayoutRequest r = small();
  r.text_is_vision = {0, 1, 1, 1, 0};
  r.text_is_video_pad = {0, 0, 1, 0, 0};
  const PackedLayout l = pack_layout(r);
  const std::vector<int8_t> tags(l.tags.begin(), l.tags.begin() + 5);
  EXPECT_EQ(tags, (std::vector<int8_t>{1, 0, 0, 0, 1}));
  EXPECT_EQ(l.sparse_rows.front(), 2);
  EXPECT_EQ(l.sparse_rows[1], 29);
}

TEST(Layout, EveryRow_IsTextAudioOrVideoOnce) {
  LayoutRequest r = with_references();
  r.keyframes = {Keyframe::kLast};
  const PackedLayout l = pack_layout(r);
  std::multiset<int64_t> rows(l.video_rows.begin(), l.video_rows.end());
  rows.insert(l.audio_rows.begin(), l.audio_rows.end());
  for (const int64_t row : range(0, 5)) rows.insert(row);
  EXPECT_EQ(std::vector<int64_t>(rows.begin(), rows.end()), range(0, l.used));
}

TEST(Layout, RowTimesteps_KeepConditionsAtTheirNoiseLevel) {
  const PackedLayout l = pack_layout(with_references());
  const RowTimesteps rows = row_timesteps(l, {0.3f, 0.62f});
  EXPECT_EQ(rows.unique, (std::vector<float>{0.3f, 0.62f, 0.999f, 1.0f}));
  EXPECT_EQ(rows.inverse[0], 0);    // text
  EXPECT_EQ(rows.inverse[5], 2);    // image
  EXPECT_EQ(rows.inverse[9], 3);    // soundtrack of the reference
  EXPECT_EQ(rows.inverse[15], 2);   // its picture
  EXPECT_EQ(rows.inverse[37], 1);   // target audio
  EXPECT_EQ(rows.inverse[61], 0);   // target video
  EXPECT_EQ(rows.inverse[150], 0);  // padding
  const std::vector<int32_t> tables = adaln_rows(l, rows);
  EXPECT_EQ(tables[0], 0 * 3 + 1);
  EXPECT_EQ(tables[5], 2 * 3 + 0);
  EXPECT_EQ(tables[9], 3 * 3 + 2);
  EXPECT_EQ(tables[37], 1 * 3 + 2);
  EXPECT_EQ(tables[150], 0);
  // Past its noise level a condition goes along with the target.
  const RowTimesteps late = row_timesteps(l, {0.9995f, 0.62f});
  EXPECT_EQ(late.unique, (std::vector<float>{0.62f, 0.9995f, 1.0f}));
  EXPECT_EQ(late.inverse[5], 1);
}

TEST(Layout, EqualTimes_AreOneSlot) {
  const PackedLayout l = pack_layout(small());
  const RowTimesteps rows = row_timesteps(l, {0.0f, 0.0f});
  EXPECT_EQ(rows.unique, (std::vector<float>{0.0f}));
  EXPECT_EQ(rows.inverse, std::vector<int32_t>(128, 0));
}

TEST(Layout, RanksThatDoNotDivide64_GetMorePadding) {
  const PackedLayout one = pack_layout(small());
  for (const int64_t ranks : {1, 2, 8, 64}) EXPECT_EQ(pack_layout(small(), ranks).rows, one.rows);
  const PackedLayout seven = pack_layout(small(), 7);
  EXPECT_EQ(seven.rows, 448);
  EXPECT_EQ(seven.used, one.used);
  EXPECT_EQ(seven.video_rows, one.video_rows);
  EXPECT_EQ(seven.tags.back(), kTagPadding);
  EXPECT_EQ(seven.tags.size(), 448u);
  EXPECT_THROW(pack_layout(small(), 0), Error);
}

struct Refusal {
  const char* field;
  std::function<void(LayoutRequest&)> spoil;
};

class LayoutRefusal : public testing::TestWithParam<Refusal> {};

TEST_P(LayoutRefusal, NamesTheField) {
  LayoutRequest r = with_references();
  GetParam().spoil(r);
  try {
    pack_layout(r);
    FAIL() << "accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(e.message().rfind(GetParam().field, 0), 0u) << e.message();
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, LayoutRefusal,
    testing::Values(Refusal{"text_rows is 0", [](auto& r) { r.text_rows = 0; }},
                    Refusal{"text_rows is -4", [](auto& r) { r.text_rows = -4; }},
                    Refusal{"text_is_vision has 4",
                            [](auto& r) {
                              r.text_is_vision = {0, 0, 0, 0};
                            }},
                    Refusal{"text_is_video_pad has 1", [](auto& r) { r.text_is_video_pad = {1}; }},
                    Refusal{"keyframes is [last, first]",
                            [](auto& r) {
                              r.keyframes = {Keyframe::kLast, Keyframe::kFirst};
                            }},
                    Refusal{"keyframes is [first, first]",
                            [](auto& r) {
                              r.keyframes = {Keyframe::kFirst, Keyframe::kFirst};
                            }},
                    Refusal{"keyframes is [first, last, last]",
                            [](auto& r) {
                              r.keyframes = {Keyframe::kFirst, Keyframe::kLast, Keyframe::kLast};
                            }},
                    Refusal{"target.frames is 0", [](auto& r) { r.target.frames = 0; }},
                    Refusal{"target.height is 5", [](auto& r) { r.target.height = 5; }},
                    Refusal{"target.width is 0", [](auto& r) { r.target.width = 0; }},
                    Refusal{"target of 4000000 x 4000000 x 4000000",
                            [](auto& r) {
                              r.target = {4000000, 4000000, 4000000};
                            }},
                    Refusal{"target_audio_latents is 0",
                            [](auto& r) { r.target_audio_latents = 0; }},
                    Refusal{"references[0].visual.frames is 2",
                            [](auto& r) { r.references[0].visual.frames = 2; }},
                    Refusal{"references[0].audio_latents is 3",
                            [](auto& r) { r.references[0].audio_latents = 3; }},
                    Refusal{"references[1].visual.width is 7",
                            [](auto& r) { r.references[1].visual.width = 7; }},
                    Refusal{"references[1].audio_latents is -1",
                            [](auto& r) { r.references[1].audio_latents = -1; }},
                    Refusal{"references[2].visual is 1 x 2 x 2",
                            [](auto& r) {
                              r.references[2].visual = {1, 2, 2};
                            }},
                    Refusal{"references[2].audio_latents is 0",
                            [](auto& r) { r.references[2].audio_latents = 0; }},
                    Refusal{"the sequence has over", [](auto& r) {
                              r.references.resize(9, {ReferenceKind::kAudio, {}, 1000000});
                            }}));

TEST(Layout, BadTimes_AreRefused) {
  const PackedLayout l = pack_layout(small());
  EXPECT_THROW(row_timesteps(l, {std::nanf(""), 0.5f}), Error);
  EXPECT_THROW(adaln_rows(l, RowTimesteps{{0.f}, {0, 0}}), Error);
}

}  // namespace
}  // namespace h3::dit
