// A small drawing surface over cairo: pictures, text, lines, PNG out. Coordinates are pixels from
// the top left; text positions are baselines.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tessera/status.h"

namespace tessera::video {

struct Color {
  double r = 0, g = 0, b = 0, a = 1;
};

struct RgbImage {
  int width = 0, height = 0;
  std::vector<uint8_t> rgb;  // [height, width, 3]

  RgbImage() = default;
  RgbImage(int w, int h) : width(w), height(h), rgb(size_t(w) * h * 3) {}
  uint8_t* pixel(int y, int x) { return rgb.data() + (size_t(y) * width + x) * 3; }
  const uint8_t* pixel(int y, int x) const { return rgb.data() + (size_t(y) * width + x) * 3; }
};

enum class Align : uint8_t { kLeft, kCenter, kRight };

class Canvas {
 public:
  Canvas(int width, int height, Color background);
  ~Canvas();
  Canvas(const Canvas&) = delete;
  Canvas& operator=(const Canvas&) = delete;

  void image(const RgbImage& picture, double x, double y, double width, double height);
  void fill_rect(double x, double y, double width, double height, Color color);
  void stroke_rect(double x, double y, double width, double height, double line, Color color);
  void line(double x0, double y0, double x1, double y1, double width, Color color);
  /// `dash` in pixels, 0: solid.
  void polyline(const std::vector<std::pair<double, double>>& points, double width, Color color,
                double dash = 0);
  void dot(double x, double y, double radius, Color color);
  void text(double x, double y, const std::string& words, double size, Color color,
            Align align = Align::kLeft, bool bold = false);
  /// Reads upwards, centred on (x, y).
  void vertical_text(double x, double y, const std::string& words, double size, Color color);
  double text_width(const std::string& words, double size, bool bold = false);

  /// kOutOfMemory if the surface could not be made or encoded.
  Status png(std::vector<uint8_t>* out);

 private:
  struct Surface;
  std::unique_ptr<Surface> surface_;
};

}  // namespace tessera::video
