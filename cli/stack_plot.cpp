#include "stack_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "svg.h"

namespace strata::cli {
namespace {

constexpr double kSize = 12, kNote = 11, kLeft = 20, kHeight = 400, kGap = 8, kLegendRow = 20, kSmallestColumn = 52;
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

using Points = std::vector<std::pair<double, double>>;

struct Box {
  double left, top, right, bottom;
};

// Whether a line through these points, from left to right, crosses the box.
bool crosses(const Points& line, const Box& box) {
  for (size_t i = 1; i < line.size(); ++i) {
    const auto [x0, y0] = line[i - 1];
    const auto [x1, y1] = line[i];
    const double from = std::max(x0, box.left), to = std::min(x1, box.right);
    if (from > to) continue;
    const double slope = (y1 - y0) / (x1 - x0), a = y0 + (from - x0) * slope, b = y0 + (to - x0) * slope;
    if (std::min(a, b) <= box.bottom && std::max(a, b) >= box.top) return true;
  }
  return false;
}

// A note at a point: below it, or where a line would strike it through, at the first of its other corners where none does.
void draw_note(Svg& svg, std::pair<double, double> point, const std::string& note, const std::vector<Points>& lines) {
  constexpr double kAcross = 7, kBelow = 15, kAbove = -9;
  const double width = text_width(note, kNote);
  const auto box_at = [&](double dx, double dy) {
    const double left = point.first + dx - (dx < 0 ? width : 0), y = point.second + dy;
    return Box{left, y - kNote, left + width, y + 3};
  };
  const std::pair<double, double> corners[] = {{kAcross, kBelow}, {kAcross, kAbove}, {-kAcross, kAbove}, {-kAcross, kBelow}};
  const auto* free = std::find_if(std::begin(corners), std::end(corners), [&](const auto& corner) {
    return std::none_of(lines.begin(), lines.end(), [&](const Points& line) { return crosses(line, box_at(corner.first, corner.second)); });
  });
  const auto [dx, dy] = free == std::end(corners) ? corners[0] : *free;
  svg.text(point.first + dx, point.second + dy, note, {.anchor = dx < 0 ? Anchor::end : Anchor::start, .size = kNote, .halo = true});
}

void draw_lines(Svg& svg, const StackPlot& plot, const Panel& panel) {
  double low = INFINITY, high = 0;
  for (const PlotSeries& line : plot.lines) {
    for (const double value : line.values) low = std::min(low, value), high = std::max(high, value);
  }
  const double from = std::floor(std::log10(low)), to = std::max(std::ceil(std::log10(high)), from + 1);
  const auto py = [&](double value) { return panel.bottom() - (std::log10(value) - from) / (to - from) * kHeight; };
  for (int e = static_cast<int>(from); e <= static_cast<int>(to); ++e) draw_tick(svg, panel, py(std::pow(10.0, e)), std::pow(10.0, e));
  draw_frame(svg, plot, panel, plot.line_axis);
  double legend = panel.bottom() + 52;
  std::vector<Points> lines;
  for (size_t l = 0; l < plot.lines.size(); ++l) {
    Points& points = lines.emplace_back();
    for (size_t i = 0; i < plot.columns.size(); ++i) points.emplace_back(panel.middle(i), py(plot.lines[l].values[i]));
    const char* color = l == 0 ? plot_color(0) : kLimit;
    const char* dashes = kDashes[l % std::size(kDashes)];
    svg.path(points, color, 2.5, dashes);
    for (const auto& [x, y] : points) svg.rect(x - 3.5, y - 3.5, 7, 7, color);
    legend += kLegendRow;
    svg.line(panel.left, legend - 4, panel.left + 36, legend - 4, color, 2.5, dashes);
    svg.text(panel.left + 44, legend, plot.lines[l].name);
  }
  for (size_t i = 0; i < plot.line_notes.size(); ++i) draw_note(svg, lines[0][i], plot.line_notes[i], lines);
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
  const double at = panel.bottom() - height(plot.limit);
  if (plot.limit > 0) {
    svg.line(panel.left, at, panel.right() + 6, at, kLimit, 2.5, kDashes[1]);
    svg.text(panel.right() + 12, at + 4, plot.limit_label, {.bold = true});
  }
  for (size_t i = 0; i < plot.stack_notes.size(); ++i) {
    const bool struck = plot.limit > 0 && at > y[i] - 5 - kNote && at < y[i];
    svg.text(panel.middle(i), (struck ? at : y[i]) - 5, plot.stack_notes[i], {.anchor = Anchor::middle, .size = kNote, .halo = true});
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
  const double notes = std::max(widest(plot.line_notes, kNote), widest(plot.stack_notes, kNote));
  const double column = std::max({kSmallestColumn, widest(plot.columns) + kGap, notes + kGap});
  constexpr double kTicks = 64;
  const double width = column * static_cast<double>(plot.columns.size());
  // Legends and axes may be wider than the columns.
  double left_width = std::max(width + (plot.line_notes.empty() ? 0 : text_width(plot.line_notes.back(), kNote)),
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
