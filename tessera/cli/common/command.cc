// Shared behaviour of all sub-commands: common options, exit codes, messages.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "tessera/cli/commands.h"

namespace tessera::cli {

namespace {

// Colour only where a person looks, and never against NO_COLOR (https://no-color.org).
bool use_color() {
  const char* no_color = std::getenv("NO_COLOR");
  const char* term = std::getenv("TERM");
  if (no_color != nullptr && *no_color != '\0') return false;
  if (term == nullptr || std::string_view(term) == "dumb") return false;
  return isatty(STDERR_FILENO) == 1;
}

}  // namespace

int exit_code(const Status& status) {
  switch (status.code()) {
    case StatusCode::kOk: return kExitOk;
    case StatusCode::kInvalidArgument:
    case StatusCode::kIo: return kExitBadInput;
    case StatusCode::kUnsupported: return kExitUnsupported;
    case StatusCode::kOutOfMemory: return kExitOutOfMemory;
    case StatusCode::kInternal: return kExitInternal;
  }
  return kExitInternal;
}

CLI::App* add_command(CLI::App& app, GlobalOptions& global, const std::string& name,
                      const std::string& description, const std::string& example,
                      std::function<Status()> run) {
  CLI::App* sub = app.add_subcommand(name, description);
  sub->footer("Example:\n  " + example);
  sub->add_option("--threads", global.threads, "Worker threads; 0 = all hardware threads")
      ->check(CLI::Range(0, 4096))
      ->type_name("N");
  sub->add_flag("--json", global.json, "Print one JSON document on stdout");
  sub->callback([&global, run = std::move(run)] { global.run = run; });
  return sub;
}

Execution make_execution(const GlobalOptions& global) {
  Execution exec;
  exec.threads = global.threads;
  return exec;
}

void message(const std::string& text) {
  constexpr std::string_view kError = "error:";
  if (use_color() && text.starts_with(kError)) {
    std::fprintf(stderr, "tessera: \033[1;31merror:\033[0m%s\n", text.c_str() + kError.size());
  } else {
    std::fprintf(stderr, "tessera: %s\n", text.c_str());
  }
}

Status with_context(const std::string& prefix, Status status) {
  if (status.ok()) return status;
  return {status.code(), prefix + ": " + status.message()};
}

}  // namespace tessera::cli
