// Plots: XML that any reader takes, and nothing outside the image.
#include "svg.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <regex>

#include "bar_plot.h"
#include "stack_plot.h"

namespace strata::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string unescape(std::string text) {
  for (const auto& [entity, character] : {std::pair{"&lt;", "<"}, {"&gt;", ">"}, {"&quot;", "\""}, {"&apos;", "'"}, {"&amp;", "&"}}) {
    for (size_t at = 0; (at = text.find(entity, at)) != std::string::npos; at += 1) text.replace(at, std::string(entity).size(), character);
  }
  return text;
}

double number(const std::string& text, const char* attribute) {
  std::smatch match;
  return std::regex_search(text, match, std::regex(std::string(" ") + attribute + "=\"([-0-9.]+)\"")) ? std::stod(match[1]) : NAN;
}

// Every element is closed and every character that XML reserves is escaped; texts, rectangles and lines lie within the image. Returns the
// texts.
std::vector<std::string> check_image(const std::string& svg) {
  EXPECT_EQ(svg.find("nan"), std::string::npos) << svg;
  EXPECT_EQ(svg.find("inf\""), std::string::npos) << svg;
  const double width = number(svg, "width"), height = number(svg, "height");
  const auto inside = [&](double x, double y, const std::string& what) {
    EXPECT_TRUE(x >= 0 && x <= width && y >= 0 && y <= height) << what << " at " << x << ", " << y << " of " << width << ", " << height;
  };
  const std::regex element("<(/?)([a-z]+)([^<>]*?)(/?)>|([^<>]+)");
  std::vector<std::string> open, texts;
  size_t matched = 0;
  for (std::sregex_iterator it(svg.begin(), svg.end(), element), end; it != end; ++it) {
    const std::smatch& m = *it;
    matched += m[0].str().size();
    EXPECT_FALSE(std::regex_search(m[0].str(), std::regex("&(?!(amp|lt|gt|quot|apos);)"))) << m[0];
    const std::string name = m[2], attributes = m[3];
    if (name.empty()) {
      if (!open.empty() && open.back() == "text") texts.push_back(unescape(m[0]));
      continue;
    }
    if (m[1].length() > 0) {
      EXPECT_FALSE(open.empty());
      if (open.empty()) return texts;
      EXPECT_EQ(open.back(), name);
      open.pop_back();
      continue;
    }
    if (m[4].length() == 0) open.push_back(name);
    if (name == "text") {
      const std::string shown = unescape(
          svg.substr(static_cast<size_t>(m.position()) + m[0].str().size(),
                     svg.find("</text>", static_cast<size_t>(m.position())) - static_cast<size_t>(m.position()) - m[0].str().size()));
      const bool bold = attributes.find("bold") != std::string::npos;
      const double x = number(attributes, "x"), y = number(attributes, "y"), size = number(attributes, "font-size");
      const double long_way = text_width(shown, size, bold);
      const double share = attributes.find("\"start\"") != std::string::npos    ? 0
                           : attributes.find("\"middle\"") != std::string::npos ? 0.5
                                                                                : 1;
      inside(x - share * long_way, y - size, shown);
      inside(x + (1 - share) * long_way, y + size / 4, shown);
    } else if (name == "rect" && attributes.find("100%") == std::string::npos) {
      const double x = number(attributes, "x"), y = number(attributes, "y");
      inside(x, y, "rectangle");
      inside(x + number(attributes, "width"), y + number(attributes, "height"), "rectangle");
      EXPECT_GE(number(attributes, "width"), 0);
      EXPECT_GE(number(attributes, "height"), 0);
    } else if (name == "polyline") {
      const std::regex point("([-0-9.]+),([-0-9.]+)");
      for (std::sregex_iterator p(attributes.begin(), attributes.end(), point), last; p != last; ++p) {
        inside(std::stod((*p)[1]), std::stod((*p)[2]), "line");
      }
    }
  }
  EXPECT_EQ(matched, svg.size()) << "something is no element and no text";
  EXPECT_TRUE(open.empty());
  return texts;
}

TEST(Svg, EscapesWhatXmlReserves) {
  EXPECT_EQ(xml_escape("a < b && c > \"d\" 'e'"), "a &lt; b &amp;&amp; c &gt; &quot;d&quot; &apos;e&apos;");
  EXPECT_EQ(xml_escape("\xC3\xA4\xE2\x82\xAC\xF0\x9F\x98\x80"), "\xC3\xA4\xE2\x82\xAC\xF0\x9F\x98\x80");
  const std::string replaced = "\xEF\xBF\xBD";
  // Control characters; bytes that are no UTF-8: alone, cut short, too long a form, a surrogate, past the last character, U+FFFF.
  EXPECT_EQ(xml_escape("a\x01"
                       "b\n"),
            "a" + replaced + "b" + replaced);
  EXPECT_EQ(xml_escape(std::string(1, '\0')), replaced);
  for (const char* bytes : {"\xFF", "\x80", "\xC3", "\xC0"}) EXPECT_EQ(xml_escape(bytes), replaced);
  for (const char* bytes : {"\xE2\x82", "\xC0\xAF"}) EXPECT_EQ(xml_escape(bytes), replaced + replaced);
  for (const char* bytes : {"\xED\xA0\x80", "\xE0\x80\xAF", "\xEF\xBF\xBF"}) EXPECT_EQ(xml_escape(bytes), replaced + replaced + replaced);
  EXPECT_EQ(xml_escape("\xF4\x90\x80\x80"), replaced + replaced + replaced + replaced);
}

// Advances of DejaVu Sans, in ems.
TEST(Svg, KeepsRoomForTheWidestUsualFont) {
  EXPECT_GE(text_width("WWWW", 10), 39.55);
  EXPECT_GE(text_width("mmmm", 10), 38.97);
  EXPECT_GE(text_width("iiii", 10), 11.12);
  EXPECT_GE(text_width("0123456789", 10), 63.63);
  EXPECT_GE(text_width("merge_attn_states n4-T4096", 10), 143.31);
  EXPECT_GE(text_width("merge_attn_states n4-T4096", 10, /*bold=*/true), 159.39);
  EXPECT_LE(text_width("merge_attn_states n4-T4096", 10), 1.25 * 143.31) << "half of the image would be empty";
}

TEST(Svg, WrapsAtSpacesAndWithinLongWords) {
  EXPECT_THAT(wrap("one two three", 10, 1000), ElementsAre("one two three"));
  EXPECT_THAT(wrap("one two three", 10, text_width("one two", 10) + 0.1), ElementsAre("one two", "three"));
  EXPECT_THAT(wrap("aaaaaaaa", 10, text_width("aaa", 10) + 0.1), ElementsAre("aaa", "aaa", "aa"));
  EXPECT_THAT(wrap("b aaaaaaaa", 10, text_width("aaa", 10) + 0.1), ElementsAre("b", "aaa", "aaa", "aa"));
  EXPECT_THAT(wrap("", 10, 100), ElementsAre(""));
  EXPECT_THAT(wrap("wide", 10, 1), ElementsAre("w", "i", "d", "e"));
}

TEST(Svg, TicksAreRoundAndReachTheMaximum) {
  EXPECT_THAT(linear_ticks(100, 5), ElementsAre(0, 20, 40, 60, 80, 100));
  EXPECT_THAT(linear_ticks(134, 5), ElementsAre(0, 50, 100, 150));
  EXPECT_THAT(linear_ticks(0.003, 3), ElementsAre(0, 0.001, 0.002, 0.003));
  for (const double maximum : {0.0, -1.0, std::nan(""), std::numeric_limits<double>::infinity()})
    EXPECT_EQ(linear_ticks(maximum, 5).back(), 1) << maximum;
}

Bar bar(const std::string& label, double value) { return {label, value, "12 %, 1.25 ms"}; }

TEST(BarPlot, HoldsEveryBarAndLabel) {
  BarPlot plot{
      .title = std::string("A title of many words that is longer than the plot, of <cases> & \"names\" ") + std::string(300, 'W'),
      .subtitle = "cpu: a machine with a long name, of 64 threads, avx512_bf16; roof: 200 GB/s, 4000 GFLOP/s " + std::string(200, 'm'),
      .axis = "share of the roof (%)",
      .roof = 100,
      .roof_label = "roof",
      .bars = {}};
  for (int i = 0; i < 150; ++i)
    plot.bars.push_back(bar("layer v4-pro-c4-decode-b" + std::to_string(i) + std::string(static_cast<size_t>(i), 'W'), i));
  const std::vector<std::string> texts = check_image(bar_plot(plot));
  for (const Bar& b : plot.bars) EXPECT_THAT(texts, testing::Contains(b.label));
  EXPECT_THAT(texts, testing::Contains("roof"));
  EXPECT_THAT(texts, testing::Contains("share of the roof (%)"));
  std::string all;
  for (const std::string& text : texts) all += text;
  EXPECT_EQ(std::count(all.begin(), all.end(), 'm') >= 200, true) << "the subtitle is cut off";
}

TEST(BarPlot, DrawsOddValuesAndNone) {
  const double infinite = std::numeric_limits<double>::infinity();
  BarPlot plot{.title = "t", .subtitle = "", .axis = "%", .roof = 100, .roof_label = "roof", .bars = {}};
  check_image(bar_plot(plot));
  plot.bars = {bar("nothing", 0), bar("negative", -3), bar("number", std::nan("")), bar("endless", infinite), bar("above", 370)};
  check_image(bar_plot(plot));
  plot.roof = 0;
  EXPECT_EQ(bar_plot(plot).find("stroke-dasharray"), std::string::npos) << "a roof that was not given is drawn";
}

// A figure that would lie across the roof's line stands right of it.
TEST(BarPlot, FiguresDoNotCrossTheRoof) {
  BarPlot plot{.title = "t", .subtitle = "", .axis = "%", .roof = 100, .roof_label = "roof", .bars = {}};
  for (int i = 0; i <= 120; ++i) plot.bars.push_back(bar("case", i));
  const std::string svg = bar_plot(plot);
  std::smatch roof;
  ASSERT_TRUE(std::regex_search(svg, roof, std::regex("points=\"([0-9.]+),[^>]*stroke-dasharray")));
  const double at = std::stod(roof[1]);
  const std::regex figure("<text x=\"([0-9.]+)\"[^>]*>12 %, 1.25 ms<");
  int count = 0;
  for (std::sregex_iterator it(svg.begin(), svg.end(), figure), end; it != end; ++it, ++count) {
    const double x = std::stod((*it)[1]);
    EXPECT_TRUE(x > at || x + text_width("12 %, 1.25 ms", 12) < at) << x;
  }
  EXPECT_EQ(count, 121);
}

StackPlot stack_of(size_t columns, size_t amounts) {
  StackPlot plot{.title = "A model & <its> title " + std::string(100, 'W'),
                 .subtitle = "machine " + std::string(100, 'm'),
                 .x_axis = "positions of each request",
                 .columns = {},
                 .line_axis = "All caches (GB)",
                 .lines = {{"total", {}}, {"baseline", {}}},
                 .line_notes = {},
                 .stack_axis = "By cache group (kB per position)",
                 .stack = {},
                 .stack_notes = {},
                 .limit = 12,
                 .limit_label = "bf16 baseline"};
  for (size_t c = 0; c < columns; ++c) {
    plot.columns.push_back(std::to_string(size_t{8} << c) + "k");
    plot.line_notes.push_back("12.5 %");
    plot.stack_notes.push_back("123.4 GB");
    plot.lines[0].values.push_back(std::pow(2.0, c));
    plot.lines[1].values.push_back(10 * std::pow(2.0, c));
  }
  for (size_t a = 0; a < amounts; ++a) {
    plot.stack.push_back({"group " + std::to_string(a) + ": " + std::string(80, 'x'), {}});
    for (size_t c = 0; c < columns; ++c) plot.stack.back().values.push_back(1.0 / static_cast<double>(1 + a + c));
  }
  return plot;
}

TEST(StackPlot, HoldsEveryColumnAndName) {
  for (const auto& [columns, amounts] : {std::pair<size_t, size_t>{1, 1}, {8, 7}, {20, 9}}) {
    const StackPlot plot = stack_of(columns, amounts);
    const std::vector<std::string> texts = check_image(stack_plot(plot));
    for (const auto& amount : plot.stack) EXPECT_THAT(texts, testing::Contains(amount.name));
    for (const auto& column : plot.columns) EXPECT_EQ(std::count(texts.begin(), texts.end(), column), 2) << column;
    EXPECT_THAT(texts, testing::Contains("bf16 baseline"));
    EXPECT_THAT(texts, testing::Contains("All caches (GB)"));
  }
}

// Coordinates of the texts, and of the points of the dashed lines.
std::vector<std::pair<double, double>> places(const std::string& svg, const std::regex& form) {
  std::vector<std::pair<double, double>> found;
  for (std::sregex_iterator it(svg.begin(), svg.end(), form), end; it != end; ++it) {
    found.emplace_back(std::stod((*it)[1]), std::stod((*it)[2]));
  }
  return found;
}

TEST(StackPlot, TheLimitStrikesNoNoteThrough) {
  for (int percent = 60; percent <= 130; ++percent) {
    StackPlot plot = stack_of(1, 0);
    plot.stack = {{"a", {10}}};
    plot.limit = 10 * percent / 100.0;
    const std::string svg = stack_plot(plot);
    const auto limit = places(svg, std::regex("points=\"([0-9.]+),([0-9.]+) [^>]*stroke-width=\"2.5\" stroke-dasharray"));
    const auto note = places(svg, std::regex("<text x=\"([0-9.]+)\" y=\"([0-9.]+)\"[^>]*>123.4 GB<"));
    ASSERT_EQ(note.size(), 1u);
    const double at = limit.back().second, y = note[0].second;
    EXPECT_TRUE(at > y + 2 || at < y - 9) << percent << " %: " << at << ", " << y;
  }
}

TEST(StackPlot, LinesThatCrossStrikeNoNoteThrough) {
  StackPlot plot = stack_of(3, 1);
  plot.lines[0].values = {20, 21, 22};
  plot.lines[1].values = {6, 12, 24};
  const auto notes = places(stack_plot(plot), std::regex("<text x=\"([0-9.]+)\" y=\"([0-9.]+)\"[^>]*>12.5 %<"));
  ASSERT_EQ(notes.size(), 3u);
  EXPECT_GT(notes[0].second, notes[1].second + 10) << "the second stands above its point, clear of the rising line";
}

TEST(StackPlot, NoAmountHasTheLimitsColour) {
  for (size_t i = 0; i < 9; ++i) EXPECT_STRNE(plot_color(i), kLimit) << i;
}

TEST(StackPlot, ColumnsAreAsHighAsTheirSums) {
  StackPlot plot = stack_of(2, 0);
  plot.stack = {{"a", {3, 1}}, {"b", {1, 1}}};
  plot.limit = 0;
  const std::string svg = stack_plot(plot);
  // In the order they are drawn: a of both columns, then b.
  std::vector<double> heights;
  const std::regex box("<rect x=\"[0-9.]+\" y=\"[0-9.]+\" width=\"[0-9.]+\" height=\"([0-9.]+)\"");
  for (std::sregex_iterator it(svg.begin(), svg.end(), box), end; it != end; ++it) heights.push_back(std::stod((*it)[1]));
  heights.erase(std::remove_if(heights.begin(), heights.end(), [](double h) { return h < 20; }), heights.end());  // of lines and legends
  ASSERT_EQ(heights.size(), 4u);
  EXPECT_NEAR(heights[0], 3 * heights[1], 0.5);
  EXPECT_NEAR(heights[2], heights[3], 0.5);
  EXPECT_NEAR(heights[1], heights[2], 0.5);
}

}  // namespace
}  // namespace strata::cli
