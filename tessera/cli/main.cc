// tessera: routes, attends, compares and explains block-sparse attention on files.
//
//   tessera compare in.safetensors --sparsity 0.75
#include <algorithm>
#include <csignal>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "tessera/cli/commands.h"
#include "tessera/cli/common/output.h"
#include "tessera/cli/common/suggest.h"
#include "tessera/device.h"

namespace tessera::cli {
namespace {

// "--n_q=4" is "--n-q=4"; values and everything behind a bare "--" stay as they are.
std::vector<std::string> normalized_arguments(int argc, char** argv) {
  std::vector<std::string> args(argv + 1, argv + argc);
  for (std::string& arg : args) {
    if (arg == "--") break;
    if (!arg.starts_with("--")) continue;
    const size_t end = std::min(arg.find('='), arg.size());
    std::replace(arg.begin(), arg.begin() + static_cast<std::ptrdiff_t>(end), '_', '-');
  }
  return args;
}

std::string did_you_mean(const std::string& word, const std::vector<std::string>& known) {
  const std::string best = nearest(word, known);
  return best.empty() ? "" : "; nearest: " + best;
}

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* sub : app.get_subcommands(nullptr)) names.push_back(sub->get_name());
  return names;
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

int usage_error(const std::string& text) {
  message("error: " + text);
  return kExitBadInput;
}

// What CLI11 refused, as one line with the next thing to try.
int report_parse_error(const CLI::App& app, const CLI::ParseError& error,
                       const std::vector<std::string>& args) {
  const std::vector<CLI::App*> chosen = app.get_subcommands();
  const CLI::App& scope = chosen.empty() ? app : *chosen.front();
  const std::string help =
      chosen.empty() ? "tessera --help" : "tessera " + scope.get_name() + " --help";
  std::vector<std::string> known;
  for (const CLI::Option* option : scope.get_options()) {
    for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
  }
  // A mistyped option makes CLI11 complain about whatever is missing then, so name it first.
  for (const std::string& arg : args) {
    if (!arg.starts_with("--") || arg == "--") continue;
    const std::string name = arg.substr(0, arg.find('='));
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      return usage_error("unknown option " + name + did_you_mean(name, known) + "; see `" + help +
                         "`");
    }
  }
  std::string text = error.what();
  std::replace(text.begin(), text.end(), '\n', ' ');
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return usage_error(text + "; see `" + help + "`");
}

int run(int argc, char** argv) {
  CLI::App app("Block-sparse attention for video diffusion: routing, attention and their proof.",
               "tessera");
  GlobalOptions global;
  app.set_version_flag("--version", std::string("tessera ") + version());
  app.require_subcommand(0, 1);
  app.footer(
      "Example:\n  tessera compare in.safetensors --sparsity 0.75\n\n"
      "Exit codes: 0 ok, 1 internal error, 2 bad input or usage, 3 unsupported, "
      "5 out of memory, 130 interrupted.");
  add_route_command(app, global);
  add_attend_command(app, global);
  add_compare_command(app, global);
  add_explain_command(app, global);
#ifdef TESSERA_HAVE_VIDEO
  add_video_command(app, global);
#endif
  add_doctor_command(app, global);
  add_bench_command(app, global);

  const std::vector<std::string> args = normalized_arguments(argc, argv);
  const std::vector<std::string> names = command_names(app);
  if (!args.empty() && !args.front().starts_with("-") &&
      std::find(names.begin(), names.end(), args.front()) == names.end()) {
    return usage_error("unknown command \"" + args.front() + "\"; accepted: " + joined(names) +
                       did_you_mean(args.front(), names));
  }
  try {
    app.parse(std::vector<std::string>(args.rbegin(), args.rend()));  // CLI11 takes them reversed
  } catch (const CLI::Success& success) {
    return app.exit(success);  // --help and --version
  } catch (const CLI::ParseError& error) {
    return report_parse_error(app, error, args);
  }
  if (!global.run) {
    return usage_error("no command given; accepted: " + joined(names) + "; see `tessera --help`");
  }
  const Status status = global.run();
  if (!status.ok()) message("error: " + status.message());
  return exit_code(status);
}

}  // namespace
}  // namespace tessera::cli

int main(int argc, char** argv) {
  namespace cli = tessera::cli;
  cli::install_interrupt_handler();
  // A file-size limit then shows as an error of the write, which removes its temporary file.
  std::signal(SIGXFSZ, SIG_IGN);
  try {
    return cli::run(argc, argv);
  } catch (const std::bad_alloc&) {
    cli::message("error: out of memory; use a smaller input or fewer threads");
    return cli::kExitOutOfMemory;
  } catch (const std::exception& error) {
    cli::message(std::string("error: internal: ") + error.what());
    return cli::kExitInternal;
  }
}
