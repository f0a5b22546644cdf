// For the parity tests: reads commands from standard input and writes what the layout and the
// sampler compute as raw little-endian arrays. Commands, one a line:
//   layout PREFIX TEXT VISION PADS KEYFRAMES REFERENCES T H W TA TV TAU CV CA
//   sigmas PREFIX FORWARDS SHIFT
//   trajectory PREFIX FORWARDS SHIFT COUNT    (reads PREFIX.x and PREFIX.v, float32)
//   canvas|image|timing ...                   (answers on standard output)
// Lists are comma-separated or "-". References: i:T:H:W, v:T:H:W:AUDIO, a:AUDIO.
#include <cstdio>
#include <fstream>
#include <iostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "h3/models/dit/geometry.h"
#include "h3/models/dit/layout.h"
#include "h3/models/dit/sampling.h"

namespace {

using namespace h3::dit;

template <class T>
void write(const std::string& path, const std::vector<T>& values) {
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(values.data()),
            std::streamsize(values.size() * sizeof(T)));
  if (!out.flush()) throw std::runtime_error("cannot write " + path);
}

std::vector<float> read_floats(const std::string& path, size_t count) {
  std::vector<float> values(count);
  std::ifstream in(path, std::ios::binary);
  in.read(reinterpret_cast<char*>(values.data()), std::streamsize(count * sizeof(float)));
  if (!in) throw std::runtime_error("cannot read " + path);
  return values;
}

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  if (text == "-") return parts;
  std::stringstream in(text);
  for (std::string part; std::getline(in, part, at);) parts.push_back(part);
  return parts;
}

std::vector<uint8_t> flags(const std::string& text, int64_t rows) {
  std::vector<uint8_t> out(static_cast<size_t>(rows), 0);
  for (const std::string& row : split(text, ',')) out.at(std::stoul(row)) = 1;
  return out;
}

Reference reference(const std::string& text) {
  const std::vector<std::string> p = split(text, ':');
  const auto n = [&](size_t i) { return int64_t(std::stoll(p.at(i))); };
  if (p.at(0) == "a") return {ReferenceKind::kAudio, {}, n(1)};
  if (p.at(0) == "i") return {ReferenceKind::kImage, {n(1), n(2), n(3)}, 0};
  return {ReferenceKind::kVideo, {n(1), n(2), n(3)}, n(4)};
}

void layout(std::istream& in) {
  std::string prefix, vision, pads, keyframes, references;
  LayoutRequest r;
  StepTimes times;
  in >> prefix >> r.text_rows >> vision >> pads >> keyframes >> references >> r.target.frames >>
      r.target.height >> r.target.width >> r.target_audio_latents >> times.video >> times.audio >>
      times.condition_video >> times.condition_audio;
  if (!in) throw std::runtime_error("layout: too few values");
  r.text_is_vision = flags(vision, r.text_rows);
  r.text_is_video_pad = flags(pads, r.text_rows);
  for (const std::string& k : split(keyframes, ',')) {
    r.keyframes.push_back(k == "first" ? Keyframe::kFirst : Keyframe::kLast);
  }
  for (const std::string& text : split(references, ',')) r.references.push_back(reference(text));
  const PackedLayout out = pack_layout(r);
  const RowTimesteps rows = row_timesteps(out, times);
  write(prefix + ".positions", out.positions);
  write(prefix + ".tags", out.tags);
  write(prefix + ".video_rows", out.video_rows);
  write(prefix + ".audio_rows", out.audio_rows);
  write(prefix + ".sparse_rows", out.sparse_rows);
  write(prefix + ".unique", rows.unique);
  write(prefix + ".inverse", rows.inverse);
  write(prefix + ".adaln", adaln_rows(out, rows));
  write(prefix + ".counts",
        std::vector<int64_t>{out.text_rows, out.used, out.rows, out.condition_video_rows,
                             out.condition_audio_rows});
}

void sampling(const std::string& command, std::istream& in) {
  std::string prefix;
  int64_t forwards = 0;
  double shift = 0;
  in >> prefix >> forwards >> shift;
  const std::vector<float> sigmas = sigma_grid(forwards, shift);
  write(prefix + ".sigmas", sigmas);
  if (command == "sigmas") return;
  size_t count = 0;
  in >> count;
  std::vector<float> x = read_floats(prefix + ".x", count), all;
  const std::vector<float> v = read_floats(prefix + ".v", count * size_t(forwards));
  for (size_t i = 0; i < size_t(forwards); ++i) {
    euler_step(x, std::span(v).subspan(i * count, count), sigmas[i], sigmas[i + 1]);
    all.insert(all.end(), x.begin(), x.end());
  }
  write(prefix + ".out", all);
}

void run(const std::string& line) {
  std::stringstream in(line);
  std::string command;
  in >> command;
  if (command == "layout") return layout(in);
  if (command == "sigmas" || command == "trajectory") return sampling(command, in);
  if (command == "canvas") {
    double width = 0, height = 0;
    int64_t edge = 0;
    in >> width >> height >> edge;
    const Canvas c = target_canvas(width, height, edge);
    std::printf("%lld %lld\n", (long long)c.width, (long long)c.height);
  } else if (command == "image") {
    Canvas image;
    in >> image.width >> image.height;
    const Canvas c = reference_image_canvas(image, {1344, 768}, ReferenceResize::kDiffusers);
    std::printf("%lld %lld\n", (long long)c.width, (long long)c.height);
  } else if (command == "timing") {
    int64_t frames = 0;
    in >> frames;
    const Timing t = timing_of_frames(aligned_frames(frames));
    std::printf("%lld %lld %lld\n", (long long)t.frames, (long long)t.latent_frames,
                (long long)t.audio_latents);
  } else {
    throw std::runtime_error("unknown command " + line);
  }
}

}  // namespace

int main() {
  try {
    for (std::string line; std::getline(std::cin, line);) run(line);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "layout_probe: %s\n", e.what());
    return 1;
  }
  return 0;
}
