// Columns of stacked amounts, and how their sums compare with other amounts: `plan --plot`.
#pragma once

#include <string>
#include <vector>

namespace strata::cli {

struct PlotSeries {
  std::string name;
  std::vector<double> values;  // one of every column
};

struct StackPlot {
  std::string title;     // of which model
  std::string subtitle;  // under which conditions, on which machine
  std::string x_axis;
  std::vector<std::string> columns;
  // Left: lines over a logarithmic axis; values above 0.
  std::string line_axis;
  std::vector<PlotSeries> lines;
  std::vector<std::string> line_notes;  // one of every column, written at the first line
  // Right: the stack, from the bottom up, on an axis of its own.
  std::string stack_axis;
  std::vector<PlotSeries> stack;
  std::vector<std::string> stack_notes;  // one of every column, written above it
  double limit = 0;                      // a line across the stack; 0: none
  std::string limit_label;
};

// The text of the SVG file. There is at least one column, line and stacked amount.
std::string stack_plot(const StackPlot& plot);

}  // namespace strata::cli
