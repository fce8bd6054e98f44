#include "svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>

#include "strata/error.h"

namespace strata::cli {
namespace {

constexpr const char* kColors[] = {"#2563eb", "#dc2626", "#059669", "#d97706", "#7c3aed", "#0891b2", "#4b5563"};

std::string escape(const std::string& text) {
  std::string out;
  for (char c : text) {
    if (c == '<') {
      out += "&lt;";
    } else if (c == '&') {
      out += "&amp;";
    } else {
      out += c;
    }
  }
  return out;
}

std::string label(double x, double y, const std::string& text, const char* anchor = "start", int size = 12) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" font-size=\"{}\" text-anchor=\"{}\">{}</text>\n", x, y, size, anchor, escape(text));
}

void write(const std::string& path, double width, double height, const std::string& body) {
  std::ofstream file(path);
  file << fmt::format(
              "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} {1:.0f}\" "
              "font-family=\"sans-serif\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
              width, height)
       << body << "</svg>\n";
  if (!file.good()) throw Error(ErrorCode::invalid_argument, fmt::format("--plot: cannot write '{}'", path));
}

std::string decade(double exponent) {
  const double value = std::pow(10.0, exponent);
  return exponent >= -2 && exponent < 4 ? fmt::format("{:g}", value) : fmt::format("1e{:.0f}", exponent);
}

}  // namespace

void write_line_plot(const std::string& path, const std::string& title, const std::string& x_label, const std::string& y_label,
                     const std::vector<Series>& series) {
  constexpr double kLeft = 80, kTop = 50, kWidth = 560, kHeight = 360, kLegend = 200;
  double low_x = 1e300, high_x = 0, low_y = 1e300, high_y = 0;
  for (const Series& s : series) {
    for (const auto& [x, y] : s.points) {
      low_x = std::min(low_x, x);
      high_x = std::max(high_x, x);
      low_y = std::min(low_y, y);
      high_y = std::max(high_y, y);
    }
  }
  if (high_x <= 0 || high_y <= 0) low_x = high_x = low_y = high_y = 1;
  const double x0 = std::log10(low_x), x1 = std::max(std::log10(high_x), x0 + 1e-6);
  const double y0 = std::floor(std::log10(low_y)), y1 = std::max(std::ceil(std::log10(high_y)), y0 + 1);
  const auto px = [&](double x) { return kLeft + (std::log10(x) - x0) / (x1 - x0) * kWidth; };
  const auto py = [&](double y) { return kTop + kHeight - (std::log10(y) - y0) / (y1 - y0) * kHeight; };

  std::string body = label(kLeft, 28, title, "start", 16);
  for (double e = y0; e <= y1; ++e) {
    const double y = py(std::pow(10.0, e));
    body += fmt::format("<line x1=\"{}\" y1=\"{:.1f}\" x2=\"{}\" y2=\"{:.1f}\" stroke=\"#ddd\"/>\n", kLeft, y, kLeft + kWidth, y);
    body += label(kLeft - 8, y + 4, decade(e), "end");
  }
  for (double e = std::ceil(x0); e <= std::floor(x1); ++e) {
    const double x = px(std::pow(10.0, e));
    body += fmt::format("<line x1=\"{0:.1f}\" y1=\"{1}\" x2=\"{0:.1f}\" y2=\"{2}\" stroke=\"#ddd\"/>\n", x, kTop, kTop + kHeight);
    body += label(x, kTop + kHeight + 18, decade(e), "middle");
  }
  body += label(kLeft + kWidth / 2, kTop + kHeight + 40, x_label, "middle");
  body += label(kLeft, kTop - 8, y_label);
  for (size_t i = 0; i < series.size(); ++i) {
    const char* color = kColors[i % std::size(kColors)];
    std::string points;
    for (const auto& [x, y] : series[i].points) points += fmt::format("{:.1f},{:.1f} ", px(x), py(y));
    body += fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"/>\n", points, color);
    const double y = kTop + 12 + 20.0 * static_cast<double>(i);
    body += fmt::format("<rect x=\"{}\" y=\"{:.1f}\" width=\"14\" height=\"4\" fill=\"{}\"/>\n", kLeft + kWidth + 16, y - 5, color);
    body += label(kLeft + kWidth + 36, y, series[i].name);
  }
  write(path, kLeft + kWidth + kLegend, kTop + kHeight + 60, body);
}

void write_bar_plot(const std::string& path, const std::string& title, const std::vector<Bar>& bars, double maximum) {
  constexpr double kLeft = 360, kTop = 50, kWidth = 420, kRow = 24;
  for (const Bar& bar : bars) maximum = std::max(maximum, bar.value);
  if (maximum <= 0) maximum = 1;
  std::string body = label(20, 28, title, "start", 16);
  for (size_t i = 0; i < bars.size(); ++i) {
    const double y = kTop + kRow * static_cast<double>(i);
    const double width = std::max(bars[i].value, 0.0) / maximum * kWidth;
    body += label(kLeft - 8, y + 14, bars[i].label, "end");
    body += fmt::format("<rect x=\"{}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"16\" fill=\"{}\"/>\n", kLeft, y + 2, width, kColors[0]);
    body += label(kLeft + width + 6, y + 14, bars[i].text);
  }
  write(path, kLeft + kWidth + 200, kTop + kRow * static_cast<double>(bars.size()) + 20, body);
}

}  // namespace strata::cli
