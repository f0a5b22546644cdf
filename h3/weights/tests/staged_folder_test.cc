#include "h3/weights/staged_folder.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "h3/weights/sharded_writer.h"
#include "h3/weights/tests/checkpoint_files.h"

namespace h3::weights {
namespace {

namespace fs = std::filesystem;

size_t entries(const std::string& folder) {
  return static_cast<size_t>(std::distance(fs::directory_iterator(folder), {}));
}

std::string content(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

void make(const std::string& target, const std::string& text) {
  StagedFolder staged(target, "test");
  fs::create_directory(staged.path() + "/sub");
  write_text(staged.path() + "/sub/file", text);
  EXPECT_NE(content(target + "/sub/file"), text) << "there before commit";
  staged.commit();
}

TEST(StagedFolder, NewEmptyAndOwnFolders_AreReplaced) {
  Folder folder;
  const std::string target = folder / "model";
  make(target, "1");
  EXPECT_EQ(content(target + "/sub/file"), "1");
  make(target, "2");
  EXPECT_EQ(content(target + "/sub/file"), "2");
  fs::create_directory(folder / "empty");
  make((folder / "empty") + "/", "3");
  EXPECT_EQ(content(folder / "empty/sub/file"), "3");
  EXPECT_EQ(entries(folder.path()), 2u) << "something was left beside";
}

TEST(StagedFolder, WithoutCommit_NothingIsLeft) {
  Folder folder;
  make(folder / "model", "1");
  {
    StagedFolder staged(folder / "model", "test");
    write_text(staged.path() + "/file", "half");
  }
  EXPECT_EQ(content(folder / "model/sub/file"), "1");
  { const StagedFolder staged(folder / "other", "test"); }
  EXPECT_EQ(entries(folder.path()), 1u);
}

TEST(StagedFolder, OthersWork_IsRefused) {
  Folder folder;
  const auto refused = [&](const std::string& target, const std::vector<std::string>& parts) {
    expect_parts(refusal([&] { StagedFolder staged(target, "test"); }), parts);
  };
  write_file(folder / "file", "x");
  refused(folder / "file", {"is no folder"});
  write_file(folder / "full/note", "x");
  refused(folder / "full", {"not empty", "not made by test", "new or an empty folder"});
  refused(folder / "no/parent", {"no' is no folder", "create it first"});
  refused("", {"name is empty"});
  make(folder / "mine", "1");
  write_file(folder / "mine/sub/added", "x");
  refused(folder / "mine", {"holds 'sub/added', which test did not make"});
  expect_parts(refusal([&] { StagedFolder staged(folder / "mine", "other"); }),
               {"was not made by other"});
  write_file(folder / "mine/made_by.json", "{");
  refused(folder / "mine", {"not JSON"});
  EXPECT_EQ(content(folder / "mine/sub/file"), "1");
  EXPECT_EQ(entries(folder.path()), 3u);
}

TEST(StagedFolder, FilesThatCameLater_AreKept) {
  Folder folder;
  StagedFolder staged(folder / "model", "test");
  write_file(folder / "model/note", "x");
  refusal([&] { staged.commit(); });
  EXPECT_EQ(content(folder / "model/note"), "x");
}

}  // namespace
}  // namespace h3::weights
