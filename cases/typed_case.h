// Cases of one op: what AnyCase hides behind names.
#pragma once

#include <utility>

#include "case.h"
#include "execution.h"

namespace strata::cases {

template <class Params>
const Implementation<Params>& find_implementation(const Op<Params>& op, const std::string& name) {
  for (const auto& implementation : op.implementations()) {
    if (implementation.name == name) return implementation;
  }
  throw Error(ErrorCode::invalid_argument, op.name() + " has no implementation '" + name + "'");
}

// Runs a built call as a caller would: check, workspace, run, and waiting for the end.
template <class Params>
std::string run_guarded(const Op<Params>& op, const Implementation<Params>& implementation, const Params& params,
                        const std::shared_ptr<Device>& device) {
  op.check(params);
  const GuardedWorkspace workspace(device, implementation.workspace_bytes(params, *device));
  implementation.run(params, ExecutionContext{*device, {}, workspace.get()});
  device->synchronize({});
  return workspace.check();
}

template <class Params>
class TypedCase final : public AnyCase {
 public:
  using Member = Op<Params> OpSet::*;

  TypedCase(std::string op, Member member, Case<Params> description, Tags tags)
      : AnyCase(std::move(op), description.name, tags), member_(member), case_(std::move(description)) {}

  std::vector<std::string> implementations(const OpSet& ops) const override {
    std::vector<std::string> names;
    for (const auto& implementation : (ops.*member_).implementations()) names.push_back(implementation.name);
    return names;
  }

  std::unique_ptr<CheckRun> start_check(const OpSet& ops, uint64_t seed) const override {
    return std::make_unique<Check>(*this, ops, seed);
  }

  Work prepare(const OpSet& ops, const std::shared_ptr<Device>& device, const std::string& implementation,
               const WorkOptions& options) const override;

 private:
  struct Call {
    Inputs inputs;
    Built<Params> built;
    Call(const TypedCase& c, std::shared_ptr<Device> device, const InputOptions& options)
        : inputs(std::move(device), options), built(c.case_.build(inputs)) {}
  };

  class Check final : public CheckRun {
   public:
    Check(const TypedCase& c, const OpSet& ops, uint64_t seed) : case_(c), ops_(ops), seed_(seed) {}

    CheckResult run(const std::shared_ptr<Device>& device, const std::string& name) override {
      const auto failed = [&](const std::string& what) {
        return CheckResult{Outcome::failed,
                           case_.op() + " " + case_.name() + ": " + name + " " + what + "\n  " + rerun_command(case_, *device, name, seed_)};
      };
      try {
        const Op<Params>& op = ops_.*case_.member_;
        const auto& implementation = find_implementation(op, name);
        Call call(case_, device, {.seed = seed_});
        Params& params = call.built.params;
        if (case_.case_.adapt) {
          std::string refusal = case_.case_.adapt(params, name, ops_, call.inputs);
          if (!refusal.empty()) return {Outcome::skipped, std::move(refusal)};
        }
        if (Support support = implementation.supports(params, *device); !support) return {Outcome::skipped, std::move(support.reason)};
        const Call& want = reference();
        if (const std::string what = run_guarded(op, implementation, params, device); !what.empty()) return failed(what);
        const std::string difference = compare_runs(call.inputs, call.built.outputs, want.inputs, want.built.outputs);
        return difference.empty() ? CheckResult{} : failed(difference);
      } catch (const std::exception& error) {
        return failed(std::string("threw: ") + error.what());
      }
    }

   private:
    const Call& reference() {
      if (!want_) {
        const Op<Params>& op = ops_.*case_.member_;
        auto call = std::make_unique<Call>(case_, open_device({}), InputOptions{.seed = seed_});
        run_guarded(op, find_implementation(op, "reference"), call->built.params, call->inputs.device());
        want_ = std::move(call);
      }
      return *want_;
    }

    const TypedCase& case_;
    const OpSet& ops_;
    uint64_t seed_;
    std::unique_ptr<Call> want_;
  };

  Member member_;
  Case<Params> case_;
};

template <class Params>
Work TypedCase<Params>::prepare(const OpSet& ops, const std::shared_ptr<Device>& device, const std::string& name,
                                const WorkOptions& options) const {
  struct State {
    const Op<Params>& op;
    std::shared_ptr<Device> device;
    const Implementation<Params>* implementation = nullptr;
    std::vector<std::unique_ptr<Call>> calls;
    Tensor workspace;
  };
  constexpr size_t kMaxCopies = 64;
  auto state = std::make_shared<State>(State{ops.*member_, device, nullptr, {}, {}});
  Work work;
  size_t bytes = 0;
  do {
    auto call = std::make_unique<Call>(*this, device, InputOptions{options.seed + state->calls.size(), options.share, false});
    Params& params = call->built.params;
    if (state->implementation == nullptr) {
      state->implementation = name.empty() ? &state->op.select(params, *device) : &find_implementation(state->op, name);
      work.implementation = state->implementation->name;
    }
    if (case_.adapt) {
      work.refusal = case_.adapt(params, work.implementation, ops, call->inputs);
      if (!work.refusal.empty()) return work;
    }
    if (Support support = state->implementation->supports(params, *device); !support) {
      work.refusal = support.reason;
      return work;
    }
    bytes += call->inputs.bytes();
    state->calls.push_back(std::move(call));
  } while (bytes < options.rotate_bytes && bytes + bytes / state->calls.size() <= options.rotate_bytes * 2 && state->calls.size() < kMaxCopies);

  const Built<Params>& first = state->calls.front()->built;
  const size_t workspace_bytes = state->implementation->workspace_bytes(first.params, *device);
  state->workspace = Tensor(device, DType::u8, {static_cast<int64_t>(workspace_bytes)});
  work.copies = state->calls.size();
  work.bytes = first.bytes;
  work.flops = first.flops;
  work.call = [state, workspace_bytes](size_t copy) {
    const Params& params = state->calls[copy]->built.params;
    state->op.check(params);
    state->implementation->run(params, ExecutionContext{*state->device, {}, {state->workspace.view().data, workspace_bytes}});
  };
  return work;
}

// Adds cases of one op to a list.
template <class Params>
class CaseAdder {
 public:
  CaseAdder(CaseList& list, std::string op, Op<Params> OpSet::*member) : list_(list), op_(std::move(op)), member_(member) {}

  void add(Case<Params> description, Tags tags) {
    list_.push_back(std::make_unique<TypedCase<Params>>(op_, member_, std::move(description), tags));
  }
  void test(std::string name, std::function<Built<Params>(Inputs&)> build) { add({std::move(name), std::move(build), nullptr}, {.test = true}); }
  void heavy(std::string name, std::function<Built<Params>(Inputs&)> build) {
    add({std::move(name), std::move(build), nullptr}, {.test = true, .heavy = true});
  }
  void bench(std::string name, std::function<Built<Params>(Inputs&)> build) { add({std::move(name), std::move(build), nullptr}, {.bench = true}); }

 private:
  CaseList& list_;
  std::string op_;
  Op<Params> OpSet::*member_;
};

}  // namespace strata::cases
