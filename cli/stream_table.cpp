#include "stream_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

namespace strata::cli {

StreamTable::StreamTable(std::vector<std::string> header, std::vector<size_t> widths, bool markdown)
    : header_(std::move(header)), widths_(std::move(widths)), markdown_(markdown) {
  for (size_t c = 0; c < header_.size(); ++c) widths_[c] = std::max(widths_[c], header_[c].size());
}

void StreamTable::print(const std::vector<std::string>& cells) {
  if (!begun_) line(header_, true);
  if (!begun_ && markdown_) {
    std::string rule = "|";
    for (size_t c = 0; c < header_.size(); ++c) rule += "---|";
    fmt::print("{}\n", rule);
  }
  begun_ = true;
  line(cells, false);
  std::fflush(stdout);
}

void StreamTable::line(const std::vector<std::string>& cells, bool header) const {
  std::string text = markdown_ ? "|" : "";
  for (size_t c = 0; c < cells.size(); ++c) {
    if (markdown_) {
      text += " " + cells[c] + " |";
      continue;
    }
    const bool number = !header && !cells[c].empty() && cells[c].find_first_of("0123456789-+") == 0 && c > 2;
    text += number ? fmt::format("{:>{}}", cells[c], widths_[c]) : fmt::format("{:<{}}", cells[c], widths_[c]);
    if (c + 1 < cells.size()) text += "  ";
  }
  text.erase(text.find_last_not_of(' ') + 1);
  fmt::print("{}\n", text);
}

}  // namespace strata::cli
