// A folder of generated files that appears under its name only when it is complete.
//
//   StagedFolder folder("tiny", "h3 make-tiny");
//   ... write below folder.path() ...
//   folder.commit();
#pragma once

#include <string>

namespace h3::weights {

/// File in a committed folder: who made it and every file in it. A folder that holds exactly these
/// may be replaced by the same maker; anything else is somebody's work.
inline constexpr const char* kMadeByFile = "made_by.json";

class StagedFolder {
 public:
  /// Makes an empty folder beside `target`. Throws kInvalidArgument if `target` exists and is
  /// neither an empty folder nor one that `maker` made and nobody added to, or if its parent is
  /// missing; kUnavailable if the disk refuses.
  StagedFolder(const std::string& target, std::string maker);
  /// Removes what was not committed.
  ~StagedFolder();
  StagedFolder(const StagedFolder&) = delete;
  StagedFolder& operator=(const StagedFolder&) = delete;

  const std::string& path() const { return staging_; }

  /// Writes kMadeByFile and moves the folder to its name. Throws kUnavailable; what was there
  /// before stays then.
  void commit();

 private:
  std::string target_, staging_, maker_;
};

}  // namespace h3::weights
