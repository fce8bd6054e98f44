// Files that are opened before the work and written after it.
#include "output_file.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "strata/error.h"

namespace strata::cli {
namespace {

namespace fs = std::filesystem;

class OutputFileTest : public testing::Test {
 protected:
  OutputFileTest() {
    fs::remove_all(directory_);
    fs::create_directories(directory_);
  }
  ~OutputFileTest() override { fs::remove_all(directory_); }

  std::string path() const { return (directory_ / "plot.svg").string(); }
  void put(const std::string& text) const { std::ofstream(path()) << text; }
  std::string content() const {
    std::stringstream text;
    text << std::ifstream(path()).rdbuf();
    return text.str();
  }

  fs::path directory_ = fs::path(testing::TempDir()) / "output_file_test";
};

template <class F>
std::string error_of(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.what();
  }
  return "no error";
}

TEST_F(OutputFileTest, WritesAllOfTheText) {
  put("an earlier file, which is longer");
  OutputFile file("--plot", path());
  EXPECT_EQ(content(), "an earlier file, which is longer") << "opening changed the file";
  const std::string text(3 << 20, 'x');
  file.write(text);
  EXPECT_EQ(content(), text);
  OutputFile("--plot", path()).write("short");
  EXPECT_EQ(content(), "short");
}

TEST_F(OutputFileTest, LeavesThingsAsTheyWereWhenNothingIsWritten) {
  const OutputFile file("--plot", path());
  EXPECT_FALSE(fs::exists(path())) << "an interrupt would leave it";
  put("earlier");
  { const OutputFile another("--plot", path()); }
  EXPECT_EQ(content(), "earlier");
}

TEST_F(OutputFileTest, FollowsALinkToNothing) {
  fs::create_symlink("target.svg", path());
  OutputFile file("--plot", path());
  EXPECT_FALSE(fs::exists(directory_ / "target.svg"));
  file.write("text");
  EXPECT_TRUE(fs::exists(directory_ / "target.svg"));
  EXPECT_EQ(content(), "text");
}

TEST_F(OutputFileTest, IsNoInputByAnyName) {
  const fs::path model = directory_ / "model";
  fs::create_directories(model);
  for (const char* name : {"config.json", "a.safetensors", "other"}) std::ofstream(model / name) << "{}";
  std::ofstream(model / "model.safetensors.index.json") << R"({"weight_map": {"w": "a.safetensors"}})";
  fs::create_hard_link(model / "config.json", directory_ / "hard");
  fs::create_symlink(model / "a.safetensors", directory_ / "soft");
  const std::vector<InputPath> inputs{{"--input", ""}, {"--model", model.string()}, {"--cases", (model / "other").string()}};
  const auto says = [&](const fs::path& output) { return error_of([&] { OutputFile("--out", output.string(), inputs); }); };
  using testing::HasSubstr;
  EXPECT_THAT(says(directory_ / "hard"), HasSubstr("config.json' of --model"));
  EXPECT_THAT(says(directory_ / "soft"), HasSubstr("a.safetensors' of --model"));
  EXPECT_THAT(says(model / "model.safetensors.index.json"), HasSubstr("index.json' of --model"));
  EXPECT_THAT(says(model / "other"), HasSubstr("other' of --cases"));
  EXPECT_EQ(says(model / "new.svg"), "no error");
}

TEST_F(OutputFileTest, NamesOptionPathAndReason) {
  using testing::AllOf;
  using testing::HasSubstr;
  const std::string missing = (directory_ / "none" / "plot.svg").string();
  EXPECT_THAT(error_of([&] { OutputFile("--plot", missing); }), AllOf(HasSubstr("--plot: '" + missing), HasSubstr("No such file")));
  EXPECT_THAT(error_of([&] { OutputFile("--out", directory_.string()); }), AllOf(HasSubstr("--out: "), HasSubstr("directory")));
  EXPECT_THAT(error_of([] { OutputFile("--plot", ""); }), HasSubstr("--plot: ''"));
}

TEST_F(OutputFileTest, SaysWhenTheDiskIsFull) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  OutputFile file("--plot", "/dev/full");
  EXPECT_THAT(error_of([&] { file.write("text"); }), testing::HasSubstr("--plot: '/dev/full' cannot be written: No space left"));
  EXPECT_TRUE(fs::exists("/dev/full"));
}

TEST_F(OutputFileTest, WritesToDevices) {
  OutputFile file("--plot", "/dev/null");
  file.write("text");
  EXPECT_TRUE(fs::exists("/dev/null"));
}

}  // namespace
}  // namespace strata::cli
