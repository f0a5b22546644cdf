// h3 launch: the ranks of one program on this host.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <memory>

#include "h3/cli/commands.h"
#include "h3/common/error.h"
#include "h3/parallel/launch.h"

namespace h3::cli {
namespace {

constexpr char kName[] = "launch";

struct LaunchArguments {
  int ranks = 0;
  double grace_s = 5;
  bool no_prefix = false;
};

int run_launch(const LaunchArguments& arguments, const std::vector<std::string>& program) {
  if (!(arguments.grace_s >= 0 && arguments.grace_s <= 3600)) {
    throw Error(ErrorCode::kInvalidArgument,
                "--grace-s is " + std::to_string(arguments.grace_s) + "; accepted: 0 to 3600");
  }
  parallel::LaunchOptions options;
  options.ranks = arguments.ranks;
  options.prefix_output = !arguments.no_prefix;
  options.grace = std::chrono::milliseconds(static_cast<int64_t>(arguments.grace_s * 1000));
  options.command = program;
  return parallel::launch(options).exit_code;
}

// Does this word take the next one as its value? "--name=value" and "-n2" bring their own.
bool takes_next_word(const CLI::App& command, std::string word) {
  if (word.starts_with("--")) std::replace(word.begin() + 2, word.end(), '_', '-');
  const CLI::Option* option = command.get_option_no_throw(word);
  return option != nullptr && option->get_expected_min() > 0;
}

}  // namespace

std::vector<std::string> take_program(const CLI::App& app, std::vector<std::string>* arguments) {
  if (arguments->empty() || arguments->front() != kName) return {};
  const CLI::App& command = *app.get_subcommand(kName);
  size_t end = 1;  // of the launcher's own arguments
  while (end < arguments->size() && (*arguments)[end] != "--" &&
         (*arguments)[end].starts_with("-")) {
    end += takes_next_word(command, (*arguments)[end]) ? 2 : 1;
  }
  end = std::min(end, arguments->size());
  const auto first = arguments->begin() + static_cast<std::ptrdiff_t>(end);
  const bool marked = first != arguments->end() && *first == "--";
  std::vector<std::string> program(first + (marked ? 1 : 0), arguments->end());
  arguments->erase(first, arguments->end());
  return program;
}

void add_launch_command(CLI::App& app, GlobalOptions& global) {
  auto arguments = std::make_shared<LaunchArguments>();
  CLI::App* sub = add_command(
      app, global, kName,
      "Start the ranks of a program on this host: h3 launch -n N [options] [--] PROGRAM "
      "[ARGUMENTS...]. The program is looked up in PATH and gets its arguments as they are. The "
      "first rank that fails ends all; the exit code is its own (128 + signal if a signal killed "
      "it).",
      "h3 launch -n 2 -- h3 generate --ulysses-degree 2",
      [arguments, &global] { return run_launch(*arguments, global.program); });
  sub->add_option("-n,--num-gpus,--ranks", arguments->ranks, "Ranks to start, one per GPU")
      ->required();
  sub->add_option("--grace-s", arguments->grace_s,
                  "Seconds the other ranks get to end before they are killed")
      ->capture_default_str();
  sub->add_flag("--no-prefix", arguments->no_prefix, "No \"[rank] \" before lines of output");
}

}  // namespace h3::cli
