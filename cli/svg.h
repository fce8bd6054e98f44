// Plots for --plot: lines over logarithmic axes, and bars. Plain SVG text, no dependencies.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace strata::cli {

struct Series {
  std::string name;
  std::vector<std::pair<double, double>> points;  // all positive
};
// x and y on log axes. Throws strata::Error when the file cannot be written.
void write_line_plot(const std::string& path, const std::string& title, const std::string& x_label, const std::string& y_label,
                     const std::vector<Series>& series);

struct Bar {
  std::string label;
  double value = 0;
  std::string text;  // written behind the bar
};
// Horizontal bars from 0 to `maximum` (0: the largest value).
void write_bar_plot(const std::string& path, const std::string& title, const std::vector<Bar>& bars, double maximum = 0);

}  // namespace strata::cli
