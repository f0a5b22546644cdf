// h3 launch: the ranks of one program on this host.
#include <chrono>
#include <memory>

#include "h3/cli/commands.h"
#include "h3/common/error.h"
#include "h3/parallel/launch.h"

namespace h3::cli {
namespace {

struct LaunchArguments {
  int ranks = 0;
  std::string program;
  double grace_s = 5;
  bool no_prefix = false;
};

int run_launch(const LaunchArguments& arguments, std::vector<std::string> rest) {
  if (!(arguments.grace_s >= 0 && arguments.grace_s <= 3600)) {
    throw Error(ErrorCode::kInvalidArgument,
                "--grace-s is " + std::to_string(arguments.grace_s) + "; accepted: 0 to 3600");
  }
  parallel::LaunchOptions options;
  options.ranks = arguments.ranks;
  options.prefix_output = !arguments.no_prefix;
  options.grace = std::chrono::milliseconds(static_cast<int64_t>(arguments.grace_s * 1000));
  // The parser keeps the "--" that separates our options from the program.
  if (!rest.empty() && rest.front() == "--") rest.erase(rest.begin());
  options.command = std::move(rest);
  options.command.insert(options.command.begin(), arguments.program);
  return parallel::launch(options).exit_code;
}

}  // namespace

void add_launch_command(CLI::App& app, GlobalOptions& global) {
  auto arguments = std::make_shared<LaunchArguments>();
  auto rest = std::make_shared<std::function<std::vector<std::string>()>>();
  CLI::App* sub = add_command(
      app, global, "launch",
      "Start the ranks of a program on this host. The first one that fails ends all; the exit code "
      "is its own (128 + signal if a signal killed it).",
      "h3 launch -n 2 -- h3 generate --ulysses-degree 2",
      [arguments, rest] { return run_launch(*arguments, (*rest)()); });
  *rest = [sub] { return sub->remaining(); };
  sub->add_option("-n,--num-gpus,--ranks", arguments->ranks, "Ranks to start, one per GPU")
      ->required();
  sub->add_option("--grace-s", arguments->grace_s,
                  "Seconds the other ranks get to end before they are killed")
      ->capture_default_str();
  sub->add_flag("--no-prefix", arguments->no_prefix, "No \"[rank] \" before lines of output");
  sub->add_option(
         "program", arguments->program,
         "Program, looked up in PATH; behind it its own arguments, untouched behind \"--\"")
      ->required();
  sub->prefix_command();
}

}  // namespace h3::cli
