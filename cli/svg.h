// An SVG image as text: what the plots of --plot are drawn with. No dependencies.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace strata::cli {

// Text as XML has it: &, <, > and quotes escaped; bytes that are no UTF-8, and control characters, which XML cannot hold, become U+FFFD.
std::string xml_escape(std::string_view text);

// Width in pixels of text in the plots' font at most, so that room for it can be kept without the font.
double text_width(std::string_view text, double size, bool bold = false);

// Lines of at most `width` pixels, broken at spaces, and within words that are wider.
std::vector<std::string> wrap(std::string_view text, double size, double width, bool bold = false);

// 0 and multiples of 1, 2 or 5 times a power of ten, about `count` of them, the last at least `maximum`.
std::vector<double> linear_ticks(double maximum, int count);

// Colours that people with any colour vision can distinguish (Okabe and Ito). They differ in lightness, for prints in grey. None is kLimit.
const char* plot_color(size_t i);
inline constexpr const char* kGrid = "#dddddd";
inline constexpr const char* kAxis = "#333333";
inline constexpr const char* kLimit = "#d55e00";  // a roof, a baseline

enum class Anchor { start, middle, end };

struct TextStyle {
  Anchor anchor = Anchor::start;
  double size = 12;
  bool bold = false;
  bool halo = false;  // white around the letters, where they may cross a line
};

class Svg {
 public:
  void text(double x, double y, std::string_view text, const TextStyle& style = {});
  // dashes: as stroke-dasharray, "" for a solid line.
  void line(double x1, double y1, double x2, double y2, std::string_view color, double width = 1, std::string_view dashes = "");
  void path(const std::vector<std::pair<double, double>>& points, std::string_view color, double width, std::string_view dashes = "");
  // White edges keep neighbours apart where their colours look alike.
  void rect(double x, double y, double width, double height, std::string_view color);
  // The largest coordinates that anything drawn so far reaches.
  double right() const { return right_; }
  double bottom() const { return bottom_; }
  // All of the image, with a margin around what was drawn; `title` is what screen readers say.
  std::string finish(std::string_view title) const;

 private:
  void reach(double x, double y);

  std::string body_;
  double right_ = 0, bottom_ = 0;
};

// Title and the lines below it, wrapped to `width`; returns where the plot may begin.
double draw_title(Svg& svg, std::string_view title, std::string_view subtitle, double x, double width);

}  // namespace strata::cli
