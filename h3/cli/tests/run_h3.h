// Runs the `h3` program as users do: exit code, stdout, stderr.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

namespace h3::cli {

struct Outcome {
  int exit_code = -1;
  std::string out, err;
};

inline std::string read_all(int fd) {
  std::string text;
  std::array<char, 4096> buffer;
  for (ssize_t n; (n = read(fd, buffer.data(), buffer.size())) > 0;) {
    text.append(buffer.data(), static_cast<size_t>(n));
  }
  return text;
}

/// stderr goes to a file, so that a full pipe cannot block the program.
inline Outcome run_h3(std::vector<std::string> args) {
  Outcome outcome;
  int out[2];
  FILE* const err = std::tmpfile();
  if (err == nullptr || pipe(out) != 0) {
    ADD_FAILURE() << "no pipe or temporary file";
    return outcome;
  }
  const pid_t child = fork();
  if (child == 0) {
    dup2(out[1], STDOUT_FILENO);
    dup2(fileno(err), STDERR_FILENO);
    close(out[0]);
    close(out[1]);
    std::string binary = H3_BINARY;
    std::vector<char*> argv = {binary.data()};
    for (std::string& a : args) argv.push_back(a.data());
    argv.push_back(nullptr);
    execv(binary.c_str(), argv.data());
    _exit(127);
  }
  close(out[1]);
  outcome.out = read_all(out[0]);
  close(out[0]);
  int status = 0;
  waitpid(child, &status, 0);
  outcome.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + status;
  std::rewind(err);
  lseek(fileno(err), 0, SEEK_SET);
  outcome.err = read_all(fileno(err));
  std::fclose(err);
  return outcome;
}

inline void expect_parts(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(text.find(part), std::string::npos) << "missing: " << part << "\nin: " << text;
  }
}

}  // namespace h3::cli
