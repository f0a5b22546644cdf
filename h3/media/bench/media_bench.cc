// Frames per second of the movie writer.
//   h3_media_bench OUT.mp4 [WIDTH HEIGHT FRAMES CRF PRESET THREADS]
// The picture is smooth and moves, with a little noise: neither the best nor the worst case.
#include <sys/resource.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <string>
#include <vector>

#include "h3/media/movie_writer.h"

namespace {

using namespace h3::media;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void draw(int width, int height, int frame, std::vector<uint8_t>* rgb) {
  uint32_t noise = 12345u + static_cast<uint32_t>(frame);
  size_t i = 0;
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      noise = noise * 1664525u + 1013904223u;
      const int grain = static_cast<int>(noise >> 29);
      (*rgb)[i++] = static_cast<uint8_t>(((x + 3 * frame) * 200 / width + grain) & 255);
      (*rgb)[i++] = static_cast<uint8_t>(((y + 2 * frame) * 200 / height + grain) & 255);
      (*rgb)[i++] = static_cast<uint8_t>((((x ^ y) >> 2) + frame + grain) & 255);
    }
  }
}

int run(int argc, char** argv) {
  const auto number = [&](int at, int fallback) {
    return argc > at ? std::atoi(argv[at]) : fallback;
  };
  MovieSettings settings;
  settings.width = number(2, 1344);
  settings.height = number(3, 768);
  settings.frames = number(4, 124);
  settings.crf = number(5, 25);
  if (argc > 6) settings.preset = argv[6];
  settings.threads = number(7, 0);
  std::vector<uint8_t> rgb(static_cast<size_t>(settings.width) * settings.height * 3);
  const int64_t samples = settings.frames * settings.sample_rate / settings.fps;
  std::vector<float> tone(static_cast<size_t>(samples));
  for (size_t i = 0; i < tone.size(); ++i) {
    tone[i] = 0.3f * std::sin(0.05f * static_cast<float>(i));
  }
  const double start = now();
  double drawing = 0;
  MovieWriter writer(argv[1], settings);
  writer.add_audio(tone.data(), tone.data(), samples);
  for (int64_t f = 0; f < settings.frames; ++f) {
    const double before = now();
    draw(settings.width, settings.height, static_cast<int>(f), &rgb);
    drawing += now() - before;
    writer.add_frame(rgb.data());
  }
  writer.finish();
  const double seconds = now() - start - drawing;
  struct rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  std::printf(
      "%lld frames of %dx%d, preset %s, CRF %d: %.2f s, %.1f frames/s, %.1f ms of "
      "processor time a frame with drawing; %.2f MB, peak %.0f MB of memory\n",
      static_cast<long long>(settings.frames), settings.width, settings.height,
      settings.preset.c_str(), settings.crf, seconds,
      static_cast<double>(settings.frames) / seconds,
      (static_cast<double>(usage.ru_utime.tv_sec) * 1e3 +
       static_cast<double>(usage.ru_utime.tv_usec) / 1e3) /
          static_cast<double>(settings.frames),
      static_cast<double>(std::filesystem::file_size(argv[1])) / 1e6,
      static_cast<double>(usage.ru_maxrss) / 1e3);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr,
                 "usage: h3_media_bench OUT.mp4 [WIDTH HEIGHT FRAMES CRF PRESET THREADS]\n");
    return 2;
  }
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "media_bench: %s\n", error.what());
    return 1;
  }
}
