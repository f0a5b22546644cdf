#include "tessera/video/canvas.h"

#include <cairo.h>

#include <cstring>

namespace tessera::video {
namespace {

constexpr const char* kFont = "DejaVu Sans";

cairo_status_t append(void* to, const unsigned char* data, unsigned int length) {
  auto* bytes = static_cast<std::vector<uint8_t>*>(to);
  bytes->insert(bytes->end(), data, data + length);
  return CAIRO_STATUS_SUCCESS;
}

}  // namespace

struct Canvas::Surface {
  cairo_surface_t* pixels = nullptr;
  cairo_t* pen = nullptr;

  ~Surface() {
    cairo_destroy(pen);
    cairo_surface_destroy(pixels);
  }
  void color(Color c) const { cairo_set_source_rgba(pen, c.r, c.g, c.b, c.a); }
  void font(double size, bool bold) const {
    cairo_select_font_face(pen, kFont, CAIRO_FONT_SLANT_NORMAL,
                           bold ? CAIRO_FONT_WEIGHT_BOLD : CAIRO_FONT_WEIGHT_NORMAL);
    cairo_set_font_size(pen, size);
  }
};

// cairo keeps a failed surface as an error object: drawing on it does nothing, png() reports it.
Canvas::Canvas(int width, int height, Color background) : surface_(std::make_unique<Surface>()) {
  surface_->pixels = cairo_image_surface_create(CAIRO_FORMAT_RGB24, width, height);
  surface_->pen = cairo_create(surface_->pixels);
  fill_rect(0, 0, width, height, background);
}

Canvas::~Canvas() = default;

void Canvas::image(const RgbImage& picture, double x, double y, double width, double height) {
  const int stride = cairo_format_stride_for_width(CAIRO_FORMAT_RGB24, picture.width);
  std::vector<unsigned char> data(size_t(stride) * picture.height);
  for (int row = 0; row < picture.height; ++row) {
    for (int column = 0; column < picture.width; ++column) {
      const uint8_t* p = picture.pixel(row, column);
      const uint32_t packed = uint32_t(p[0]) << 16 | uint32_t(p[1]) << 8 | p[2];
      std::memcpy(data.data() + size_t(row) * stride + size_t(column) * 4, &packed, 4);
    }
  }
  cairo_surface_t* source = cairo_image_surface_create_for_data(
      data.data(), CAIRO_FORMAT_RGB24, picture.width, picture.height, stride);
  cairo_t* pen = surface_->pen;
  cairo_save(pen);
  cairo_rectangle(pen, x, y, width, height);
  cairo_clip(pen);
  cairo_translate(pen, x, y);
  cairo_scale(pen, width / picture.width, height / picture.height);
  cairo_set_source_surface(pen, source, 0, 0);
  cairo_pattern_set_filter(cairo_get_source(pen), CAIRO_FILTER_GOOD);
  // Without padding, the border pixels would fade into the background.
  cairo_pattern_set_extend(cairo_get_source(pen), CAIRO_EXTEND_PAD);
  cairo_paint(pen);
  cairo_restore(pen);
  cairo_surface_destroy(source);
}

void Canvas::fill_rect(double x, double y, double width, double height, Color color) {
  surface_->color(color);
  cairo_rectangle(surface_->pen, x, y, width, height);
  cairo_fill(surface_->pen);
}

void Canvas::stroke_rect(double x, double y, double width, double height, double line,
                         Color color) {
  surface_->color(color);
  cairo_set_line_width(surface_->pen, line);
  cairo_rectangle(surface_->pen, x, y, width, height);
  cairo_stroke(surface_->pen);
}

void Canvas::line(double x0, double y0, double x1, double y1, double width, Color color) {
  polyline({{x0, y0}, {x1, y1}}, width, color);
}

void Canvas::polyline(const std::vector<std::pair<double, double>>& points, double width,
                      Color color, double dash) {
  cairo_t* pen = surface_->pen;
  surface_->color(color);
  cairo_set_line_width(pen, width);
  cairo_set_line_join(pen, CAIRO_LINE_JOIN_ROUND);
  cairo_set_line_cap(pen, dash > 0 ? CAIRO_LINE_CAP_BUTT : CAIRO_LINE_CAP_SQUARE);
  cairo_set_dash(pen, &dash, dash > 0 ? 1 : 0, 0);
  cairo_new_path(pen);  // text leaves a current point behind
  for (const auto& [x, y] : points) cairo_line_to(pen, x, y);
  cairo_stroke(pen);
  cairo_set_dash(pen, nullptr, 0, 0);
}

void Canvas::dot(double x, double y, double radius, Color color) {
  surface_->color(color);
  cairo_new_path(surface_->pen);
  cairo_arc(surface_->pen, x, y, radius, 0, 6.283185307179586);
  cairo_fill(surface_->pen);
}

void Canvas::text(double x, double y, const std::string& words, double size, Color color,
                  Align align, bool bold) {
  const double width = align == Align::kLeft ? 0 : text_width(words, size, bold);
  surface_->font(size, bold);
  surface_->color(color);
  cairo_move_to(surface_->pen, x - (align == Align::kCenter ? width / 2 : width), y);
  cairo_show_text(surface_->pen, words.c_str());
}

void Canvas::vertical_text(double x, double y, const std::string& words, double size, Color color) {
  cairo_save(surface_->pen);
  cairo_translate(surface_->pen, x, y);
  cairo_rotate(surface_->pen, -1.5707963267948966);
  text(0, 0, words, size, color, Align::kCenter);
  cairo_restore(surface_->pen);
}

double Canvas::text_width(const std::string& words, double size, bool bold) {
  surface_->font(size, bold);
  cairo_text_extents_t extents{};
  cairo_text_extents(surface_->pen, words.c_str(), &extents);
  return extents.x_advance;
}

Status Canvas::png(std::vector<uint8_t>* out) {
  out->clear();
  cairo_surface_flush(surface_->pixels);
  const cairo_status_t code = cairo_surface_write_to_png_stream(surface_->pixels, append, out);
  if (code == CAIRO_STATUS_SUCCESS) return {};
  return {code == CAIRO_STATUS_NO_MEMORY ? StatusCode::kOutOfMemory : StatusCode::kInternal,
          std::string("a picture could not be drawn: ") + cairo_status_to_string(code)};
}

}  // namespace tessera::video
