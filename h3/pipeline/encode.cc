#include "h3/pipeline/encode.h"

#include <ATen/Functions.h>
#include <c10/core/InferenceMode.h>

#include <cstring>
#include <limits>

#include "h3/common/error.h"
#include "h3/media/image.h"

namespace h3::pipeline {
namespace {

at::Tensor bytes_of(const media::Image& image) {
  at::Tensor rgb = at::empty({image.height, image.width, 3}, at::kByte);
  std::memcpy(rgb.data_ptr(), image.rgb.data(), image.rgb.size());
  return rgb;
}

void require_canvas(const dit::Canvas& canvas) {
  if (canvas.width >= dit::kCanvasMultiple && canvas.height >= dit::kCanvasMultiple &&
      canvas.width % dit::kCanvasMultiple == 0 && canvas.height % dit::kCanvasMultiple == 0) {
    return;
  }
  throw Error(ErrorCode::kInvalidArgument,
              "the canvas is " + std::to_string(canvas.width) + "x" +
                  std::to_string(canvas.height) + "; accepted: multiples of 32",
              "give the canvas of the request");
}

void encode_picture(LoadedVaes& vaes, const EncodeRequest& request, EncodedMedia* out) {
  media::Image image = media::read_image(request.path);
  out->canvas = request.canvas.width > 0
                    ? request.canvas
                    : dit::reference_image_canvas({image.width, image.height}, {},
                                                  dit::ReferenceResize::kDiffusers);
  require_canvas(out->canvas);
  const auto width = static_cast<int>(out->canvas.width);
  const auto height = static_cast<int>(out->canvas.height);
  image = request.fit == Fit::kCover ? media::cover_crop(image, width, height)
                                     : media::resize_lanczos(image, width, height);
  out->frames = 1;
  out->visual = vaes.video().encode_images(bytes_of(image).unsqueeze(0));
}

void encode_clip(LoadedVaes& vaes, const EncodeRequest& request, EncodedMedia* out) {
  const media::PictureInfo& shown = *out->info.picture;
  out->canvas = request.canvas.width > 0
                    ? request.canvas
                    : dit::target_canvas(shown.shown_width, shown.shown_height);
  require_canvas(out->canvas);
  media::VideoReader reader(request.path, {.width = static_cast<int>(out->canvas.width),
                                           .height = static_cast<int>(out->canvas.height),
                                           .start_seconds = request.start_seconds,
                                           .max_frames = request.max_frames});
  std::vector<at::Tensor> frames;
  for (media::Image frame; reader.next(&frame);) frames.push_back(bytes_of(frame));
  const int64_t kept = dit::reference_video_frames(static_cast<int64_t>(frames.size()),
                                                   std::numeric_limits<int32_t>::max());
  frames.resize(static_cast<size_t>(kept));
  out->frames = kept;
  out->visual = vaes.video().encode_video(at::stack(frames));
}

void encode_sound(LoadedVaes& vaes, const EncodeRequest& request, EncodedMedia* out) {
  const media::Audio sound = media::read_audio(
      request.path, {.start_seconds = request.start_seconds, .max_seconds = request.max_seconds});
  const auto samples = static_cast<int64_t>(sound.left.size());
  at::Tensor pcm = at::empty({2, samples}, at::kFloat);
  std::memcpy(pcm[0].data_ptr(), sound.left.data(), sound.left.size() * sizeof(float));
  std::memcpy(pcm[1].data_ptr(), sound.right.data(), sound.right.size() * sizeof(float));
  vae_audio::AudioVae& vae = vaes.audio();
  out->audio = vae.normalize(vae.encode(vae_audio::stereo_batch(pcm).to(vae.device())))
                   .to(at::kCPU)
                   .contiguous();
}

}  // namespace

EncodedMedia encode_media(LoadedVaes& vaes, const EncodeRequest& request) {
  const c10::InferenceMode inference;
  EncodedMedia out;
  out.info = media::probe_media(request.path);
  if (out.info.kind == media::MediaKind::kImage) encode_picture(vaes, request, &out);
  if (out.info.kind == media::MediaKind::kVideo) encode_clip(vaes, request, &out);
  if (out.info.sound) encode_sound(vaes, request, &out);
  return out;
}

}  // namespace h3::pipeline
