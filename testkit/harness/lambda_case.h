// A benchmark entry made of a function: for what is more than one op, such as a whole layer.
#pragma once

#include <utility>

#include "testkit/harness/case.h"

namespace strata::testkit {

class LambdaCase final : public AnyCase {
 public:
  // Fills in call, copies, bytes and flops of a Work (implementation and refusal where it applies) for a device.
  using Prepare = std::function<Work(const OpSet&, const std::shared_ptr<Device>&, const WorkOptions&)>;

  // `op` is the column that stands where other entries have their op: "layer".
  LambdaCase(std::string op, std::string name, Prepare prepare)
      : AnyCase(std::move(op), std::move(name), {.bench = true}), prepare_(std::move(prepare)) {}

  std::vector<std::string> implementations(const OpSet&) const override { return {"composed"}; }
  std::unique_ptr<CheckRun> start_check(const OpSet&, const CheckOptions&) const override {
    throw Error(ErrorCode::unsupported, op() + " " + name() + " is a benchmark, not a test");
  }
  std::string check_planning(const OpSet&, const std::shared_ptr<Device>&) const override { return ""; }
  Work prepare(const OpSet& ops, const std::shared_ptr<Device>& device, const std::string&, const WorkOptions& options) const override {
    Work work = prepare_(ops, device, options);
    if (work.implementation.empty()) work.implementation = "composed";
    return work;
  }

 private:
  Prepare prepare_;
};

}  // namespace strata::testkit
