// Reading a video file into RGB frames of a chosen size with the FFmpeg libraries.
//
//   ClipInfo info;
//   if (Status s = probe_clip("in.mp4", &info); !s.ok()) return s;
//   Clip clip;
//   status = decode_clip(info, {.width = 640, .height = 352, .frames = 64}, &clip);
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/status.h"

namespace tessera::video {

/// What the file says about its first video stream; nothing is decoded for it.
struct ClipInfo {
  std::string path;
  std::string container;  // FFmpeg's name: "mov,mp4,m4a,3gp,3g2,mj2"
  std::string codec;      // "h264"
  int width = 0, height = 0;
  double fps = 0;               // 0 if unknown
  int64_t declared_frames = 0;  // by the container, or duration * fps; 0 if unknown
};

/// Opens `path` far enough to fill `out`. kInvalidArgument if it does not exist, is a folder, is
/// not a video, or has no video stream.
Status probe_clip(const std::string& path, ClipInfo* out);

struct DecodeRequest {
  int width = 0, height = 0;  // pixels of the scaled frames, each >= 1
  int frames = 0;             // stop after this many, >= 1
  int threads = 0;            // decoder threads, 0 = all; never changes the pixels
};

struct Clip {
  ClipInfo info;
  int width = 0, height = 0, frames = 0;
  int64_t lost_frames = 0;     // of the requested ones: declared by the file, but not decodable
  int64_t damaged_frames = 0;  // used, but the decoder reported damage and concealed it
  std::vector<uint8_t> rgb;    // [frames, height, width, 3]

  const uint8_t* pixel(int frame, int y, int x) const {
    return rgb.data() + ((size_t(frame) * height + y) * width + x) * 3;
  }
};

/// Decodes the first frames of the clip. A damaged or cut-off file gives the frames that decode,
/// with the rest counted in `lost_frames`; kInvalidArgument if not a single one does.
Status decode_clip(const ClipInfo& info, const DecodeRequest& request, Clip* out);

}  // namespace tessera::video
