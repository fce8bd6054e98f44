// The op calls that something composed of ops makes, kept so that each can be made again by itself.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "strata/op_set.h"

namespace strata::testkit {

struct RecordedCall {
  std::string op;
  std::string implementation;
  std::string weight;               // the matrix of a product: "wq_b"; empty: none
  std::string shape;                // of the weight, the heads or the entries, and the cache's format; empty: none
  int lane = 0;                     // 0: the stream of the whole; others in the order of their first call
  std::function<void(Stream)> run;  // with the arguments and the workspace that it had
};

// Its ops run as they are, and note their calls while record() runs. Layers keep copies of the ops that they are made with.
class CallRecorder {
 public:
  // runs: whether calls are checked and made, or only noted, as for layers on a PlanningDevice.
  explicit CallRecorder(const OpSet& ops, bool runs = true);
  const OpSet& ops() const { return ops_; }

  // The calls that work() makes for `stream`, in order. What they use must outlive them.
  std::vector<RecordedCall> record(Stream stream, const std::function<void()>& work);

 private:
  struct Log {
    bool on = false;
    std::vector<RecordedCall> calls;
    std::vector<void*> streams;
  };
  template <class Params>
  void note_calls(Op<Params>& op);

  bool runs_;
  std::shared_ptr<Log> log_ = std::make_shared<Log>();
  OpSet ops_;
};

}  // namespace strata::testkit
