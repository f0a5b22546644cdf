// Values of the published video VAE, and of one small enough for tests.
#include <functional>
#include <numeric>

#include "h3/models/vae_video/config.h"

namespace h3::vae_video {
namespace {

int64_t product(const std::vector<int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), int64_t{1}, std::multiplies<>());
}

}  // namespace

std::vector<float> published_latents_mean() {
  return {0.858090341091156f,    -0.9606591463088989f, 1.0661640167236328f,   -0.5090325474739075f,
          -0.2727581858634949f,  -1.3675414323806763f, -0.2553254961967468f,  -0.26907554268836975f,
          -0.5376840829849243f,  -0.0464097298681736f, 0.6657370328903198f,   0.19690127670764923f,
          -0.5460608005523682f,  -0.4035342037677765f, -0.23683024942874908f, 0.25928452610969543f,
          -0.30133944749832153f, 0.211341992020607f,   -1.1206848621368408f,  0.3581933379173279f,
          -0.04225143790245056f, 0.2604829967021942f,  0.22864092886447906f,  0.7056031823158264f};
}

std::vector<float> published_latents_std() {
  return {1.2223774194717407f, 1.2767263650894165f,  1.6831774711608887f, 1.7549455165863037f,
          1.5636216402053833f, 2.194143533706665f,   0.9653137922286987f, 1.0569885969161987f,
          0.841948926448822f,  0.7729952931404114f,  1.8955937623977661f, 0.946841835975647f,
          0.7996809482574463f, 0.44988900423049927f, 0.7197399735450745f, 0.6936293244361877f,
          2.961095094680786f,  2.7694199085235596f,  3.0496184825897217f, 2.1088054180145264f,
          3.276226282119751f,  3.1627357006073f,     2.2816812992095947f, 2.6127843856811523f};
}

int64_t VideoVaeConfig::space_ratio() const { return product(space_down); }
int64_t VideoVaeConfig::time_ratio() const { return product(time_down); }

VideoVaeConfig tiny_video_vae_config() {
  VideoVaeConfig c;
  c.widths = {32, 64};
  c.space_down = c.time_down = {2, 2};
  c.blocks_per_level = 1;
  c.layers = 4;
  c.heads = 4;
  c.head_dim = 32;
  c.encode_tiles = c.decode_tiles = {32, 8};
  return c;
}

VideoVaeConfig tiny_released_ratio_config() {
  VideoVaeConfig c;
  c.widths = {32, 32, 64, 64, 64};
  c.space_down = {2, 2, 2, 2, 1};
  c.time_down = {1, 2, 2, 1, 1};
  c.blocks_per_level = 1;
  c.layers = 2;
  c.heads = 2;
  c.encode_tiles = c.decode_tiles = {64, 16};
  return c;
}

}  // namespace h3::vae_video
