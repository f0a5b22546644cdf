#include "h3/media/ffmpeg.h"

namespace h3::media::detail {
namespace {

// In 1 / 256 of a luma pixel from the first one; only chroma halved along an axis has a choice.
void set_location(SwsContext* c, const char* h_name, const char* v_name, AVChromaLocation at) {
  const bool left = at == AVCHROMA_LOC_LEFT || at == AVCHROMA_LOC_TOPLEFT;
  const bool top = at == AVCHROMA_LOC_TOP || at == AVCHROMA_LOC_TOPLEFT;
  av_opt_set_int(c, h_name, left ? 0 : 128, 0);
  av_opt_set_int(c, v_name, top ? 0 : 128, 0);
}

}  // namespace

ScalerPtr make_converter(int width, int height, AVPixelFormat from, AVPixelFormat to, int flags,
                         AVChromaLocation from_location, AVChromaLocation to_location) {
  auto converter = owned<ScalerPtr>(sws_alloc_context());
  SwsContext* c = converter.get();
  av_opt_set_int(c, "srcw", width, 0);
  av_opt_set_int(c, "srch", height, 0);
  av_opt_set_int(c, "src_format", from, 0);
  av_opt_set_int(c, "dstw", width, 0);
  av_opt_set_int(c, "dsth", height, 0);
  av_opt_set_int(c, "dst_format", to, 0);
  av_opt_set_int(c, "sws_flags", flags, 0);
  const auto halved = [](AVPixelFormat format) {
    const AVPixFmtDescriptor* d = av_pix_fmt_desc_get(format);
    return d != nullptr && d->log2_chroma_w == 1 && d->log2_chroma_h == 1;
  };
  if (halved(from)) set_location(c, "src_h_chr_pos", "src_v_chr_pos", from_location);
  if (halved(to)) set_location(c, "dst_h_chr_pos", "dst_v_chr_pos", to_location);
  if (sws_init_context(c, nullptr, nullptr) < 0) return nullptr;
  return converter;
}

}  // namespace h3::media::detail
