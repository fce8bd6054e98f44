#include "bar_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "svg.h"

namespace strata::cli {
namespace {

constexpr double kSize = 12, kRow = 24, kBar = 16, kPlot = 480, kGap = 8, kLeft = 20;

double drawn(double value) { return std::isfinite(value) ? std::max(value, 0.0) : 0.0; }

}  // namespace

std::string bar_plot(const BarPlot& plot) {
  double labels = 0, maximum = plot.roof;
  for (const Bar& bar : plot.bars) {
    labels = std::max(labels, text_width(bar.label, kSize));
    maximum = std::max(maximum, drawn(bar.value));
  }
  const std::vector<double> ticks = linear_ticks(maximum, 5);
  const double x0 = kLeft + labels + kGap;
  const auto px = [&](double value) { return x0 + value / ticks.back() * kPlot; };

  Svg svg;
  const double top = draw_title(svg, plot.title, plot.subtitle, kLeft, labels + kGap + kPlot) + kRow + (plot.roof > 0 ? kRow : kGap);
  const double bottom = top + kRow * static_cast<double>(plot.bars.size());
  for (const double tick : ticks) {
    svg.line(px(tick), top, px(tick), bottom + 4, kGrid);
    svg.text(px(tick), bottom + 20, fmt::format("{:g}", tick), {.anchor = Anchor::middle});
  }
  for (size_t i = 0; i < plot.bars.size(); ++i) {
    const Bar& bar = plot.bars[i];
    const double y = top + kRow * static_cast<double>(i), end = px(drawn(bar.value));
    svg.text(x0 - kGap, y + kBar, bar.label, {.anchor = Anchor::end});
    if (end > x0) svg.rect(x0, y + 4, end - x0, kBar, plot_color(0));
  }
  svg.line(x0, top, x0, bottom, kAxis);
  if (plot.roof > 0) {
    svg.line(px(plot.roof), top - 6, px(plot.roof), bottom + 4, kLimit, 2, "6 3");
    svg.text(px(plot.roof), top - 12, plot.roof_label, {.anchor = Anchor::end, .bold = true});
  }
  // The figures, clear of the roof's line.
  for (size_t i = 0; i < plot.bars.size(); ++i) {
    const Bar& bar = plot.bars[i];
    double x = px(drawn(bar.value)) + 6;
    if (plot.roof > 0 && x < px(plot.roof) + 6 && x + text_width(bar.text, kSize) > px(plot.roof) - 2) x = px(plot.roof) + 6;
    svg.text(x, top + kRow * static_cast<double>(i) + kBar, bar.text);
  }
  svg.text(x0 + kPlot / 2, bottom + 42, plot.axis, {.anchor = Anchor::middle});
  return svg.finish(plot.title);
}

}  // namespace strata::cli
