// For the parity tests: reads commands from standard input, writes noise rows as raw float32 files.
//   video PATH SEED T H W C | audio PATH SEED LATENTS C
//   visual_condition PATH SEED T H W TARGET_FRAMES CONDITIONS C | audio_condition PATH SEED LATENTS
//   C mix PATH LEVEL COUNT    (reads PATH.clean and PATH.noise) normalize|denormalize PATH T H W C
//   (reads PATH.x, PATH.mean, PATH.std)
#include <ATen/ops/from_blob.h>

#include <cstdio>
#include <fstream>
#include <iostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "h3/models/dit/noise.h"

namespace {

using namespace h3::dit;

void write(const std::string& path, const at::Tensor& rows) {
  std::ofstream out(path, std::ios::binary);
  out.write(static_cast<const char*>(rows.const_data_ptr()), std::streamsize(rows.nbytes()));
  if (!out.flush()) throw std::runtime_error("cannot write " + path);
}

at::Tensor read(const std::string& path, const std::vector<int64_t>& sizes) {
  int64_t count = 1;
  for (const int64_t n : sizes) count *= n;
  std::vector<float> values(static_cast<size_t>(count));
  std::ifstream in(path, std::ios::binary);
  in.read(reinterpret_cast<char*>(values.data()), std::streamsize(values.size() * sizeof(float)));
  if (!in) throw std::runtime_error("cannot read " + path);
  return at::from_blob(values.data(), sizes, at::kFloat).clone();
}

void run(const std::string& line) {
  std::stringstream in(line);
  std::string command, path;
  uint64_t seed = 0;
  in >> command >> path;
  const auto next = [&] {
    int64_t n = 0;
    if (!(in >> n)) throw std::runtime_error("too few values: " + line);
    return n;
  };
  const auto shape = [&] {
    LatentShape s;
    s.frames = next();
    s.height = next();
    s.width = next();
    return s;
  };
  if (command == "mix") {
    double level = 0;
    in >> level;
    const int64_t count = next();
    const at::Tensor clean = read(path + ".clean", {count}), noise = read(path + ".noise", {count});
    return write(path, mix_condition(clean, noise, level));
  }
  if (command == "normalize" || command == "denormalize") {
    const LatentShape s = shape();
    const int64_t c = next();
    const at::Tensor x = read(path + ".x", {1, c, s.frames, s.height, s.width});
    const at::Tensor mean = read(path + ".mean", {c}), std = read(path + ".std", {c});
    return write(path, command == "normalize" ? normalize_latents(x, mean, std)
                                              : denormalize_latents(x, mean, std));
  }
  in >> seed;
  if (command == "video") {
    const LatentShape s = shape();
    return write(path, video_noise(seed, s, next()));
  }
  if (command == "visual_condition") {
    const LatentShape s = shape();
    const int64_t target = next(), conditions = next();
    return write(path, visual_condition_noise(seed, s, target, conditions, next()));
  }
  const int64_t latents = next();
  if (command == "audio") return write(path, audio_noise(seed, latents, next()));
  if (command == "audio_condition")
    return write(path, audio_condition_noise(seed, latents, next()));
  throw std::runtime_error("unknown command " + line);
}

}  // namespace

int main() {
  try {
    for (std::string line; std::getline(std::cin, line);) run(line);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "noise_probe: %s\n", e.what());
    return 1;
  }
  return 0;
}
