// What `--list` prints: the cases that a command is about.
#pragma once

#include "testkit/harness/case.h"
#include "common.h"

namespace strata::cli {

class CaseTable {
 public:
  void add(const testkit::AnyCase& c);
  bool empty() const { return rows_.empty(); }
  void print(bool json) const;

 private:
  Json rows_ = Json::array();
  Table table_{{"op", "case", "tags"}};
};

}  // namespace strata::cli
