// Numbers with suffixes as options take them.
#include "numbers.h"

#include <gmock/gmock.h>

#include <limits>
#include <string>

namespace strata::cli {
namespace {

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

TEST(Numbers, CountsTakePowersOf1024) {
  EXPECT_EQ(parse_count("0"), 0);
  EXPECT_EQ(parse_count("4096"), 4096);
  EXPECT_EQ(parse_count("0042"), 42);
  EXPECT_EQ(parse_count("128k"), 131072);
  EXPECT_EQ(parse_count("128K"), 131072);
  EXPECT_EQ(parse_count("1M"), 1048576);
  EXPECT_EQ(parse_count("1m"), 1048576);
  EXPECT_EQ(parse_count("2G"), int64_t{2} << 30);
  EXPECT_EQ(parse_count("1.5k"), 1536);
  EXPECT_EQ(parse_count("3.0"), 3);
}

TEST(Numbers, BytesTakePowersOf1000AndOf1024) {
  EXPECT_EQ(parse_bytes("0"), 0);
  EXPECT_EQ(parse_bytes("4096"), 4096);
  EXPECT_EQ(parse_bytes("4096B"), 4096);
  EXPECT_EQ(parse_bytes("2kB"), 2000);
  EXPECT_EQ(parse_bytes("2KB"), 2000);
  EXPECT_EQ(parse_bytes("3MB"), 3000000);
  EXPECT_EQ(parse_bytes("80GB"), 80000000000);
  EXPECT_EQ(parse_bytes("80gb"), 80000000000);
  EXPECT_EQ(parse_bytes("80G"), 80000000000);
  EXPECT_EQ(parse_bytes("1TB"), 1000000000000);
  EXPECT_EQ(parse_bytes("1.5GiB"), 1610612736);
  EXPECT_EQ(parse_bytes("1Ki"), 1024);
  EXPECT_EQ(parse_bytes("1MiB"), 1048576);
  EXPECT_EQ(parse_bytes("1TiB"), int64_t{1} << 40);
}

TEST(Numbers, RefusesWhatIsNoWholeNumber) {
  for (const char* text :
       {"",    " ",  "k",  "GB",  ".",   ".5k", "1.",  "1.k",   "1.2.3", "-1",  "+1",  "-1k",  "0x10",    "1e6", "nan",  "inf",      "NaN",
        "1 k", " 1", "1 ", "1kk", "1kM", "12q", "1,5", "1_000", "B1",    "one", "1.5", "0.3k", "1.0005k", "1\n", "\xFF", "1\xC2\xB5"}) {
    EXPECT_EQ(parse_count(text), std::nullopt) << "'" << text << "'";
    EXPECT_TRUE(std::string(text) == "1.0005k" || std::string(text) == "0.3k" || !parse_bytes(text)) << "'" << text << "'";
  }
  for (const char* text : {"1kib", "1B", "1T"}) EXPECT_EQ(parse_count(text), std::nullopt) << text;
  for (const char* text : {"1iB", "1kBB", "1GBi", "1P", "1.0001kB", "1BB"}) EXPECT_EQ(parse_bytes(text), std::nullopt) << text;
}

TEST(Numbers, RefusesWhatDoesNotFit63Bits) {
  EXPECT_EQ(parse_count("9223372036854775807"), kMost);
  EXPECT_EQ(parse_bytes("9223372036854775807"), kMost);
  for (const char* text : {"9223372036854775808", "18446744073709551616", "99999999999999999999999999", "9000000000000000000k",
                           "9000000000000000T", "9223372036854775807.9G"}) {
    EXPECT_EQ(parse_count(text), std::nullopt) << text;
    EXPECT_EQ(parse_bytes(text), std::nullopt) << text;
  }
  EXPECT_EQ(parse_count("8589934592G"), std::nullopt);
  EXPECT_EQ(parse_bytes("8589934592G"), 8589934592000000000);
  EXPECT_EQ(parse_count("8589934591G"), int64_t{8589934591} << 30);
  // Digits of a fraction that 63 bits do not count.
  EXPECT_EQ(parse_count("1.00000000000000000000000000001G"), std::nullopt);
}

struct Parsed {
  int64_t context = 7, memory = 9;
  std::string error;
};

Parsed parse(std::vector<std::string> arguments) {
  CLI::App app;
  Parsed result;
  app.add_option("--context", result.context)->transform(count_in(1, 1048576));
  app.add_option("--memory", result.memory)->transform(bytes_in(0, 80000000000));
  std::reverse(arguments.begin(), arguments.end());  // as CLI11 takes them
  try {
    app.parse(std::move(arguments));
  } catch (const CLI::ParseError& error) {
    result.error = error.what();
  }
  return result;
}

TEST(Numbers, OptionsTakeThem) {
  const Parsed both = parse({"--context", "1M", "--memory=1.5GiB"});
  EXPECT_EQ(both.error, "");
  EXPECT_EQ(both.context, 1048576);
  EXPECT_EQ(both.memory, 1610612736);
  EXPECT_EQ(parse({}).context, 7);
}

TEST(Numbers, OptionsNameThemselvesTheRangeAndWhatTheyGot) {
  const auto error = [](const char* option, const char* text) { return parse({option, text}).error; };
  EXPECT_THAT(error("--context", "12q"), testing::HasSubstr("--context: must be a whole number in [1, 1048576]"));
  EXPECT_THAT(error("--context", "12q"), testing::HasSubstr("is '12q'"));
  EXPECT_THAT(error("--context", "2M"), testing::HasSubstr("is '2M'"));
  EXPECT_THAT(error("--context", "0"), testing::HasSubstr("in [1, 1048576]"));
  EXPECT_THAT(error("--context", "-5"), testing::HasSubstr("is '-5'"));
  EXPECT_THAT(error("--context", "nan"), testing::HasSubstr("is 'nan'"));
  EXPECT_THAT(error("--context", ""), testing::HasSubstr("is ''"));
  EXPECT_THAT(error("--memory", "81GB"), testing::HasSubstr("--memory: must be bytes in [0, 80000000000]"));
  EXPECT_THAT(error("--memory", "99999999999999999999GB"), testing::HasSubstr("is '99999999999999999999GB'"));
}

}  // namespace
}  // namespace strata::cli
