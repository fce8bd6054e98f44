// Cases of one op: the typed implementation of AnyCase.
#pragma once

#include <string_view>
#include <utility>

#include "testkit/harness/case.h"
#include "testkit/harness/execution.h"

namespace strata::testkit {

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
                        const std::shared_ptr<Device>& device, const Hints& hints = {}) {
  op.check(params, device->id());
  const GuardedWorkspace workspace(device, implementation.workspace_bytes(params, *device));
  implementation.run(params, ExecutionContext{*device, {}, workspace.get(), hints});
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

  std::unique_ptr<CheckRun> start_check(const OpSet& ops, const CheckOptions& options) const override {
    return std::make_unique<Check>(*this, ops, options);
  }

  std::string check_planning(const OpSet& ops, const std::shared_ptr<Device>& device) const override {
    const Call call(*this, device, {.keep_images = false, .offset = 8}), shapes(*this, shape_only_device(*device), {.keep_images = false});
    std::string text;
    for (const auto& implementation : (ops.*member_).implementations()) {
      const Support run = implementation.supports(call.built.params, *device), plan = implementation.supports(shapes.built.params, *device);
      const std::string prefix = (text.empty() ? "" : "\n") + op() + " " + name() + ": " + implementation.name;
      if (run.reason != plan.reason) {
        text += prefix + " answers '" + plan.reason + "' to shapes and '" + run.reason + "' to the call";
      } else if (run) {
        const size_t needed = implementation.workspace_bytes(call.built.params, *device);
        const size_t planned = implementation.workspace_bytes(shapes.built.params, *device);
        if (planned != needed) {
          text += prefix + " plans " + std::to_string(planned) + " bytes of workspace and needs " + std::to_string(needed);
        }
      }
    }
    return text;
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
    Check(const TypedCase& c, const OpSet& ops, const CheckOptions& options) : case_(c), ops_(ops), options_(options) {}

    CheckResult run(const std::shared_ptr<Device>& device, const std::string& name) override {
      const auto failed = [&](const std::string& what) {
        return CheckResult{Outcome::failed, case_.op() + " " + case_.name() + ": " + name + " " + what + "\n  " +
                                                rerun_command(case_, *device, name, options_)};
      };
      try {
        const Op<Params>& op = ops_.*case_.member_;
        const auto& implementation = find_implementation(op, name);
        Call call(case_, device, {.seed = options_.seed, .offset = options_.offset, .drawn = case_.tags().drawn});
        Params& params = call.built.params;
        if (case_.case_.adapt) {
          std::string refusal = case_.case_.adapt(params, name, ops_, call.inputs);
          if (!refusal.empty()) return {Outcome::skipped, std::move(refusal)};
        }
        if (Support support = implementation.supports(params, *device); !support) return {Outcome::skipped, std::move(support.reason)};
        if (options_.offset > 0) {
          try {
            op.check(params, device->id());
          } catch (const Error& error) {
            // The op's contract requires more. No check may mention anything else.
            if (std::string_view(error.what()).find("must begin at a multiple of") == std::string_view::npos) throw;
            return {Outcome::skipped, error.what()};
          }
        }
        const Call& want = reference();
        if (const std::string what = run_guarded(op, implementation, params, device, call.built.hints); !what.empty()) return failed(what);
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
        auto call = std::make_unique<Call>(case_, open_device({}), InputOptions{.seed = options_.seed, .drawn = case_.tags().drawn});
        run_guarded(op, find_implementation(op, "reference"), call->built.params, call->inputs.device());
        want_ = std::move(call);
      }
      return *want_;
    }

    const TypedCase& case_;
    const OpSet& ops_;
    CheckOptions options_;
    std::unique_ptr<Call> want_;
  };

  Member member_;
  Case<Params> case_;
};

template <class Params>
Work TypedCase<Params>::prepare(const OpSet& ops, const std::shared_ptr<Device>& device, const std::string& name,
                                const WorkOptions& options) const {
  struct State {
    std::shared_ptr<Device> device;
    Op<Params> op;
    Implementation<Params> implementation;
    std::vector<std::unique_ptr<Call>> calls;
    Tensor workspace;
  };
  const Op<Params>& op = ops.*member_;
  const auto make_call = [&](size_t copy) {
    return std::make_unique<Call>(*this, device, InputOptions{options.seed + copy, options.share, false});
  };
  const std::string wanted = name.empty() ? detail::forced_implementation(op.name(), *device) : name;
  // The call as this implementation takes it, or why it does not.
  const auto fit = [&](Call& call, const Implementation<Params>& implementation) {
    Params trial = call.built.params;
    if (case_.adapt) {
      if (std::string refusal = case_.adapt(trial, implementation.name, ops, call.inputs); !refusal.empty()) return refusal;
    }
    // As Op::select: what is named need not be the one that should run the call.
    const Support support = wanted.empty() ? implementation.eligible(trial, *device) : implementation.supports(trial, *device);
    if (!support) return support.reason;
    call.built.params = trial;
    return std::string();
  };

  Work work;
  auto call = make_call(0);
  // A caller adapts its call to an implementation (packs the weight) as well: the first one that fits is the one it gets.
  const Implementation<Params>* chosen = nullptr;
  for (const auto& implementation : op.implementations()) {
    if (!wanted.empty() && implementation.name != wanted) continue;
    const std::string refusal = fit(*call, implementation);
    if (refusal.empty()) {
      chosen = &implementation;
      break;
    }
    work.refusal += (work.refusal.empty() ? "" : "; ") + implementation.name + ": " + refusal;
  }
  if (chosen == nullptr) {
    if (work.refusal.empty()) work.refusal = "no such implementation";
    return work;
  }
  work.refusal.clear();
  work.implementation = chosen->name;

  auto state = std::make_shared<State>(State{device, op, *chosen, {}, {}});
  size_t bytes = call->inputs.bytes();
  state->calls.push_back(std::move(call));
  while (bytes < options.rotate_bytes && state->calls.size() < kMaxCopies) {
    call = make_call(state->calls.size());
    fit(*call, *chosen);
    bytes += call->inputs.bytes();
    state->calls.push_back(std::move(call));
  }

  const Built<Params>& first = state->calls.front()->built;
  const int64_t workspace_bytes = chosen->workspace_bytes(first.params, *device);
  state->workspace = Tensor(device, DType::u8, {workspace_bytes});
  work.copies = state->calls.size();
  work.bytes = first.bytes;
  work.flops = first.flops;
  work.call = [state, workspace_bytes](size_t copy, Stream stream) {
    const Params& params = state->calls[copy]->built.params;
    state->op.check(params, state->device->id());
    state->implementation.run(params, ExecutionContext{*state->device, stream, {state->workspace.view().data, workspace_bytes}});
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
  void test(std::string name, std::function<Built<Params>(Inputs&)> build) {
    add({std::move(name), std::move(build), nullptr}, {.test = true});
  }
  void heavy(std::string name, std::function<Built<Params>(Inputs&)> build) {
    add({std::move(name), std::move(build), nullptr}, {.test = true, .heavy = true});
  }
  void gpu(std::string name, std::function<Built<Params>(Inputs&)> build) {
    add({std::move(name), std::move(build), nullptr}, {.test = true, .gpu = true});
  }
  void drawn(std::string name, std::function<Built<Params>(Inputs&)> build) {
    add({std::move(name), std::move(build), nullptr}, {.test = true, .drawn = true});
  }
  void bench(std::string name, std::function<Built<Params>(Inputs&)> build) {
    add({std::move(name), std::move(build), nullptr}, {.bench = true});
  }

 private:
  CaseList& list_;
  std::string op_;
  Op<Params> OpSet::*member_;
};

}  // namespace strata::testkit
