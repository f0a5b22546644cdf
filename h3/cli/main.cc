// h3: the engine's command line.
//
//   h3 attention --explain --capability 9.0 --attention-backend subblock_sparse_attn
#include <algorithm>
#include <csignal>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "h3/attention/names.h"
#include "h3/cli/commands.h"
#include "h3/common/error.h"
#include "tessera/device.h"

namespace h3::cli {
namespace {

int usage_error(const std::string& text) {
  message("error: " + text);
  return kExitBadInput;
}

std::string did_you_mean(const std::string& word, const std::vector<std::string>& known) {
  const std::string best = nearest_name(word, known);
  return best.empty() ? "" : "; nearest: " + best;
}

// What CLI11 refused, as one line with the next thing to try.
int report_parse_error(const CLI::App& app, const CLI::ParseError& error,
                       const std::vector<std::string>& args) {
  const std::vector<CLI::App*> chosen = app.get_subcommands();
  const CLI::App& scope = chosen.empty() ? app : *chosen.front();
  const std::string help = chosen.empty() ? "h3 --help" : "h3 " + scope.get_name() + " --help";
  std::vector<std::string> known;
  for (const CLI::Option* option : scope.get_options()) {
    for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
  }
  // A mistyped option makes CLI11 complain about whatever is missing then, so name it first.
  for (const std::string& arg : args) {
    if (arg == "--") break;
    if (!arg.starts_with("--")) continue;
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

int exit_code(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument: return kExitBadInput;
    case ErrorCode::kUnsupported: return kExitUnsupported;
    case ErrorCode::kOutOfMemory: return kExitOutOfMemory;
    case ErrorCode::kCancelled: return kExitInterrupted;
    case ErrorCode::kUnavailable:
    case ErrorCode::kInternal: return kExitInternal;
  }
  return kExitInternal;
}

int run(int argc, char** argv) {
  CLI::App app("MiniMax-H3 video generation.", "h3");
  GlobalOptions global;
  app.set_version_flag("--version", std::string("h3 ") + tessera::version());
  app.require_subcommand(0, 1);
  app.footer(
      "Example:\n  h3 attention --explain --capability 9.0\n\nExit codes: 0 ok, 1 internal error, "
      "2 bad input or usage, 3 unsupported, 5 out of memory, 130 interrupted.");
  add_attention_command(app, global);
  add_compare_runs_command(app, global);
#ifdef H3_WITH_TORCH
  add_decode_command(app, global);
  add_denoise_command(app, global);
  add_encode_command(app, global);
#endif
  add_inspect_command(app, global);
  add_launch_command(app, global);
  add_make_tiny_command(app, global);

  global.arguments.assign(argv, argv + argc);
  std::vector<std::string> words(argv + 1, argv + argc);
  global.program = take_program(app, &words);
  const std::vector<std::string> args = normalized_arguments(words, &global.dotted);
  std::vector<std::string> names;
  for (const CLI::App* sub : app.get_subcommands(nullptr)) names.push_back(sub->get_name());
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
    return usage_error("no command given; accepted: " + joined(names) + "; see `h3 --help`");
  }
  const CLI::App& command = *app.get_subcommands().front();
  for (const DottedOption& dotted : global.dotted) {
    if (command.get_option_no_throw("--" + dotted.option) == nullptr) {
      return usage_error("h3 " + command.get_name() + " has no option --" + dotted.option + "." +
                         dotted.key + "; see `h3 " + command.get_name() + " --help`");
    }
  }
  return global.run();
}

}  // namespace
}  // namespace h3::cli

int main(int argc, char** argv) {
  namespace cli = h3::cli;
  std::signal(SIGXFSZ, SIG_IGN);  // a limit on file sizes becomes an error that is reported
  try {
    return cli::run(argc, argv);
  } catch (const h3::Error& error) {
    cli::message(std::string("error: ") + error.what());
    return cli::exit_code(error.code());
  } catch (const std::bad_alloc&) {
    cli::message("error: out of memory");
    return cli::kExitOutOfMemory;
  } catch (const std::exception& error) {
    cli::message(std::string("error: internal: ") + error.what());
    return cli::kExitInternal;
  }
}
