// A table whose rows are printed as they come: the widths are given, a longer cell pushes what follows it.
#pragma once

#include <string>
#include <vector>

namespace strata::cli {

class StreamTable {
 public:
  // markdown: "| a | b |", for documents.
  StreamTable(std::vector<std::string> header, std::vector<size_t> widths, bool markdown);
  // Prints a row, before the first one the header, and flushes.
  void print(const std::vector<std::string>& cells);

 private:
  void line(const std::vector<std::string>& cells, bool header) const;

  std::vector<std::string> header_;
  std::vector<size_t> widths_;
  bool markdown_;
  bool begun_ = false;
};

}  // namespace strata::cli
