#include "svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

namespace strata::cli {
namespace {

constexpr double kMargin = 20;
constexpr const char* kColors[] = {"#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#f0e442", "#555555", "#332288", "#bbbbbb"};
constexpr double kBold = 1.15;                        // width of bold characters
constexpr const char* kReplacement = "\xEF\xBF\xBD";  // U+FFFD

// Bytes of the UTF-8 character that begins at `at`; 0 where none does.
size_t character_bytes(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(at);
  const size_t bytes = first < 0x80                    ? 1
                       : first >= 0xC2 && first < 0xE0 ? 2
                       : first >= 0xE0 && first < 0xF0 ? 3
                       : first >= 0xF0 && first < 0xF5 ? 4
                                                       : 0;
  if (bytes == 0 || at + bytes > text.size()) return 0;
  for (size_t i = 1; i < bytes; ++i) {
    if ((byte(at + i) & 0xC0) != 0x80) return 0;
  }
  // Longer forms than needed, surrogates, what is past U+10FFFF.
  if (bytes < 3) return bytes;
  const unsigned char second = byte(at + 1);
  const bool wrong = (first == 0xE0 && second < 0xA0) || (first == 0xED && second >= 0xA0) || (first == 0xF0 && second < 0x90) ||
                     (first == 0xF4 && second >= 0x90);
  const bool no_character = first == 0xEF && second == 0xBF && byte(at + 2) >= 0xBE;  // U+FFFE, U+FFFF
  return wrong || no_character ? 0 : bytes;
}

// f(the bytes of each character), empty for what is none.
template <class F>
void for_characters(std::string_view text, F&& f) {
  for (size_t at = 0; at < text.size();) {
    const size_t bytes = character_bytes(text, at);
    f(text.substr(at, bytes));
    at += std::max<size_t>(bytes, 1);
  }
}

// Of an em, no less than in DejaVu Sans and Verdana, the widest of the usual sans-serif fonts.
double character_width(std::string_view character) {
  if (character.size() != 1) return 1.0;
  const char c = character.front();
  const std::string_view narrow = "ijl.,:;'|! ()[]ftr/\\-I\"", wide = "mwMW@%&#+=<>~^";
  if (narrow.find(c) != std::string_view::npos) return 0.47;
  if (wide.find(c) != std::string_view::npos) return 1.08;
  return c >= 'A' && c <= 'Z' ? 0.79 : 0.645;
}

std::string dash_attribute(std::string_view dashes) { return dashes.empty() ? "" : fmt::format(" stroke-dasharray=\"{}\"", dashes); }

}  // namespace

std::string xml_escape(std::string_view text) {
  std::string out;
  for_characters(text, [&](std::string_view character) {
    if (character.size() > 1) {
      out += character;
      return;
    }
    const char c = character.empty() ? '\0' : character.front();
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      case '\'': out += "&apos;"; break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          out += kReplacement;
        } else {
          out += c;
        }
    }
  });
  return out;
}

double text_width(std::string_view text, double size, bool bold) {
  double width = 0;
  for_characters(text, [&](std::string_view character) { width += character_width(character); });
  return width * size * (bold ? kBold : 1.0);
}

std::vector<std::string> wrap(std::string_view text, double size, double width, bool bold) {
  std::vector<std::string> lines(1);
  double used = 0;
  const auto next_line = [&] {
    lines.emplace_back();
    used = 0;
  };
  std::string word;
  const auto put_word = [&] {
    const double needed = text_width(word, size, bold), space = lines.back().empty() ? 0 : text_width(" ", size, bold);
    if (word.empty()) return;
    if (used + space + needed > width && !lines.back().empty()) next_line();
    if (!lines.back().empty()) {
      lines.back() += ' ';
      used += space;
    }
    for_characters(word, [&](std::string_view character) {
      const double w = character_width(character) * size * (bold ? kBold : 1.0);
      if (used + w > width && !lines.back().empty()) next_line();
      lines.back() += character.empty() ? std::string_view(kReplacement) : character;
      used += w;
    });
    word.clear();
  };
  for (const char c : text) {
    if (c == ' ' || c == '\n') {
      put_word();
    } else {
      word += c;
    }
  }
  put_word();
  return lines;
}

std::vector<double> linear_ticks(double maximum, int count) {
  if (!(maximum > 0) || !std::isfinite(maximum)) maximum = 1;
  const double rough = maximum / count, decade = std::pow(10.0, std::floor(std::log10(rough)));
  double step = 10 * decade;
  for (const double factor : {5.0, 2.0, 1.0}) {
    if (factor * decade >= rough * (1 - 1e-9)) step = factor * decade;
  }
  std::vector<double> ticks{0};
  while (ticks.back() < maximum * (1 - 1e-9)) ticks.push_back(static_cast<double>(ticks.size()) * step);
  return ticks;
}

const char* plot_color(size_t i) { return kColors[i % std::size(kColors)]; }

void Svg::reach(double x, double y) {
  right_ = std::max(right_, x);
  bottom_ = std::max(bottom_, y);
}

void Svg::text(double x, double y, std::string_view text, const TextStyle& style) {
  const char* anchor = style.anchor == Anchor::start ? "start" : style.anchor == Anchor::middle ? "middle" : "end";
  body_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" font-size=\"{:g}\" text-anchor=\"{}\"{}{}>{}</text>\n", x, y, style.size, anchor,
                       style.bold ? " font-weight=\"bold\"" : "",
                       style.halo ? " paint-order=\"stroke\" stroke=\"white\" stroke-width=\"3\"" : "", xml_escape(text));
  const double after_anchor = style.anchor == Anchor::start ? 1 : style.anchor == Anchor::middle ? 0.5 : 0;
  constexpr double kDescent = 0.25;
  reach(x + text_width(text, style.size, style.bold) * after_anchor, y + kDescent * style.size);
}

void Svg::line(double x1, double y1, double x2, double y2, std::string_view color, double width, std::string_view dashes) {
  path({{x1, y1}, {x2, y2}}, color, width, dashes);
}

void Svg::path(const std::vector<std::pair<double, double>>& points, std::string_view color, double width, std::string_view dashes) {
  std::string list;
  for (const auto& [x, y] : points) {
    list += fmt::format("{}{:.1f},{:.1f}", list.empty() ? "" : " ", x, y);
    reach(x + width / 2, y + width / 2);
  }
  body_ += fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"{:g}\"{}/>\n", list, color, width,
                       dash_attribute(dashes));
}

void Svg::rect(double x, double y, double width, double height, std::string_view color) {
  body_ += fmt::format(
      "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\" stroke=\"white\" stroke-width=\"0.5\"/>\n", x, y,
      width, height, color);
  reach(x + width, y + height);
}

std::string Svg::finish(std::string_view title) const {
  return fmt::format(
             "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} {1:.0f}\" role=\"img\" "
             "font-family=\"DejaVu Sans, Verdana, Helvetica, Arial, sans-serif\">\n<title>{2}</title>\n"
             "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
             std::ceil(right_ + kMargin), std::ceil(bottom_ + kMargin), xml_escape(title)) +
         body_ + "</svg>\n";
}

double draw_title(Svg& svg, std::string_view title, std::string_view subtitle, double x, double width) {
  constexpr double kTitle = 16, kSubtitle = 12, kLeading = 1.35;
  double y = kMargin;
  for (const std::string& text : wrap(title, kTitle, width, /*bold=*/true)) {
    y += kTitle * kLeading;
    svg.text(x, y, text, {.size = kTitle, .bold = true});
  }
  if (subtitle.empty()) return y;
  for (const std::string& text : wrap(subtitle, kSubtitle, width)) {
    y += kSubtitle * kLeading;
    svg.text(x, y, text, {.size = kSubtitle});
  }
  return y;
}

}  // namespace strata::cli
