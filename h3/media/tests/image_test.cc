// Turning and scaling pictures; equality with Pillow is in h3/tests/parity/test_media.py.
#include "h3/media/image.h"

#include <gtest/gtest.h>

#include "h3/media/tests/media_test_util.h"

namespace h3::media {
namespace {

using testing::refusal;

// 3 x 2 pixels whose red channel counts 0..5.
Image numbered() {
  Image image{3, 2, {}};
  for (uint8_t i = 0; i < 6; ++i) image.rgb.insert(image.rgb.end(), {i, 0, 0});
  return image;
}

std::vector<int> reds(const Image& image) {
  std::vector<int> values;
  for (size_t i = 0; i < image.rgb.size(); i += 3) values.push_back(image.rgb[i]);
  return values;
}

TEST(Orientation, EveryNumber_TurnsAsExifSays) {
  const std::vector<std::vector<int>> want = {
      {0, 1, 2, 3, 4, 5}, {2, 1, 0, 5, 4, 3}, {5, 4, 3, 2, 1, 0}, {3, 4, 5, 0, 1, 2},
      {0, 3, 1, 4, 2, 5}, {3, 0, 4, 1, 5, 2}, {5, 2, 4, 1, 3, 0}, {2, 5, 1, 4, 0, 3}};
  for (int o = 1; o <= 8; ++o) {
    const Image out = oriented(numbered(), o);
    EXPECT_EQ(out.width, o >= 5 ? 2 : 3);
    EXPECT_EQ(reds(out), want[static_cast<size_t>(o - 1)]) << "orientation " << o;
  }
  for (const int o : {0, 9, -1}) {
    testing::expect_text(refusal(ErrorCode::kInvalidArgument, [&] { oriented(numbered(), o); }),
                         {"1 to 8"});
  }
}

TEST(ResizeLanczos, ConstantPicture_StaysConstant) {
  Image image{37, 23, std::vector<uint8_t>(37 * 23 * 3, 201)};
  for (const auto& [w, h] : {std::pair{5, 80}, {80, 5}, {37, 1}, {1, 23}, {36, 24}}) {
    const Image out = resize_lanczos(image, w, h);
    ASSERT_EQ(out.rgb.size(), static_cast<size_t>(w * h * 3));
    for (const uint8_t v : out.rgb) ASSERT_EQ(v, 201);
  }
}

TEST(ResizeLanczos, SameSize_IsACopy) {
  const Image image{16, 9, testing::picture(16, 9)};
  EXPECT_EQ(resize_lanczos(image, 16, 9).rgb, image.rgb);
}

TEST(ResizeLanczos, BadSizes_AreRefused) {
  const Image image{16, 9, testing::picture(16, 9)};
  refusal(ErrorCode::kInvalidArgument, [&] { resize_lanczos(image, 0, 9); });
  refusal(ErrorCode::kInvalidArgument, [&] { resize_lanczos(image, 1 << 20, 9); });
  refusal(ErrorCode::kInvalidArgument, [&] { resize_lanczos({}, 4, 4); });
  refusal(ErrorCode::kInvalidArgument, [&] { resize_lanczos({4, 4, {}}, 4, 4); });
}

TEST(CoverCrop, WidePicture_LosesItsSides) {
  Image image{60, 20, testing::picture(60, 20)};
  const Image out = cover_crop(image, 20, 20);
  EXPECT_EQ(out.width, 20);
  for (int x = 0; x < 20; ++x) EXPECT_EQ(out.rgb[x * 3], image.rgb[(x + 20) * 3]);
}

}  // namespace
}  // namespace h3::media
