// Decoded frames as upright RGB pictures.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "h3/media/input.h"

namespace h3::media::detail {
namespace {

constexpr int kMaxSide = 32768;

// The matrix takes a stored pixel (p, q) to (a p + c q, b p + d q) on the screen, 16.16 fixed
// point; only quarter turns and mirrors have one entry per row.
int orientation_of(const int32_t* m, const std::string& path) {
  const auto sign = [](int32_t v) { return std::abs(v) < 1 << 8 ? 0 : v > 0 ? 1 : -1; };
  const std::array<int, 4> abcd{sign(m[0]), sign(m[1]), sign(m[3]), sign(m[4])};
  constexpr std::array<std::array<int, 4>, 8> kMatrices = {{{1, 0, 0, 1},
                                                            {-1, 0, 0, 1},
                                                            {-1, 0, 0, -1},
                                                            {1, 0, 0, -1},
                                                            {0, 1, 1, 0},
                                                            {0, 1, -1, 0},
                                                            {0, -1, -1, 0},
                                                            {0, -1, 1, 0}}};
  const auto found = std::find(kMatrices.begin(), kMatrices.end(), abcd);
  if (found == kMatrices.end()) {
    refuse_input(path,
                 "is to be shown turned by " + std::to_string(av_display_rotation_get(m)) +
                     " degrees; quarter turns and mirrors are accepted",
                 "export it upright");
  }
  return static_cast<int>(found - kMatrices.begin()) + 1;
}

// Tag 0x0112 of the first directory of EXIF data ("II" or "MM" header first); 0 if absent.
int exif_orientation(const std::string& data) {
  if (data.size() < 8) return 0;
  const bool little = data[0] == 'I';
  const auto number = [&](size_t at, size_t bytes) -> uint32_t {
    if (at + bytes > data.size()) return 0;
    uint32_t value = 0;
    for (size_t i = 0; i < bytes; ++i) {
      const auto byte = static_cast<uint8_t>(data[at + (little ? bytes - 1 - i : i)]);
      value = value << 8 | byte;
    }
    return value;
  };
  const size_t directory = number(4, 4);
  const uint32_t entries = number(directory, 2);
  for (uint32_t i = 0; i < entries; ++i) {
    const size_t entry = directory + 2 + 12 * static_cast<size_t>(i);
    if (number(entry, 2) != 0x0112) continue;
    const uint32_t value = number(entry + 8, 2);
    return value >= 1 && value <= 8 ? static_cast<int>(value) : 0;
  }
  return 0;
}

// swscale stretches the halved chroma of odd sizes: by the last column it is half a pixel off. A
// copy with the last row and column repeated has an even size; nothing for frames that need none.
FramePtr with_even_size(const AVFrame& frame, const std::string& path) {
  const auto format = static_cast<AVPixelFormat>(frame.format);
  const AVPixFmtDescriptor* d = av_pix_fmt_desc_get(format);
  const bool planar = d != nullptr && (d->flags & AV_PIX_FMT_FLAG_PLANAR) != 0 &&
                      (d->flags & (AV_PIX_FMT_FLAG_HWACCEL | AV_PIX_FMT_FLAG_RGB)) == 0;
  if (!planar || d->log2_chroma_w > 1 || d->log2_chroma_h > 1) return nullptr;
  const int width = frame.width + (d->log2_chroma_w == 1 ? frame.width % 2 : 0);
  const int height = frame.height + (d->log2_chroma_h == 1 ? frame.height % 2 : 0);
  if (width == frame.width && height == frame.height) return nullptr;
  auto copy = owned<FramePtr>(av_frame_alloc());
  copy->format = frame.format;
  copy->width = width;
  copy->height = height;
  if (av_frame_get_buffer(copy.get(), 0) < 0) {
    throw Error(ErrorCode::kOutOfMemory, "no memory for a frame of '" + path + "'");
  }
  const int planes = av_pix_fmt_count_planes(format);
  for (int plane = 0; plane < planes; ++plane) {
    const bool chroma = plane == 1 || plane == 2;
    const int rows = chroma ? AV_CEIL_RSHIFT(frame.height, d->log2_chroma_h) : frame.height;
    const int bytes = av_image_get_linesize(format, frame.width, plane);
    for (int y = 0; y < (chroma ? rows : height); ++y) {
      uint8_t* target = copy->data[plane] + static_cast<ptrdiff_t>(y) * copy->linesize[plane];
      std::memcpy(
          target,
          frame.data[plane] + static_cast<ptrdiff_t>(std::min(y, rows - 1)) * frame.linesize[plane],
          static_cast<size_t>(bytes));
      const int step = d->comp[plane].step;
      if (!chroma && width != frame.width) std::memcpy(target + bytes, target + bytes - step, step);
    }
  }
  return copy;
}

}  // namespace

int stream_orientation(const AVStream& stream, const std::string& path) {
  size_t bytes = 0;
  const uint8_t* data = av_stream_get_side_data(&stream, AV_PKT_DATA_DISPLAYMATRIX, &bytes);
  if (data == nullptr || bytes < 9 * sizeof(int32_t)) return 0;
  int32_t matrix[9];
  std::memcpy(matrix, data, sizeof matrix);
  return orientation_of(matrix, path);
}

int frame_orientation(const AVFrame& frame, const std::string& path) {
  const AVFrameSideData* side = av_frame_get_side_data(&frame, AV_FRAME_DATA_DISPLAYMATRIX);
  if (side != nullptr && side->size >= 9 * sizeof(int32_t)) {
    int32_t matrix[9];
    std::memcpy(matrix, side->data, sizeof matrix);
    return orientation_of(matrix, path);
  }
  const AVDictionaryEntry* tag = av_dict_get(frame.metadata, "Orientation", nullptr, 0);
  const int value = tag == nullptr ? 0 : std::atoi(tag->value);
  return value >= 1 && value <= 8 ? value : 0;
}

int png_orientation(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::array<char, 8> head{};
  if (!file.read(head.data(), head.size()) || std::memcmp(head.data(), "\x89PNG\r\n\x1a\n", 8)) {
    return 0;
  }
  while (file.read(head.data(), head.size())) {
    uint32_t length = 0;
    for (int i = 0; i < 4; ++i) length = length << 8 | static_cast<uint8_t>(head[i]);
    if (std::memcmp(head.data() + 4, "eXIf", 4) == 0 && length < 1 << 20) {
      std::string data(length, '\0');
      return file.read(data.data(), length) ? exif_orientation(data) : 0;
    }
    file.seekg(static_cast<std::streamoff>(length) + 4, std::ios::cur);  // and its checksum
  }
  return 0;
}

Image RgbConverter::convert(const AVFrame& frame, const std::string& path) {
  const auto format = static_cast<AVPixelFormat>(frame.format);
  if (frame.width < 1 || frame.height < 1 || frame.width > kMaxSide || frame.height > kMaxSide) {
    refuse_input(path,
                 "has pictures of " + std::to_string(frame.width) + "x" +
                     std::to_string(frame.height) + " pixels; sides up to " +
                     std::to_string(kMaxSide) + " are accepted",
                 "scale it down first");
  }
  const FramePtr even = with_even_size(frame, path);
  const AVFrame& source = even ? *even : frame;
  // Size and format may change inside a stream.
  const Key key{source.width, source.height, format, frame.chroma_location};
  if (!scaler_ || !(key == key_)) {
    scaler_ = make_converter(key.width, key.height, format, AV_PIX_FMT_RGB24,
                             SWS_BICUBIC | SWS_ACCURATE_RND | SWS_FULL_CHR_H_INT, key.location,
                             AVCHROMA_LOC_UNSPECIFIED);
    key_ = key;
  }
  if (!scaler_) {
    const char* name = av_get_pix_fmt_name(format);
    refuse_input(path,
                 std::string("has the pixel format '") + (name == nullptr ? "unknown" : name) +
                     "', which cannot be converted",
                 "convert it to 8-bit RGB or yuv420p");
  }
  sws_setColorspaceDetails(scaler_.get(), sws_getCoefficients(frame.colorspace),
                           frame.color_range == AVCOL_RANGE_JPEG,
                           sws_getCoefficients(SWS_CS_DEFAULT), 1, 0, 1 << 16, 1 << 16);
  Image image{frame.width, frame.height, {}};
  const size_t row = static_cast<size_t>(frame.width) * 3,
               source_row = static_cast<size_t>(source.width) * 3;
  image.rgb.resize(source_row * static_cast<size_t>(source.height) + 64);  // swscale overshoots
  uint8_t* planes[4] = {image.rgb.data()};
  const int strides[4] = {static_cast<int>(source_row)};
  const int rows =
      sws_scale(scaler_.get(), source.data, source.linesize, 0, source.height, planes, strides);
  if (rows != source.height) {
    refuse_input(path, "has a frame that cannot be converted", "convert it");
  }
  for (size_t y = 1; source_row != row && y < static_cast<size_t>(frame.height); ++y) {
    std::memmove(image.rgb.data() + y * row, image.rgb.data() + y * source_row, row);
  }
  image.rgb.resize(row * static_cast<size_t>(frame.height));
  return image;
}

void shown_size(int width, int height, AVRational aspect, int orientation, int* shown_width,
                int* shown_height) {
  if (aspect.num > 0 && aspect.den > 0 && aspect.num != aspect.den) {
    width = std::max(1, static_cast<int>(std::lround(width * av_q2d(aspect))));
  }
  *shown_width = orientation >= 5 ? height : width;
  *shown_height = orientation >= 5 ? width : height;
}

}  // namespace h3::media::detail
