// Tile-parallel decoding against one rank, which every rank runs as well: the same bits. The
// launcher starts 1 to 4 ranks: h3_run_ranks 4 h3_vae_video_ranks_test.
#include <ATen/Functions.h>

#include <cstdio>

#include "h3/models/vae_video/tests/vae_video_test_util.h"
#include "h3/models/vae_video/tiles.h"
#include "h3/parallel/world.h"

namespace h3::vae_video {
namespace {

parallel::World* g_world = nullptr;  // of this process, set by main

parallel::Group& group() { return g_world->group(parallel::GroupKind::kVaeDecode); }
bool last_rank() { return g_world->rank() + 1 == g_world->size(); }

at::Tensor decoded(VideoVae& vae, const at::Tensor& latents, const DecodeOptions& options) {
  std::vector<at::Tensor> parts;
  vae.decode(
      latents, [&](const FrameChunk& chunk) { parts.push_back(chunk.frames); }, options);
  return at::cat(parts, 2);
}

struct Size {
  int64_t h, w, tiles;  // latents; tiles of 8 with an overlap of at least 2
};
// 5, 3 and 6 tiles divide by no number of ranks above 1 but their own factors; 1 and 3 are fewer
// than four ranks.
constexpr Size kSizes[] = {{8, 32, 5}, {8, 20, 3}, {14, 20, 6}, {8, 8, 1}, {16, 26, 12}};

// Behaviour 25.
TEST(TileParallelDecode, BitExact) {
  Engine engine(small_config(), Part::kDecoder);
  for (const Size& size : kSizes) {
    const TileGrid grid{split_tiles(size.h * 4, {32, 8}, 4), split_tiles(size.w * 4, {32, 8}, 4)};
    ASSERT_EQ(grid.count(), size.tiles);
    const at::Tensor z = random_normal({1, 24, 12, size.h, size.w}, static_cast<uint64_t>(size.w));
    for (const int64_t batch : {1, 2}) {
      const at::Tensor alone = decoded(engine.vae, z, {.tile_batch = batch});
      const int64_t before = group().collectives();
      const at::Tensor shared = decoded(engine.vae, z, {.tile_batch = batch, .group = &group()});
      EXPECT_TRUE(shared.equal(alone)) << size.tiles << " tiles, batch " << batch;
      const bool sharing = g_world->size() > 1 && g_world->size() <= size.tiles;
      EXPECT_EQ(group().collectives() - before, sharing ? 2 : 0);  // one a clip
    }
  }
}

TEST(TileParallelDecode, FirstRankAlone_MayTakeTheFrames) {
  Engine engine(small_config(), Part::kDecoder);
  const at::Tensor z = random_normal({1, 24, 8, 8, 32}, 1);
  if (g_world->rank() == 0) {
    EXPECT_TRUE(decoded(engine.vae, z, {.tile_batch = 1, .group = &group()})
                    .equal(decoded(engine.vae, z, {.tile_batch = 1})));
  } else {
    EXPECT_NO_THROW(engine.vae.decode(z, {}, {.tile_batch = 1, .group = &group()}));
  }
  // The automatic batch is agreed on; without memory figures it is 1.
  EXPECT_TRUE(
      decoded(engine.vae, z, {.group = &group()}).equal(decoded(engine.vae, z, {.tile_batch = 1})));
}

TEST(TileParallelDecode, Image_BitExact) {
  Engine engine(small_config(), Part::kDecoder);
  const at::Tensor z = random_normal({1, 24, 1, 8, 20}, 2);
  EXPECT_TRUE(engine.vae.decode_image(z, {.group = &group()}).equal(engine.vae.decode_image(z)));
}

TEST(TileParallelEncode, BitExact_WithTheSameNoise) {
  Engine engine(small_config(), Part::kEncoder);
  const at::Tensor rgb = random_bytes({22, 32, 80, 3}, 3);  // 3 tiles
  EXPECT_TRUE(
      engine.vae.encode_video(rgb, {.group = &group()}).equal(engine.vae.encode_video(rgb)));
  const at::Tensor image = rgb.narrow(0, 0, 1);
  EXPECT_TRUE(
      engine.vae.encode_images(image, {.group = &group()}).equal(engine.vae.encode_images(image)));
}

TEST(TileParallelDecode, DifferentCalls_AreRefusedOnAllRanks) {
  if (g_world->size() == 1) GTEST_SKIP() << "needs two ranks";
  Engine engine(small_config(), Part::kDecoder);
  const at::Tensor z = random_normal({1, 24, last_rank() ? 8 : 7, 8, 32}, 4);
  expect_parts(thrown_by([&] { decoded(engine.vae, z, {.group = &group()}); }),
               ErrorCode::kInvalidArgument, {"call differently"});
}

TEST(RunTiles, OrderIsKept_AndEveryForwardIsFull) {
  const int64_t count = 5;
  std::vector<int64_t> seen;
  size_t forwards = 0;
  run_tiles(
      count, 2, &group(),
      [&](std::span<const int64_t> numbers) {
        ++forwards;
        EXPECT_EQ(numbers.size(), 2u);
        std::vector<at::Tensor> out;
        for (const int64_t n : numbers) out.push_back(at::full({1, 3}, n, at::kFloat));
        return out;
      },
      [&](const at::Tensor& tile) { seen.push_back(tile[0][2].item<int64_t>()); });
  EXPECT_EQ(seen, (std::vector<int64_t>{0, 1, 2, 3, 4}));
  const auto own = owned_tiles(count, g_world->rank(), g_world->size()).size();
  EXPECT_EQ(forwards, (own + 1) / 2);
}

}  // namespace
}  // namespace h3::vae_video

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  namespace hp = h3::parallel;
  hp::WorldOptions options = hp::WorldOptions::from_environment();
  const int ranks = options.identity.world_size;
  options.degrees = hp::resolve_degrees({.world_size = ranks, .ulysses = ranks});
  std::printf("seed %llu\n", static_cast<unsigned long long>(h3::vae_video::kSeed));
  return hp::run_rank(options, [](hp::World& world) {
    h3::vae_video::g_world = &world;
    return RUN_ALL_TESTS();
  });
}
