#include "stack_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "svg.h"

namespace strata::cli {
namespace {

constexpr double kSize = 12, kLeft = 20, kHeight = 400, kGap = 8, kLegendRow = 20, kSmallestColumn = 52;
constexpr const char* kDashes[] = {"", "8 4", "2 3"};

double widest(const std::vector<std::string>& texts, double size = kSize) {
  double width = 0;
  for (const std::string& text : texts) width = std::max(width, text_width(text, size));
  return width;
}

// Where a panel's columns are.
struct Panel {
  double left, top, column;
  size_t count;
  double right() const { return left + column * static_cast<double>(count); }
  double bottom() const { return top + kHeight; }
  double middle(size_t i) const { return left + column * (static_cast<double>(i) + 0.5); }
};

void draw_frame(Svg& svg, const StackPlot& plot, const Panel& panel, const std::string& axis) {
  svg.line(panel.left, panel.bottom(), panel.right(), panel.bottom(), kAxis);
  svg.line(panel.left, panel.top, panel.left, panel.bottom(), kAxis);
  for (size_t i = 0; i < plot.columns.size(); ++i)
    svg.text(panel.middle(i), panel.bottom() + 18, plot.columns[i], {.anchor = Anchor::middle});
  svg.text((panel.left + panel.right()) / 2, panel.bottom() + 40, plot.x_axis, {.anchor = Anchor::middle});
  svg.text(panel.left, panel.top - 30, axis, {.bold = true});
}

void draw_tick(Svg& svg, const Panel& panel, double y, double value) {
  svg.line(panel.left, y, panel.right(), y, kGrid);
  svg.text(panel.left - kGap, y + 4, fmt::format("{:g}", value), {.anchor = Anchor::end});
}

void draw_lines(Svg& svg, const StackPlot& plot, const Panel& panel) {
  double low = INFINITY, high = 0;
  for (const PlotSeries& line : plot.lines) {
    for (const double value : line.values) low = std::min(low, value), high = std::max(high, value);
  }
  const double from = std::floor(std::log10(low)), to = std::max(std::ceil(std::log10(high)), from + 1);
  const auto py = [&](double value) { return panel.bottom() - (std::log10(value) - from) / (to - from) * kHeight; };
  for (double e = from; e <= to; ++e) draw_tick(svg, panel, py(std::pow(10.0, e)), std::pow(10.0, e));
  draw_frame(svg, plot, panel, plot.line_axis);
  double legend = panel.bottom() + 52;
  for (size_t l = 0; l < plot.lines.size(); ++l) {
    std::vector<std::pair<double, double>> points;
    for (size_t i = 0; i < plot.columns.size(); ++i) points.emplace_back(panel.middle(i), py(plot.lines[l].values[i]));
    const char* color = l == 0 ? plot_color(0) : kLimit;
    const char* dashes = kDashes[l % std::size(kDashes)];
    svg.path(points, color, 2.5, dashes);
    for (const auto& [x, y] : points) svg.rect(x - 3.5, y - 3.5, 7, 7, color);
    legend += kLegendRow;
    svg.line(panel.left, legend - 4, panel.left + 36, legend - 4, color, 2.5, dashes);
    svg.text(panel.left + 44, legend, plot.lines[l].name);
  }
  for (size_t i = 0; i < plot.line_notes.size(); ++i) {
    svg.text(panel.middle(i) + 7, py(plot.lines[0].values[i]) + 15, plot.line_notes[i], {.size = 11, .halo = true});
  }
}

void draw_stack(Svg& svg, const StackPlot& plot, const Panel& panel) {
  std::vector<double> sums(plot.columns.size(), 0);
  for (const PlotSeries& amount : plot.stack) {
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += amount.values[i];
  }
  const std::vector<double> ticks = linear_ticks(std::max(plot.limit, *std::max_element(sums.begin(), sums.end())), 6);
  const auto height = [&](double value) { return value / ticks.back() * kHeight; };
  for (const double tick : ticks) draw_tick(svg, panel, panel.bottom() - height(tick), tick);
  draw_frame(svg, plot, panel, plot.stack_axis);
  std::vector<double> y(sums.size(), panel.bottom());
  for (size_t s = 0; s < plot.stack.size(); ++s) {
    for (size_t i = 0; i < y.size(); ++i) {
      const double h = height(plot.stack[s].values[i]);
      y[i] -= h;
      svg.rect(panel.left + panel.column * (static_cast<double>(i) + 0.15), y[i], panel.column * 0.7, h, plot_color(s));
    }
  }
  if (plot.limit > 0) {
    const double at = panel.bottom() - height(plot.limit);
    svg.line(panel.left, at, panel.right() + 6, at, kLimit, 2.5, kDashes[1]);
    svg.text(panel.right() + 12, at + 4, plot.limit_label, {.bold = true});
  }
  for (size_t i = 0; i < plot.stack_notes.size(); ++i) {
    svg.text(panel.middle(i), y[i] - 5, plot.stack_notes[i], {.anchor = Anchor::middle, .size = 11, .halo = true});
  }
  // The legend from the top down, as the colours are stacked.
  double legend = panel.bottom() + 52;
  for (size_t s = plot.stack.size(); s-- > 0;) {
    legend += kLegendRow;
    svg.rect(panel.left, legend - 11, 14, 14, plot_color(s));
    svg.text(panel.left + 22, legend, plot.stack[s].name);
  }
}

}  // namespace

std::string stack_plot(const StackPlot& plot) {
  const double notes = std::max(widest(plot.line_notes, 11), widest(plot.stack_notes, 11));
  const double column = std::max({kSmallestColumn, widest(plot.columns) + kGap, notes + kGap});
  constexpr double kTicks = 64;
  const double width = column * static_cast<double>(plot.columns.size());
  // Legends and axes may be wider than the columns.
  double left_width = std::max(width + (plot.line_notes.empty() ? 0 : text_width(plot.line_notes.back(), 11)),
                               text_width(plot.line_axis, kSize, /*bold=*/true));
  for (const PlotSeries& line : plot.lines) left_width = std::max(left_width, 44 + text_width(line.name, kSize));
  left_width = std::max(left_width, width / 2 + text_width(plot.x_axis, kSize) / 2);

  Panel left{.left = kLeft + kTicks, .top = 0, .column = column, .count = plot.columns.size()};
  Panel right = left;
  right.left += left_width + kTicks + 24;
  Svg svg;
  left.top = right.top = draw_title(svg, plot.title, plot.subtitle, kLeft, right.right() - kLeft) + 64;
  draw_lines(svg, plot, left);
  draw_stack(svg, plot, right);
  return svg.finish(plot.title);
}

}  // namespace strata::cli
