// One description of a call drives its test (`strata check`, tests/ops), its benchmark (`strata bench`) and the support table.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "testkit/harness/compare.h"
#include "testkit/harness/inputs.h"
#include "testkit/harness/recorded_calls.h"
#include "strata/op_set.h"

namespace strata::testkit {

// What a call writes, and when it is right. Either a view, or a whole cache.
struct Output {
  std::string name;
  TensorView view;
  PagedCache cache;
  std::vector<int64_t> computed;  // cache: rows whose values may differ within the tolerance; every other byte is exact
  Tolerance tolerance;
  // Instead of the tolerance, where correctness is not element by element. Called with host copies and the device under test; what it
  // captures belongs to the reference's run, whose inputs are on the host.
  std::function<std::string(const HostArray& got, const HostArray& want, DeviceId device)> compare;
};

inline Output view_output(std::string name, const TensorView& view, const Tolerance& tolerance) {
  return {.name = std::move(name), .view = view, .cache = {}, .computed = {}, .tolerance = tolerance, .compare = nullptr};
}
inline Output cache_output(std::string name, const PagedCache& cache, std::vector<int64_t> computed, const Tolerance& tolerance) {
  return {.name = std::move(name), .view = {}, .cache = cache, .computed = std::move(computed), .tolerance = tolerance, .compare = nullptr};
}

// A call on one device. bytes and flops are the least that must be moved and computed: what the machine's roof is measured against.
template <class Params>
struct Built {
  Params params;
  std::vector<Output> outputs;
  double bytes = 0;
  double flops = 0;
  Hints hints{};
};

template <class Params>
struct Case {
  std::string name;
  std::function<Built<Params>(Inputs&)> build;
  // Changes the call for one implementation (a packed weight). Returns why this implementation cannot take the case, or nothing.
  std::function<std::string(Params&, const std::string& implementation, const OpSet&, Inputs&)> adapt;
};

struct Tags {
  bool test = false;
  bool bench = false;
  bool heavy = false;  // a test that takes more than half a second of one core
  bool gpu = false;    // a test whose size or schedule makes a difference to a GPU's kernels alone
  bool drawn = false;  // a test whose shape was drawn at random
};

enum class Outcome : uint8_t { passed, failed, skipped };
struct CheckResult {
  Outcome outcome = Outcome::passed;
  std::string message;  // failed: what is wrong and the command that reruns it; skipped: the refusal
};

struct CheckOptions {
  uint64_t seed = 1;
  size_t offset = 0;  // of all memory but the reference's, as in InputOptions
};

// One case with one seed against the reference, which runs once however many implementations follow.
class CheckRun {
 public:
  virtual ~CheckRun() = default;
  virtual CheckResult run(const std::shared_ptr<Device>& device, const std::string& implementation) = 0;
};

// A call ready to be timed. `call(i, stream)` runs copy i of the inputs.
struct Work {
  std::string refusal;  // not empty: the implementation does not take the case
  std::string implementation;
  size_t copies = 1;
  std::function<void(size_t copy, Stream stream)> call;
  std::function<std::vector<RecordedCall>()> record;  // the op calls that a call consists of; absent: it is one
  double bytes = 0;
  double flops = 0;
};

inline constexpr size_t kMaxCopies = 64;  // of the inputs of a timed call; those of a small call fit a cache even so

struct WorkOptions {
  uint64_t seed = 1;
  double share = 1.0;
  size_t rotate_bytes = 0;  // copies of the inputs are made until they fill this much memory, so that caches do not hold them
};

class AnyCase {
 public:
  AnyCase(std::string op, std::string name, Tags tags) : op_(std::move(op)), name_(std::move(name)), tags_(tags) {}
  virtual ~AnyCase() = default;

  const std::string& op() const { return op_; }
  const std::string& name() const { return name_; }
  const Tags& tags() const { return tags_; }

  // Names, in the op's order.
  virtual std::vector<std::string> implementations(const OpSet& ops) const = 0;
  virtual std::unique_ptr<CheckRun> start_check(const OpSet& ops, const CheckOptions& options) const = 0;
  // Planning is running: what an implementation answers about a call without memory is what it answers about the call. Nothing, or lines.
  virtual std::string check_planning(const OpSet& ops, const std::shared_ptr<Device>& device) const = 0;
  // implementation empty: the one that the op selects.
  virtual Work prepare(const OpSet& ops, const std::shared_ptr<Device>& device, const std::string& implementation,
                       const WorkOptions& options) const = 0;

 private:
  std::string op_;
  std::string name_;
  Tags tags_;
};

using CaseList = std::vector<std::unique_ptr<AnyCase>>;

// "strata check --op X --case Y --impl Z --device D --seed N", with the offset, the instruction set and the thread count where they are not
// the default.
std::string rerun_command(const AnyCase& c, const Device& device, const std::string& implementation, const CheckOptions& options);

}  // namespace strata::testkit
