// `h3 compare-runs`: how far two runs are apart, from their latents or from their decoded frames.
#include <fmt/format.h>
#include <png.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "h3/cli/commands.h"
#include "h3/common/error.h"
#include "h3/pipeline/quality.h"
#include "tessera/io/safetensors.h"

namespace h3::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using pipeline::CompareOptions;
using pipeline::frames_json;
using pipeline::frames_text;
using pipeline::Picture;
using tessera::io::SafetensorsEntry;
using tessera::io::SafetensorsFile;

constexpr int64_t kWorstFrames = 5;
constexpr size_t kLongestValue = 60;            // of metadata in the table
constexpr png_uint_32 kLargestPicture = 16384;  // pixels a side
constexpr const char* kPicturesAccepted = "8-bit gray, RGB or RGBA is accepted";

struct Options {
  std::string a, b;
  bool json = false, per_frame = false;
  std::optional<double> data_range;
};

[[noreturn]] void refuse(const std::string& text, const std::string& hint) {
  throw Error(ErrorCode::kInvalidArgument, text, hint);
}

// ---- latents ----

SafetensorsFile open_latents(const std::string& path) {
  SafetensorsFile file;
  if (tessera::Status s = SafetensorsFile::open(path, &file); !s.ok()) {
    refuse(s.message(), "give two latents files of `h3 denoise`, or two folders of PNG frames");
  }
  return file;
}

const SafetensorsEntry& tensor(const SafetensorsFile& file, const char* name) {
  if (const SafetensorsEntry* entry = file.find(name)) return *entry;
  std::vector<std::string> held;
  for (const SafetensorsEntry& e : file.entries()) held.push_back(e.name);
  refuse(fmt::format("{} has no tensor '{}'; it holds {}", file.label(), name,
                     held.empty() ? "none" : fmt::format("{}", fmt::join(held, ", "))),
         "latents files hold 'video' and 'audio', as `h3 denoise` writes them");
}

std::string entry_text(const SafetensorsEntry& e) {
  return fmt::format("{} {}", tessera::dtype_name(e.dtype), pipeline::shape_text(e.shape));
}

// One tensor of both files, checked against each other.
struct Pair {
  const SafetensorsEntry &a, &b;
  CompareOptions options;

  static std::span<const float> values(const SafetensorsEntry& e) {
    return {reinterpret_cast<const float*>(e.data), e.bytes / sizeof(float)};
  }
};

Pair tensor_pair(const SafetensorsFile& a, const SafetensorsFile& b, const char* name, size_t rank,
                 int64_t lead, const char* accepted) {
  const SafetensorsEntry &ta = tensor(a, name), &tb = tensor(b, name);
  const auto good = [&](const SafetensorsEntry& e) {
    return e.dtype == tessera::Dtype::kF32 && e.shape.size() == rank && e.shape[0] == lead &&
           std::all_of(e.shape.begin(), e.shape.end(), [](int64_t n) { return n > 0; });
  };
  if (!good(ta) || !good(tb) || ta.shape != tb.shape) {
    refuse(fmt::format("'{}' is {} in {} and {} in {}; accepted: {}, the same in both", name,
                       entry_text(ta), a.label(), entry_text(tb), b.label(), accepted),
           "compare two runs of one size and length");
  }
  const std::string quoted = fmt::format("'{}' of ", name);
  return {ta, tb, {.a = quoted + a.label(), .b = quoted + b.label()}};
}

std::vector<std::string> not_compared(const SafetensorsFile& file) {
  std::vector<std::string> names;
  for (const SafetensorsEntry& e : file.entries()) {
    if (e.name != "video" && e.name != "audio") names.push_back(e.name);
  }
  return names;
}

std::string value_text(const std::map<std::string, std::string>& metadata, const std::string& key) {
  const auto at = metadata.find(key);
  if (at == metadata.end()) return "absent";
  const bool cut = at->second.size() > kLongestValue;
  return Json(at->second.substr(0, kLongestValue) + (cut ? "..." : ""))
      .dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string metadata_text(const SafetensorsFile& a, const SafetensorsFile& b) {
  std::map<std::string, std::string> all = a.metadata();
  all.insert(b.metadata().begin(), b.metadata().end());
  std::string text;
  for (const auto& [key, value] : all) {
    const std::string va = value_text(a.metadata(), key), vb = value_text(b.metadata(), key);
    const bool same = a.metadata().contains(key) && b.metadata().contains(key) &&
                      a.metadata().at(key) == b.metadata().at(key);
    if (!same) text += fmt::format("  {}: A {}, B {}\n", Json(key).dump(), va, vb);
  }
  return text.empty() ? "" : "\nmetadata that differs\n" + text;
}

std::string window_text(int64_t window) {
  if (window == 11) return "11 x 11, sigma 1.5";
  return fmt::format(
      "{0} x {0}, sigma 1.5: the largest odd one that fits, frames are smaller than "
      "the usual 11 x 11",
      window);
}

std::string agreement_row(const char* name, const pipeline::Agreement& agreement) {
  const auto number = [](const std::optional<double>& v, const char* format) {
    return v ? fmt::format(fmt::runtime(format), *v) : std::string("undefined");
  };
  return fmt::format("{:<8}{:>14}{:>14}{:>14.4e}\n", name, number(agreement.cosine, "{:.9f}"),
                     number(agreement.relative_l2, "{:.4e}"), agreement.max_abs);
}

int compare_latents_files(const Options& options) {
  const SafetensorsFile a = open_latents(options.a), b = open_latents(options.b);
  Pair video = tensor_pair(a, b, "video", 5, 1, "f32 [1, channels, frames, height, width]");
  const Pair audio = tensor_pair(a, b, "audio", 3, 2, "f32 [2, channels, frames]");
  video.options.data_range = options.data_range;
  const auto view = [](const SafetensorsEntry& e) {
    return pipeline::LatentView{Pair::values(e).data(), e.shape[1], e.shape[2], e.shape[3],
                                e.shape[4]};
  };
  const pipeline::LatentsQuality quality =
      compare_latents(view(video.a), view(video.b), video.options);
  const pipeline::Agreement sound =
      compare_values(Pair::values(audio.a), Pair::values(audio.b), audio.a.shape, audio.options);
  if (options.json) {
    Json json = {{"kind", "latents"}, {"a", options.a}, {"b", options.b}};
    json["ssim_window"] = quality.window;
    json["peak_from"] = options.data_range ? "data range" : "values of A";
    json["video"] = agreement_json(quality.agreement);
    json["video"]["shape"] = video.a.shape;
    json["video"].update(frames_json(quality.frames, quality.peak));
    json["audio"] = agreement_json(sound);
    json["audio"]["shape"] = audio.a.shape;
    json["metadata"] = {{"a", a.metadata()}, {"b", b.metadata()}};
    json["not_compared"] = {{"a", not_compared(a)}, {"b", not_compared(b)}};
    print_text(json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
    return kExitOk;
  }
  std::string text = fmt::format(
      "A       {}\nB       {}\nvideo   {}\naudio   {}\npeak    {:.6g}, {}\nwindow  {}\n\n",
      options.a, options.b, entry_text(video.a), entry_text(audio.a), quality.peak,
      options.data_range ? "the data range given" : "the value range of the video of A",
      window_text(quality.window));
  text += fmt::format("{:<8}{:>14}{:>14}{:>14}\n", "latents", "cosine", "relative L2", "max abs");
  text += agreement_row("video", quality.agreement) + agreement_row("audio", sound) + "\n";
  text += frames_text({{"video", &quality.frames, quality.peak}},
                      options.per_frame ? std::nullopt : std::optional(kWorstFrames));
  for (const SafetensorsFile* file : {&a, &b}) {
    const std::vector<std::string> others = not_compared(*file);
    if (others.empty()) continue;
    text += fmt::format("\nnot compared, of {}: {}\n", file->label(), fmt::join(others, ", "));
  }
  print_text(text + metadata_text(a, b));
  return kExitOk;
}

// ---- frames ----

struct PngHeader {
  png_uint_32 width = 0, height = 0;
  int depth = 0, type = 0;
  bool transparent_colour = false;  // a tRNS chunk

  int channels() const { return type == PNG_COLOR_TYPE_GRAY ? 1 : 3; }  // without alpha
};

std::string header_text(const PngHeader& h) {
  const char* type = h.type == PNG_COLOR_TYPE_GRAY         ? "gray"
                     : h.type == PNG_COLOR_TYPE_GRAY_ALPHA ? "gray with alpha"
                     : h.type == PNG_COLOR_TYPE_PALETTE    ? "palette"
                     : h.type == PNG_COLOR_TYPE_RGB        ? "RGB"
                                                           : "RGBA";
  return fmt::format("{} x {} {}-bit {}", h.width, h.height, h.depth, type);
}

// What has to be closed again, whatever leaves the constructor of PngFile.
struct PngHandle {
  FILE* file = nullptr;
  png_structp png = nullptr;
  png_infop info = nullptr;

  PngHandle() = default;
  PngHandle(const PngHandle&) = delete;
  PngHandle& operator=(const PngHandle&) = delete;
  ~PngHandle() {
    if (png != nullptr) png_destroy_read_struct(&png, &info, nullptr);
    if (file != nullptr) std::fclose(file);
  }
};

// A PNG file open for reading. libpng reports errors by longjmp, so the functions that it can leave
// that way (header_or_false, rows_or_false) hold nothing that has to be destroyed.
class PngFile {
 public:
  explicit PngFile(const std::string& path) : path_(path) {
    handle_.file = std::fopen(path.c_str(), "rb");
    if (handle_.file == nullptr) {
      refuse(fmt::format("{} cannot be read: {}", path, std::strerror(errno)), kHint);
    }
    handle_.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &error_, on_error, on_warning);
    if (handle_.png != nullptr) handle_.info = png_create_info_struct(handle_.png);
    if (handle_.info == nullptr) throw std::bad_alloc();
    if (!header_or_false()) refuse_damaged();
    const bool type = header_.type == PNG_COLOR_TYPE_GRAY || header_.type == PNG_COLOR_TYPE_RGB ||
                      header_.type == PNG_COLOR_TYPE_RGB_ALPHA;
    if (header_.depth != 8 || !type || header_.transparent_colour) {
      refuse(fmt::format("{} is {}{}; {}", path, header_text(header_),
                         header_.transparent_colour ? " with a transparent colour" : "",
                         kPicturesAccepted),
             "convert the frames of both runs to 8-bit RGB");
    }
  }

  const PngHeader& header() const { return header_; }

  /// Values as they are stored: no gamma, no colour profile. An alpha that is opaque is dropped.
  Picture read() {
    const size_t stored = header_.type == PNG_COLOR_TYPE_RGB_ALPHA ? 4 : header_.channels();
    Picture picture{header_.height, header_.width, header_.channels(), {}};
    std::vector<uint8_t> data(size_t{header_.height} * header_.width * stored);
    std::vector<png_bytep> rows(header_.height);
    for (size_t y = 0; y < rows.size(); ++y) rows[y] = data.data() + y * header_.width * stored;
    if (!rows_or_false(rows.data())) refuse_damaged();
    if (stored != 4) {
      picture.data = std::move(data);
      return picture;
    }
    picture.data.resize(data.size() / 4 * 3);
    for (size_t i = 0; i < data.size() / 4; ++i) {
      if (data[4 * i + 3] != 255) {
        refuse(fmt::format("{} is not opaque: alpha is {} at x {}, y {}; RGBA is accepted with an "
                           "alpha of 255",
                           path_, data[4 * i + 3], i % header_.width, i / header_.width),
               "put the frames on a background first");
      }
      std::copy_n(&data[4 * i], 3, &picture.data[3 * i]);
    }
    return picture;
  }

 private:
  static constexpr const char* kHint = "write the frames again, as 8-bit RGB PNG";

  static void on_error(png_structp png, png_const_charp text) {
    *static_cast<std::string*>(png_get_error_ptr(png)) = text;
    png_longjmp(png, 1);
  }
  static void on_warning(png_structp, png_const_charp) {}

  bool header_or_false() {
    if (setjmp(png_jmpbuf(handle_.png)) != 0) return false;
    png_set_user_limits(handle_.png, kLargestPicture, kLargestPicture);
    png_init_io(handle_.png, handle_.file);
    png_read_info(handle_.png, handle_.info);
    header_.width = png_get_image_width(handle_.png, handle_.info);
    header_.height = png_get_image_height(handle_.png, handle_.info);
    header_.depth = png_get_bit_depth(handle_.png, handle_.info);
    header_.type = png_get_color_type(handle_.png, handle_.info);
    header_.transparent_colour = png_get_valid(handle_.png, handle_.info, PNG_INFO_tRNS) != 0;
    return true;
  }
  bool rows_or_false(png_bytepp rows) {
    if (setjmp(png_jmpbuf(handle_.png)) != 0) return false;
    png_read_image(handle_.png, rows);
    png_read_end(handle_.png, nullptr);  // finds what was cut off behind the pixels
    return true;
  }
  [[noreturn]] void refuse_damaged() const {
    refuse(fmt::format("{} is no complete PNG picture of up to {} x {} pixels: {}", path_,
                       kLargestPicture, kLargestPicture, error_),
           kHint);
  }
  std::string path_, error_;
  PngHandle handle_;
  PngHeader header_;
};

std::vector<std::string> frame_paths(const std::string& folder) {
  std::vector<std::string> paths;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    std::string extension = it->path().extension().string();
    for (char& c : extension) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    if (extension == ".png") paths.push_back(it->path().string());
  }
  if (error) {
    refuse(fmt::format("{} cannot be read: {}", folder, error.message()), "check its rights");
  }
  if (paths.empty()) {
    refuse(folder + " holds no .png files", "give folders of PNG frames, named in their order");
  }
  for (const std::string& path : paths) {  // before opening: a FIFO would block
    if (!fs::is_regular_file(path, error)) {
      refuse(path + " is no regular file", "leave only the frames in the folder");
    }
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

// Headers of all files first, so that a wrong frame at the end costs no minutes.
PngHeader common_header(const std::vector<std::string>& a, const std::vector<std::string>& b) {
  const PngHeader first = PngFile(a.front()).header();
  for (size_t i = 0; i < a.size(); ++i) {
    for (const std::string* path : {&a[i], &b[i]}) {
      const PngHeader h = PngFile(*path).header();
      if (h.width != first.width || h.height != first.height || h.channels() != first.channels()) {
        refuse(
            fmt::format("{} is {}, {} is {}", a.front(), header_text(first), *path, header_text(h)),
            "all frames of both folders need one size, and all colour or all gray");
      }
    }
  }
  return first;
}

int compare_frame_folders(const Options& options) {
  if (options.data_range) {
    refuse(fmt::format("--data-range {} was given for PNG frames, whose peak is 255",
                       *options.data_range),
           "leave it out; it is for latents");
  }
  const std::vector<std::string> a = frame_paths(options.a), b = frame_paths(options.b);
  if (a.size() != b.size()) {
    refuse(fmt::format("{} holds {} frames, {} holds {}", options.a, a.size(), options.b, b.size()),
           "compare runs of one length");
  }
  const PngHeader header = common_header(a, b);
  pipeline::FrameSeries luma(a.size()), rgb(a.size());
  pipeline::for_each_frame(static_cast<int64_t>(a.size()), 0, [&](int64_t i) {
    const pipeline::PictureQuality q = compare_pictures(PngFile(a[i]).read(), PngFile(b[i]).read(),
                                                        {.a = a[i], .b = b[i], .threads = 1});
    luma[i] = q.luma;
    rgb[i] = q.rgb;
  });
  const int64_t window = pipeline::ssim_window(header.height, header.width);
  const double peak = pipeline::kPicturePeak;
  const bool gray = header.channels() == 1;
  if (options.json) {
    Json json = {{"kind", "frames"},
                 {"a", options.a},
                 {"b", options.b},
                 {"count", a.size()},
                 {"width", header.width},
                 {"height", header.height},
                 {"channels", header.channels()},
                 {"ssim_window", window}};
    json["luma"] = frames_json(luma, peak);
    json["rgb"] = gray ? Json() : frames_json(rgb, peak);
    json["files"] = Json::array();
    for (size_t i = 0; i < a.size(); ++i) {
      json["files"].push_back(
          {{"a", fs::path(a[i]).filename().string()}, {"b", fs::path(b[i]).filename().string()}});
    }
    print_text(json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
    return kExitOk;
  }
  std::vector<pipeline::NamedSeries> series = {{"luma", &luma, peak}};
  if (!gray) series.push_back({"rgb", &rgb, peak});
  print_text(
      fmt::format("A       {}\nB       {}\nframes  {}, {} x {} {}\npeak    255\nwindow  {}\n\n",
                  options.a, options.b, a.size(), header.width, header.height,
                  gray ? "gray" : "RGB", window_text(window)) +
      frames_text(series, options.per_frame ? std::nullopt : std::optional(kWorstFrames)));
  return kExitOk;
}

enum class Kind { kFile, kFolder };

Kind kind_of(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (fs::is_directory(status)) return Kind::kFolder;
  if (fs::is_regular_file(status)) return Kind::kFile;
  refuse(fmt::format("{} {}", path,
                     fs::exists(status) ? "is neither a file nor a folder" : "does not exist"),
         "give two latents files (.safetensors), or two folders of PNG frames");
}

int run_compare(const Options& options) {
  const Kind a = kind_of(options.a), b = kind_of(options.b);
  if (a != b) {
    const auto text = [](Kind kind) { return kind == Kind::kFile ? "a file" : "a folder"; };
    refuse(fmt::format("{} is {}, {} is {}", options.a, text(a), options.b, text(b)),
           "give two latents files (.safetensors), or two folders of PNG frames");
  }
  return a == Kind::kFile ? compare_latents_files(options) : compare_frame_folders(options);
}

}  // namespace

void add_compare_runs_command(CLI::App& app, GlobalOptions& global) {
  auto options = std::make_shared<Options>();
  CLI::App* sub = add_command(app, global, "compare-runs",
                              "Say how far two runs are apart: cosine, PSNR and SSIM per frame",
                              "h3 compare-runs dense.safetensors sparse.safetensors --json",
                              [options] { return run_compare(*options); });
  sub->add_option("a", options->a, "The reference: latents file, or folder of PNG frames")
      ->required()
      ->type_name("A");
  sub->add_option("b", options->b, "What is compared with it, of the same kind and size")
      ->required()
      ->type_name("B");
  sub->add_flag("--per-frame", options->per_frame,
                "List every frame in the table, not only the worst five; --json always has all");
  sub->add_option("--data-range", options->data_range,
                  "Peak for PSNR and SSIM of latents; default: the value range of A")
      ->type_name("R");
  sub->add_flag("--json", options->json, "Print one JSON document on stdout");
}

}  // namespace h3::cli
