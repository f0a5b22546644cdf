// Tiles, clips and owners against the tables of the published model.
#include "h3/models/vae_video/tiling.h"

#include <gtest/gtest.h>

#include <numeric>

#include "h3/common/error.h"

namespace h3::vae_video {
namespace {

using List = std::vector<int64_t>;

template <class Call>
std::string refusal(Call call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

TEST(SplitTiles, Published_StartsAndOverlaps) {
  const struct {
    int64_t length;
    List starts, overlaps;
  } cases[] = {
      {256, {0}, {}},
      {32, {0}, {}},
      {272, {0, 16}, {240}},
      {448, {0, 192}, {64}},
      {544, {0, 144, 288}, {112, 112}},
      {720, {0, 144, 304, 464}, {112, 96, 96}},
      {768, {0, 160, 336, 512}, {96, 80, 80}},
      {960, {0, 176, 352, 528, 704}, {80, 80, 80, 80}},
      {1088, {0, 160, 320, 480, 656, 832}, {96, 96, 96, 80, 80}},
      {1248, {0, 160, 320, 480, 640, 816, 992}, {96, 96, 96, 96, 80, 80}},
      {1280, {0, 160, 320, 496, 672, 848, 1024}, {96, 96, 80, 80, 80, 80}},
      {1344, {0, 176, 352, 528, 704, 896, 1088}, {80, 80, 80, 80, 64, 64}},
      {1920,
       {0, 176, 352, 528, 704, 896, 1088, 1280, 1472, 1664},
       {80, 80, 80, 80, 64, 64, 64, 64, 64}},
  };
  for (const auto& c : cases) {
    const TileAxis axis = split_tiles(c.length, {}, 16);
    EXPECT_EQ(axis.starts, c.starts) << c.length;
    EXPECT_EQ(axis.overlaps, c.overlaps) << c.length;
    EXPECT_EQ(axis.size, std::min<int64_t>(c.length, 256));
  }
}

TEST(SplitTiles, EveryLength_IsCoveredWithTheFewestTiles) {
  for (const TileSettings settings :
       {TileSettings{256, 64}, TileSettings{64, 0}, TileSettings{64, 48}}) {
    for (int64_t length = 16; length <= 2048; length += 16) {
      const TileAxis axis = split_tiles(length, settings, 16);
      ASSERT_EQ(axis.starts.back() + axis.size, length);
      for (const int64_t overlap : axis.overlaps) {
        ASSERT_GE(overlap, settings.min_overlap);
        ASSERT_LT(overlap, axis.size);
      }
      const int64_t fewer = axis.count() - 1;
      if (fewer > 0) {
        ASSERT_LT(settings.size * fewer - settings.min_overlap * (fewer - 1), length);
      }
    }
  }
}

TEST(SplitTiles, WrongSizes_AreRefused) {
  EXPECT_NE(refusal([] { split_tiles(250, {}, 16); }).find("250 pixels"), std::string::npos);
  EXPECT_NE(refusal([] { split_tiles(0, {}, 16); }).find("positive multiples"), std::string::npos);
  EXPECT_NE(refusal([] {
              split_tiles(512, {64, 64}, 16);
            }).find("overlap below"),
            std::string::npos);
  EXPECT_NE(refusal([] {
              split_tiles(512, {72, 16}, 16);
            }).find("multiples of 16"),
            std::string::npos);
}

TEST(TileGrid, PublishedVideo_Is28Tiles) {
  const TileGrid grid{split_tiles(768, {}, 16), split_tiles(1344, {}, 16)};
  EXPECT_EQ(grid.count(), 28);
  const TileGrid latents = grid.divided(16);
  EXPECT_EQ(latents.columns.starts, (List{0, 11, 22, 33, 44, 56, 68}));
  EXPECT_EQ(latents.rows.size, 16);
  EXPECT_EQ(latents.rows.overlaps, (List{6, 5, 5}));
}

TEST(TemporalGeometry, Published) {
  const TemporalGeometry g{VideoVaeConfig{}};
  EXPECT_EQ(g.pre_padding, 3);
  EXPECT_EQ(g.clip_latents, 5);
  EXPECT_EQ(g.latent_overlap, 2);
  EXPECT_EQ(g.frame_overlap, 5);
  EXPECT_EQ(g.decode_frames(), 28);
}

TEST(PlanDecode, Published_Table) {
  const TemporalGeometry g{VideoVaeConfig{}};
  const struct {
    int64_t latents, padding, clips, frames;
  } cases[] = {{3, 4, 1, 9},    {4, 3, 1, 13},    {5, 2, 1, 17},    {6, 1, 1, 18},
               {7, 0, 1, 22},   {8, 4, 2, 26},    {12, 0, 2, 39},   {32, 0, 6, 107},
               {37, 0, 7, 124}, {72, 0, 14, 243}, {107, 0, 21, 362}};
  for (const auto& c : cases) {
    const DecodePlan plan = plan_decode(g, c.latents);
    EXPECT_EQ(plan.padding, c.padding) << c.latents;
    EXPECT_EQ(plan.clips, c.clips) << c.latents;
    EXPECT_EQ(plan.frames, c.frames) << c.latents;
  }
  for (const int64_t latents : {0, 1, 2}) {
    EXPECT_NE(refusal([&] { plan_decode(g, latents); }).find("planned non-positive output frames"),
              std::string::npos);
  }
}

TEST(PlanEncode, LegalLengths_GoThereAndBack) {
  const TemporalGeometry g{VideoVaeConfig{}};
  for (int64_t n = 1; n < 30; ++n) {
    const int64_t frames = 17 * n + 5;
    EXPECT_EQ(plan_encode(g, frames).latents, 5 * n + 2);
    EXPECT_EQ(plan_decode(g, 5 * n + 2).frames, frames);
    for (const int64_t more : {0, 1, 16}) EXPECT_EQ(trimmed_frames(g, frames + more), frames);
  }
  EXPECT_NE(refusal([&] { trimmed_frames(g, 21); }).find("not enough frames"), std::string::npos);
}

TEST(OwnedTiles, RoundRobin_EachOnce) {
  EXPECT_EQ(owned_tiles(28, 3, 8), (List{3, 11, 19, 27}));
  EXPECT_EQ(owned_tiles(28, 4, 8), (List{4, 12, 20}));
  for (const int64_t tiles : {1, 3, 5, 28}) {
    for (int64_t ranks = 1; ranks <= tiles; ++ranks) {
      int64_t sum = 0;
      for (int64_t rank = 0; rank < ranks; ++rank) {
        const List own = owned_tiles(tiles, rank, ranks);
        EXPECT_EQ(static_cast<int64_t>(own.size()), (tiles - rank + ranks - 1) / ranks);
        sum = std::accumulate(own.begin(), own.end(), sum);
      }
      EXPECT_EQ(sum, tiles * (tiles - 1) / 2);
    }
  }
  // More ranks than tiles: all have all.
  for (int64_t rank = 0; rank < 4; ++rank) EXPECT_EQ(owned_tiles(3, rank, 4), (List{0, 1, 2}));
}

// Behaviour 26 of the seed.
TEST(DecodeMode, UsesReleasedTiledRecipe) {
  for (const char* mode : {"", "none", "auto", "tiled"}) {
    const DecodeRecipe recipe = decode_recipe(mode);
    EXPECT_TRUE(recipe.decoder_tiling);
    EXPECT_TRUE(recipe.parallel_tiling);
    EXPECT_FALSE(recipe.decoder_parallel);
  }
}

TEST(DecodeMode, UnvalidatedModesAreRejected) {
  for (const char* mode : {"spatial", "spatial_shard", "patch", "fast"}) {
    const std::string text = refusal([&] { decode_recipe(mode); });
    EXPECT_NE(text.find("use tiled"), std::string::npos) << text;
    EXPECT_NE(text.find(mode), std::string::npos) << text;
  }
}

TEST(TileBatch, FollowsFreeMemory) {
  const DecodeMemory memory = decode_memory(VideoVaeConfig{}, 1, 48, 84, 2);
  EXPECT_EQ(choose_tile_batch(28, memory, 0), 1);                // unknown
  EXPECT_EQ(choose_tile_batch(28, memory, memory.total(1)), 1);  // hardly room
  EXPECT_EQ(choose_tile_batch(28, memory, memory.total(3) / 9 * 10 + 100), 3);
  EXPECT_EQ(choose_tile_batch(28, memory, int64_t{100} << 30), 4);
  EXPECT_EQ(choose_tile_batch(5, memory, int64_t{100} << 30), 3);  // 3 + 2, not 4 + 1
  EXPECT_EQ(choose_tile_batch(1, memory, int64_t{100} << 30), 1);
}

TEST(DecodeMemory, DoesNotKnowTheLength_AndIsSmall) {
  const VideoVaeConfig c;
  const DecodeMemory alone = decode_memory(c, 1, 48, 84, 2);
  EXPECT_LT(alone.total(4), int64_t{6} << 30);
  EXPECT_GT(alone.clip, int64_t{28} * 768 * 1344 * 3 * 4);
  // Tiles that are exchanged are all there at once, but no more of them with more ranks.
  EXPECT_GT(decode_memory(c, 1, 48, 84, 2, 2).waiting, alone.waiting);
  EXPECT_LT(decode_memory(c, 1, 48, 84, 2, 8).waiting, decode_memory(c, 1, 48, 84, 2, 2).waiting);
}

}  // namespace
}  // namespace h3::vae_video
