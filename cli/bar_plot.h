// Horizontal bars against a limit: `bench --plot`.
#pragma once

#include <string>
#include <vector>

namespace strata::cli {

struct Bar {
  std::string label;
  double value = 0;
  std::string text;  // written at the end of the bar
};

struct BarPlot {
  std::string title;     // what is measured, of which model
  std::string subtitle;  // on which machine
  std::string axis;      // quantity and unit: "share of the machine's roof (%)"
  double roof = 0;       // where a line marks the most that can be reached; 0: nowhere
  std::string roof_label;
  std::vector<Bar> bars;  // values that are no finite positive number have no bar
};

// The text of the SVG file. Rows and margins grow with the labels.
std::string bar_plot(const BarPlot& plot);

}  // namespace strata::cli
