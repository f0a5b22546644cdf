// For the tests against Pillow and the ffmpeg program: one call of the readers, raw data out.
//   h3_media_probe probe FILE                     one "key value" a line
//   h3_media_probe image FILE OUT [W H [cover]]   rgb24; prints "width height"
//   h3_media_probe video FILE OUT W H START MAX   rgb24; prints "width height frames damaged"
//   h3_media_probe audio FILE OUT START MAX RATE SOUNDTRACK_RATE   f32 left then right; "samples"
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <string>
#include <vector>

#include "h3/media/reader.h"

namespace {

using namespace h3::media;

void write(const std::string& path, const void* data, size_t bytes, bool append = false) {
  std::ofstream out(path, append ? std::ios::binary | std::ios::app : std::ios::binary);
  out.write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
}

void print_info(const MediaInfo& info) {
  const char* kinds[] = {"image", "video", "audio"};
  std::printf("kind %s\ncontainer %s\n", kinds[static_cast<int>(info.kind)],
              info.container.c_str());
  if (const auto& p = info.picture) {
    std::printf(
        "codec %s\nformat %s\nsize %dx%d\nshown %dx%d\norientation %d\nalpha %d\n"
        "fps %.4f\nframes %lld\nseconds %.4f\n",
        p->codec.c_str(), p->pixel_format.c_str(), p->width, p->height, p->shown_width,
        p->shown_height, p->orientation, p->alpha, p->fps, static_cast<long long>(p->frames),
        p->seconds);
  }
  if (const auto& s = info.sound) {
    std::printf("sound %s\nlayout %s\nrate %d\nchannels %d\nsound_seconds %.4f\n", s->codec.c_str(),
                s->layout.c_str(), s->sample_rate, s->channels, s->seconds);
  }
  for (const auto& [key, value] : info.settings) {
    std::printf("setting %s %s\n", key.c_str(), value.c_str());
  }
}

int run(const std::vector<std::string>& a) {
  const auto integer = [&](size_t at) { return at < a.size() ? std::atoi(a[at].c_str()) : 0; };
  const auto real = [&](size_t at) { return at < a.size() ? std::atof(a[at].c_str()) : 0.0; };
  if (a.size() >= 2 && a[0] == "probe") {
    print_info(probe_media(a[1]));
  } else if (a.size() >= 3 && a[0] == "image") {
    Image image = read_image(a[1]);
    if (integer(3) > 0) {
      image = a.size() > 5 ? cover_crop(image, integer(3), integer(4))
                           : resize_lanczos(image, integer(3), integer(4));
    }
    write(a[2], image.rgb.data(), image.rgb.size());
    std::printf("%d %d\n", image.width, image.height);
  } else if (a.size() >= 3 && a[0] == "video") {
    VideoReader reader(a[1], {.width = integer(3),
                              .height = integer(4),
                              .start_seconds = real(5),
                              .max_frames = integer(6)});
    Image frame;
    write(a[2], nullptr, 0);
    while (reader.next(&frame)) write(a[2], frame.rgb.data(), frame.rgb.size(), true);
    std::printf("%d %d %lld %lld\n", frame.width, frame.height,
                static_cast<long long>(reader.delivered()),
                static_cast<long long>(reader.damaged()));
  } else if (a.size() >= 7 && a[0] == "audio") {
    const Audio audio = read_audio(a[1], {.start_seconds = real(3),
                                          .max_seconds = real(4),
                                          .sample_rate = integer(5),
                                          .soundtrack_rate = integer(6)});
    write(a[2], audio.left.data(), audio.left.size() * sizeof(float));
    write(a[2], audio.right.data(), audio.right.size() * sizeof(float), true);
    std::printf("%zu\n", audio.left.size());
  } else {
    std::fprintf(stderr, "usage: h3_media_probe probe|image|video|audio FILE [OUT ...]\n");
    return 2;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(std::vector<std::string>(argv + 1, argv + argc));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "media_probe: %s\n", error.what());
    return 1;
  }
}
