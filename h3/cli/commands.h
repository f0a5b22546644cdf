// The contract between main.cc and the command files: one add_*_command per sub-command.
//
// A command file defines its options, registers itself through add_command and does its work in a
// function that returns the exit code or throws h3::Error. Data goes to stdout, messages to stderr.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace h3::cli {

/// A dotted option such as --component-attention-backends.transformer fa.
struct DottedOption {
  std::string option;  // "component-attention-backends"
  std::string key;     // "transformer"
  std::string value;
};

struct GlobalOptions {
  std::vector<DottedOption> dotted;    // taken out of the command line before it is parsed
  std::vector<std::string> program;    // h3 launch: what it starts, untouched
  std::vector<std::string> arguments;  // the whole command line, program first, as it came
  std::function<int()> run;            // the chosen command's work, set while parsing
};

/// Exit codes users rely on.
inline constexpr int kExitOk = 0;
inline constexpr int kExitInternal = 1;
inline constexpr int kExitBadInput = 2;
inline constexpr int kExitUnsupported = 3;
inline constexpr int kExitOutOfMemory = 5;
inline constexpr int kExitInterrupted = 130;

/// Registers a sub-command with --help and its example; `run` is called after the whole command
/// line was parsed. `global` must outlive `app`.
CLI::App* add_command(CLI::App& app, GlobalOptions& global, const std::string& name,
                      const std::string& description, const std::string& example,
                      std::function<int()> run);

/// Hyphens for underscores in option names; dotted options are moved to `dotted`. Values and
/// everything behind a bare "--" stay as they are. Throws h3::Error for a dotted option without key
/// or value.
std::vector<std::string> normalized_arguments(const std::vector<std::string>& arguments,
                                              std::vector<DottedOption>* dotted);

/// Cuts the program and its arguments off the arguments of `h3 launch`, and returns them: what
/// follows "--", or else everything from the first word that is no option and no option's value.
/// Empty for other commands.
std::vector<std::string> take_program(const CLI::App& app, std::vector<std::string>* arguments);

/// `text` as one line "h3: text" on stderr.
void message(const std::string& text);

/// Text on stdout. Throws h3::Error if it cannot be written.
void print_text(const std::string& text);

void add_attention_command(CLI::App& app, GlobalOptions& global);
void add_compare_runs_command(CLI::App& app, GlobalOptions& global);
/// These three need torch: only in builds with it.
void add_decode_command(CLI::App& app, GlobalOptions& global);
void add_denoise_command(CLI::App& app, GlobalOptions& global);
void add_encode_command(CLI::App& app, GlobalOptions& global);
void add_inspect_command(CLI::App& app, GlobalOptions& global);
void add_launch_command(CLI::App& app, GlobalOptions& global);
void add_make_tiny_command(CLI::App& app, GlobalOptions& global);

}  // namespace h3::cli
