// An op's contract as a table: its views, caches and numbers, each with what it may not be. Every call of the case lists is spoilt in each
// of these ways, and must be refused for it: in the field's name, before anything has run.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "testkit/cases/registry.h"

namespace strata::test {

// Holds of a field in some calls only; absent: in all.
template <class P>
using When = std::function<bool(const P&)>;

struct ViewKind {
  bool optional = false;    // a call without it is another call
  bool output = false;      // rows must not overlap
  bool contiguous = false;  // rows must have no gap
};

template <class P>
struct ViewField {
  std::string name;
  std::function<TensorView&(P&)> of;
  // A character of every dimension: '=' where one more, or one less, contradicts something else, '*' where it need not.
  std::string extents;
  ViewKind is{};
  When<P> when{};
};

template <class P>
struct CacheField {
  CacheField(std::string field, std::function<PagedCache&(P&)> member, bool may_be_absent = false, When<P> holds = {})
      : name(std::move(field)), of(std::move(member)), optional(may_be_absent), when(std::move(holds)) {}
  CacheField(std::string field, PagedCache P::*member, bool may_be_absent = false, When<P> holds = {})
      : CacheField(
            std::move(field), [member](P& p) -> PagedCache& { return p.*member; }, may_be_absent, std::move(holds)) {}

  std::string name;
  std::function<PagedCache&(P&)> of;
  bool optional = false;
  When<P> when{};
};

// A number, or the like, that cannot be.
template <class P>
struct ValueField {
  std::string name;
  std::function<void(P&)> spoil;
  When<P> when{};
};

template <class P>
struct Contract {
  std::vector<ViewField<P>> views;
  std::vector<CacheField<P>> caches{};
  std::vector<ValueField<P>> values{};
};

// Parameters that may be changed, the weight that they point to too.
template <class P>
class Copy {
 public:
  explicit Copy(const P& from) : params(from) {
    if constexpr (requires { from.weight->packing; }) {
      weight_ = *from.weight;
      params.weight = &weight_;
    }
  }
  Copy(const Copy&) = delete;
  Copy& operator=(const Copy&) = delete;
  P params;

 private:
  LinearWeight weight_;
};

// One op, spoilt call by call.
template <class P>
class ContractTest {
 public:
  ContractTest(const Op<P>& op, Contract<P> contract)
      : op_(op),
        contract_(std::move(contract)),
        guarded_(op.name(), [&op](const P& p, DeviceId device) { op.check(p, device); }, {never()}) {}

  // Once for every combination of fields, dtypes and formats.
  void spoil(const P& call) {
    Copy<P> copy(call);
    if (!seen_.insert(combination(copy.params)).second) return;
    const std::vector<std::string> before = memory(copy.params);
    for (const auto& field : contract_.views) {
      const TensorView& view = field.of(copy.params);
      if (view.present() && holds(field.when, call)) spoil_view(field, view, call);
    }
    for (const auto& field : contract_.caches) {
      const PagedCache& cache = field.of(copy.params);
      if (cache.present() && holds(field.when, call)) spoil_cache(field, cache, call);
    }
    for (const auto& field : contract_.values) {
      if (holds(field.when, call)) expect_refused(call, field.name, "value", field.name + " ", field.spoil);
    }
    EXPECT_EQ(before, memory(copy.params)) << op_.name() << " wrote to memory of a call that it refused";
  }

  // Every field was there, and was spoilt.
  void expect_all_spoilt() const {
    const auto expect = [&](const std::string& name, const std::string& how) {
      EXPECT_TRUE(done_.contains(name + " " + how)) << op_.name() << ": no case lets " << name << " be spoilt by its " << how;
    };
    for (const auto& field : contract_.views) {
      for (const char* how : {"dtype", "rank", "device", "memory"}) expect(field.name, how);
      if (field.extents.find('=') != std::string::npos) expect(field.name, "extent");
      if (field.is.output && field.extents.size() > 1) expect(field.name, "overlap");
      if (field.is.contiguous) expect(field.name, "gap");
    }
    for (const auto& field : contract_.caches) {
      for (const char* how : {"format", "row_dim", "page_stride", "num_pages", "device", "memory"}) expect(field.name, how);
    }
    for (const auto& field : contract_.values) expect(field.name, "value");
  }

 private:
  static Implementation<P> never() {
    Implementation<P> impl;
    impl.name = "never";
    impl.supports = [](const P&, const Device&) { return Support::yes(); };
    impl.workspace_bytes = [](const P&, const Device&) -> size_t { return 0; };
    impl.run = [](const P&, const ExecutionContext&) {};
    impl.fuses = [](const P&, const Device&, std::string_view) { return true; };
    return impl;
  }
  static bool holds(const When<P>& when, const P& call) { return !when || when(call); }

  std::string combination(P& p) const {
    std::string text;
    for (const auto& field : contract_.views) {
      const TensorView& view = field.of(p);
      text += view.present() ? std::string(to_string(view.dtype)) + (holds(field.when, p) ? " " : "- ") : "- ";
      // A dimension of one has no stride, one of none no memory.
      for (int i = 0; i < view.rank; ++i) text += std::to_string(std::min<int64_t>(view.shape[i], 2));
    }
    for (const auto& field : contract_.caches) text += field.of(p).present() ? std::string(to_string(field.of(p).format)) + " " : "- ";
    return text;
  }

  // What every view and cache of a call begins with and ends with, as bytes.
  std::vector<std::string> memory(P& p) const {
    std::vector<std::string> all;
    for (const auto& field : contract_.views) {
      const TensorView& view = field.of(p);
      if (!view.present() || view.data == nullptr || view.numel() == 0) continue;
      int64_t elements = 1;
      for (int i = 0; i < view.rank; ++i) elements += (view.shape[i] - 1) * view.stride[i];
      all.emplace_back(view.ptr<char>(), static_cast<size_t>(elements) * size_of(view.dtype));
    }
    for (const auto& field : contract_.caches) {
      const PagedCache& cache = field.of(p);
      if (cache.data != nullptr)
        all.emplace_back(static_cast<const char*>(cache.data), static_cast<size_t>(cache.num_pages * cache.page_stride));
    }
    return all;
  }

  // `said`: what the message begins with after the op's name.
  void expect_refused(const P& call, const std::string& name, const std::string& how, const std::string& said,
                      const std::function<void(P&)>& change) {
    Copy<P> copy(call);
    change(copy.params);
    const std::string what = op_.name() + ", " + name + " spoilt by its " + how;
    done_.insert(name + " " + how);
    try {
      guarded_(copy.params, ExecutionContext{*device_});
      ADD_FAILURE() << what << ", is accepted";
    } catch (const Error& error) {
      const std::string message = error.what(), begin = op_.name() + ": " + said;
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument) << what << ": " << message;
      EXPECT_TRUE(message.starts_with(begin)) << what << ", must be refused as '" << begin << "', is refused as: " << message;
    }
  }

  void spoil_view(const ViewField<P>& field, const TensorView& view, const P& call) {
    const std::string& name = field.name;
    const auto spoil = [&](const std::string& how, const std::string& said, const std::function<void(TensorView&)>& change) {
      expect_refused(call, name, how, said, [&](P& p) { change(field.of(p)); });
    };
    ASSERT_EQ(static_cast<size_t>(view.rank), field.extents.size()) << op_.name() << ": " << name;
    spoil("dtype", name + " must be ", [](TensorView& v) { v.dtype = DType::f64; });
    spoil("rank", name + " must have ", [](TensorView& v) {
      if (v.rank < kMaxRank) v.shape[v.rank] = v.stride[v.rank] = 1;
      ++v.rank;
    });
    spoil("device", name + " must be on cpu", [](TensorView& v) { v.device = {DeviceKind::cuda, 7}; });
    if (!field.is.optional) spoil("absence", name + " is required", [](TensorView& v) { v = {}; });
    const int last = view.rank - 1;
    // A field that others must be like is not the one that is named.
    for (int i = 0; i <= last; ++i) {
      if (field.extents[static_cast<size_t>(i)] != '=') continue;
      spoil("extent", "", [i](TensorView& v) { ++v.shape[i]; });
      if (view.shape[i] > 0) spoil("extent", "", [i](TensorView& v) { --v.shape[i]; });
    }
    if (view.numel() == 0) return;
    spoil("memory", name + " must have memory", [](TensorView& v) { v.data = nullptr; });
    if (size_of(view.dtype) > 1) spoil("address", name + " must begin at", [](TensorView& v) { v.data = v.ptr<char>() + 1; });
    if (view.shape[last] > 1) spoil("last stride", name + " must have stride 1", [last](TensorView& v) { v.stride[last] = 2; });
    const std::string no_overlap = name + (field.is.contiguous ? " must be contiguous" : " must have a stride of at least");
    for (int i = 0; i < last; ++i) {
      if (view.shape[i] == 1) continue;
      if (field.is.output) spoil("overlap", no_overlap, [i](TensorView& v) { v.stride[i] = 0; });
      if (field.is.contiguous) spoil("gap", name + " must be contiguous", [i](TensorView& v) { ++v.stride[i]; });
    }
  }

  void spoil_cache(const CacheField<P>& field, const PagedCache& cache, const P& call) {
    const std::string& name = field.name;
    const auto spoil = [&](const std::string& how, const std::string& said, const std::function<void(PagedCache&)>& change) {
      expect_refused(call, name, how, said, [&](P& p) { change(field.of(p)); });
    };
    const KvFormat other = cache.format == KvFormat::state_f32 ? KvFormat::bf16 : KvFormat::state_f32;
    // What these must be depends on other fields, which may be named instead.
    spoil("format", "", [other](PagedCache& c) { c.format = other; });
    spoil("row_dim", "", [](PagedCache& c) { ++c.row_dim; });
    if (!field.optional) spoil("absence", "", [](PagedCache& c) { c = {}; });
    spoil("page_stride", name + " must have a page_stride",
          [](PagedCache& c) { c.page_stride = page_payload_bytes(c.format, c.row_dim, c.page_size) - 1; });
    spoil("num_pages", name + " must have num_pages", [](PagedCache& c) { c.num_pages = -1; });
    spoil("device", name + " must be on cpu", [](PagedCache& c) { c.device = {DeviceKind::cuda, 7}; });
    if (cache.num_pages > 0) spoil("memory", name + " must have memory", [](PagedCache& c) { c.data = nullptr; });
    if (cache.format == KvFormat::fp8_tensor) spoil("scale", name + ".scale must be", [](PagedCache& c) { c.scale = 0; });
  }

  const Op<P>& op_;
  Contract<P> contract_;
  Op<P> guarded_;
  std::shared_ptr<Device> device_ = open_device({});
  std::set<std::string> seen_, done_;
};

// All calls of the op's case list that take less than half a second to compare.
template <class P>
void expect_contract(const OpSet& ops, const Op<P>& op, Contract<P> contract) {
  ContractTest<P> test(op, std::move(contract));
  // Evaluated after the inputs of a call are made, before it runs.
  Implementation<P> asked = op.implementations().back();
  asked.name = "asked";
  asked.supports = [&](const P& call, const Device& device) {
    EXPECT_NO_THROW(op.check(call, device.id()));
    test.spoil(call);
    return Support::no("asked only");
  };
  asked.fuses = [](const P&, const Device&, std::string_view) { return true; };
  OpSet asking = ops;
  for_each_op(asking, [&](auto& each) {
    if constexpr (std::is_same_v<std::decay_t<decltype(each)>, Op<P>>) each.prepend(asked);
  });
  const auto device = open_device({});
  for (const auto& c : testkit::all_cases()) {
    if (c->op() != op.name() || !c->tags().test || c->tags().heavy) continue;
    SCOPED_TRACE(c->name());
    const testkit::CheckResult result = c->start_check(asking, {})->run(device, asked.name);
    EXPECT_EQ(result.outcome, testkit::Outcome::skipped) << result.message;
  }
  test.expect_all_spoilt();
}

}  // namespace strata::test
