// Writing results: checks before long work, no partial files after Ctrl-C.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "tessera/io/safetensors.h"
#include "tessera/status.h"

namespace tessera::cli {

/// Refuses (kIo) an output path whose folder is missing or not writable, and one that is a folder,
/// an empty name, or the input file itself. Called before any long work; creates nothing.
Status check_output_path(const std::string& path, const std::string& input_path = "");

/// While one lives, SIGINT waits: the file being written is finished or removed, then the program
/// exits with 130 (in the destructor). Outside of it SIGINT ends the program at once.
class WriteGuard {
 public:
  WriteGuard();
  ~WriteGuard();
  WriteGuard(const WriteGuard&) = delete;
  WriteGuard& operator=(const WriteGuard&) = delete;
};

/// Installs the SIGINT handler (exit 130). Called once by main.
void install_interrupt_handler();

/// io::write_safetensors under a WriteGuard.
Status write_tensors(const std::string& path, const std::vector<io::SafetensorsItem>& items,
                     const std::map<std::string, std::string>& metadata = {});

/// One JSON document on stdout, indented, with a final newline. kIo if stdout cannot be written.
Status print_json(const nlohmann::ordered_json& document);

/// Text on stdout. kIo if stdout cannot be written.
Status print_text(const std::string& text);

/// "2.345 s", or "2.345 ms" below a tenth of a second.
std::string time_text(double seconds);

}  // namespace tessera::cli
