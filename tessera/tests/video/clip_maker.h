// Lossless test clips (FFV1 in Matroska), so that tests know every pixel.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>

namespace tessera::video {

using Paint = std::function<std::array<uint8_t, 3>(int frame, int y, int x)>;

/// A path in the test's own folder below the system's temporary folder.
std::string scratch_path(const std::string& name);

/// Writes the clip and returns its path; a failed step fails the running test.
std::string make_clip(const std::string& name, int frames, int width, int height,
                      const Paint& paint);

/// A clip with smooth moving content, different everywhere.
std::string make_moving_clip(const std::string& name, int frames, int width, int height);

}  // namespace tessera::video
