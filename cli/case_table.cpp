#include "case_table.h"

namespace strata::cli {

void CaseTable::add(const testkit::AnyCase& c) {
  table_.add({c.op(), c.name(), c.tags().heavy ? "heavy" : ""});
  rows_.push_back({{"op", c.op()}, {"case", c.name()}, {"heavy", c.tags().heavy}});
}

void CaseTable::print(bool json) const { json ? print_json(rows_) : table_.print(); }

}  // namespace strata::cli
