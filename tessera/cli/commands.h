// The contract between main.cc and the command files: one add_*_command per sub-command.
//
// A command file defines its options struct, registers it through add_command and does its work in
// a function returning Status. main.cc parses, runs the chosen command and turns the Status into
// one line on stderr and an exit code. Commands write data to stdout and messages to stderr.
//
//   void add_route_command(CLI::App& app, GlobalOptions& global) {
//     auto options = std::make_shared<RouteOptions>();
//     CLI::App* sub = add_command(app, global, "route", "...", "tessera route in -o plan",
//                                 [options, &global] { return run_route(*options, global); });
//     sub->add_option("input", options->input, "...")->required();
//   }
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <utility>

#include "tessera/execution.h"
#include "tessera/status.h"

namespace tessera::cli {

/// Options every command has, filled before its `run` is called.
struct GlobalOptions {
  int threads = 0;              // --threads; 0: all hardware threads
  bool json = false;            // --json: stdout holds one JSON document and nothing else
  std::function<Status()> run;  // the chosen command's work, set while parsing
};

/// Exit codes users rely on.
inline constexpr int kExitOk = 0;
inline constexpr int kExitInternal = 1;
inline constexpr int kExitBadInput = 2;
inline constexpr int kExitUnsupported = 3;
inline constexpr int kExitOutOfMemory = 5;
inline constexpr int kExitInterrupted = 130;

/// kInvalidArgument and kIo: 2, kUnsupported: 3, kOutOfMemory: 5, kInternal: 1, kOk: 0.
int exit_code(const Status& status);

/// Registers a sub-command with --threads, --json, --help and its example; `run` is called after
/// the whole command line was parsed. `global` must outlive `app`.
CLI::App* add_command(CLI::App& app, GlobalOptions& global, const std::string& name,
                      const std::string& description, const std::string& example,
                      std::function<Status()> run);

/// A check for options of type T: refuses text that is no such number, or that `fits` rejects, and
/// says what is accepted. `accepted` reads like "1 or more".
template <class T>
CLI::Validator accepts_number(
    std::string accepted, std::function<bool(T)> fits = [](T) { return true; }) {
  return CLI::Validator(
      [accepted = std::move(accepted), fits = std::move(fits)](const std::string& text) {
        T value{};
        if (CLI::detail::lexical_cast(text, value) && fits(value)) return std::string();
        return "'" + text + "' is not accepted; accepted: " + accepted;
      },
      "");
}

/// An Execution on the CPU with the user's thread count and no progress hook.
Execution make_execution(const GlobalOptions& global);

/// `text` as one line "tessera: text" on stderr.
void message(const std::string& text);

/// `status` with "prefix: " before its message; an ok status stays ok.
Status with_context(const std::string& prefix, Status status);

void add_route_command(CLI::App& app, GlobalOptions& global);
void add_attend_command(CLI::App& app, GlobalOptions& global);
void add_compare_command(CLI::App& app, GlobalOptions& global);
void add_explain_command(CLI::App& app, GlobalOptions& global);
void add_doctor_command(CLI::App& app, GlobalOptions& global);
void add_bench_command(CLI::App& app, GlobalOptions& global);
void add_video_command(CLI::App& app, GlobalOptions& global);  // only with TESSERA_HAVE_VIDEO

}  // namespace tessera::cli
