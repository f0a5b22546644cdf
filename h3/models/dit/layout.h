// The packed sequence: which row is text, condition, audio or video, where it stands in time and
// space, and which query blocks may be sparse. Host arithmetic in double, no torch.
//
//   t2va, fl2va   [ text | keyframes | target audio | target video | padding ]
//   ref2va        [ text | keyframes | references | target audio | target video | padding ]
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace h3::dit {

inline constexpr int64_t kRowAlignment = 64;

/// Latent size of a visual item: frames, height, width (before the 2 x 2 patch).
struct LatentShape {
  int64_t frames = 0, height = 0, width = 0;
  int64_t rows() const { return frames * (height / 2) * (width / 2); }
};

enum class ReferenceKind : uint8_t { kImage, kVideo, kAudio };

/// A reference of ref2va, in request order. A video may have sound; an image has one frame.
struct Reference {
  ReferenceKind kind = ReferenceKind::kImage;
  LatentShape visual;         // of images and videos
  int64_t audio_latents = 0;  // per channel; 0: none
};

enum class Keyframe : uint8_t { kFirst, kLast };

struct LayoutRequest {
  int64_t text_rows = 0;
  /// Per text row: part of a vision block (its rows have the video tag). Empty: none is.
  std::vector<uint8_t> text_is_vision;
  /// Per text row: a <|video_pad|> token, which may be sparse. Empty: none is.
  std::vector<uint8_t> text_is_video_pad;
  std::vector<Keyframe> keyframes;  // spatial shape of the target, one frame each
  std::vector<Reference> references;
  LatentShape target;
  int64_t target_audio_latents = 0;  // per channel
};

/// Values of `tags`.
inline constexpr int8_t kTagPadding = -1, kTagVideo = 0, kTagText = 1, kTagAudio = 2;

struct PackedLayout {
  int64_t text_rows = 0, used = 0, rows = 0;  // rows: `used` and its padding
  std::vector<double> positions;              // [rows, 3]: t, h, w
  std::vector<int8_t> tags;                   // [rows]
  std::vector<int64_t> video_rows;            // packed index: keyframes, references, target
  std::vector<int64_t> audio_rows;            // packed index: references, target
  int64_t condition_video_rows = 0, condition_audio_rows = 0;  // leading ones of the two lists
  std::vector<int64_t> sparse_rows;                            // rows that count as video queries
};

/// Throws kInvalidArgument naming the field for empty text, sizes that are not positive or not
/// even, keyframes other than first, last, or first and last, and lists of a wrong length.
///
/// `ranks`: sequence ranks that get equal shares. Rows are padded to a multiple of 64 and of
/// `ranks`; for the powers of two up to 64 that is the published padding.
PackedLayout pack_layout(const LayoutRequest& request, int64_t ranks = 1);

/// Timestep of every kind of row in one step. t = 1 - sigma.
struct StepTimes {
  float video = 0, audio = 0;      // targets; text and padding follow the video
  float condition_video = 0.999f;  // noise level of keyframes and visual references
  float condition_audio = 1.0f;    // of audio references
};

struct RowTimesteps {
  std::vector<float> unique;     // ascending, 1 to 4 values
  std::vector<int32_t> inverse;  // [rows]: index into unique
};

/// Condition rows get max(t, noise level). Values that no row has are left out.
RowTimesteps row_timesteps(const PackedLayout& layout, const StepTimes& times);

/// Rows of the AdaLN tables: 3 * inverse + max(tag, 0) per row.
std::vector<int32_t> adaln_rows(const PackedLayout& layout, const RowTimesteps& timesteps);

}  // namespace h3::dit
