// Shared behaviour of all sub-commands.
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "h3/cli/commands.h"
#include "h3/common/error.h"

namespace h3::cli {
namespace {

// Options that also come as --option.key value.
constexpr const char* kDottedOptions[] = {"component-attention-backends",
                                          "attention-backend-config"};

bool takes_dots(const std::string& option) {
  for (const char* known : kDottedOptions) {
    if (option == known) return true;
  }
  return false;
}

}  // namespace

CLI::App* add_command(CLI::App& app, GlobalOptions& global, const std::string& name,
                      const std::string& description, const std::string& example,
                      std::function<int()> run) {
  CLI::App* sub = app.add_subcommand(name, description);
  sub->footer("Example:\n  " + example);
  sub->callback([&global, run = std::move(run)] { global.run = run; });
  return sub;
}

std::vector<std::string> normalized_arguments(const std::vector<std::string>& arguments,
                                              std::vector<DottedOption>* dotted) {
  std::vector<std::string> args;
  bool plain = false;  // behind "--"
  for (size_t i = 0; i < arguments.size(); ++i) {
    std::string arg = arguments[i];
    plain = plain || arg == "--";
    if (plain || !arg.starts_with("--")) {
      args.push_back(std::move(arg));
      continue;
    }
    const size_t equals = arg.find('=');
    const size_t dot = arg.substr(0, equals).find('.');
    for (size_t at = 2; at < std::min({arg.size(), equals, dot}); ++at) {
      if (arg[at] == '_') arg[at] = '-';
    }
    const std::string option = dot == std::string::npos ? "" : arg.substr(2, dot - 2);
    if (!takes_dots(option)) {
      args.push_back(std::move(arg));
      continue;
    }
    const std::string key =
        arg.substr(dot + 1, equals == std::string::npos ? equals : equals - dot - 1);
    const bool has_value = equals != std::string::npos || i + 1 < arguments.size();
    if (key.empty() || !has_value) {
      throw Error(ErrorCode::kInvalidArgument, arg + " needs a key and a value",
                  "write --" + option + ".KEY VALUE");
    }
    dotted->push_back(
        {option, key, equals == std::string::npos ? arguments[++i] : arg.substr(equals + 1)});
  }
  return args;
}

void message(const std::string& text) { std::fprintf(stderr, "h3: %s\n", text.c_str()); }

void print_text(const std::string& text) {
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  if (!written || std::fflush(stdout) != 0) {
    throw Error(ErrorCode::kUnavailable,
                std::string("stdout cannot be written: ") + std::strerror(errno));
  }
}

}  // namespace h3::cli
