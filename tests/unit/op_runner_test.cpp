// The order of streams when work is put beside other work, above all when it throws: what a lane was given before then still runs, and
// whoever uses the stream of the call next must not overtake it.
#include "layers/op_runner.h"

#include <gmock/gmock.h>

#include <map>
#include <optional>

#include "core/host_device.h"

namespace strata {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// Streams and events are numbers, and what is asked of them is written down.
class NotedDevice final : public HostDevice {
 public:
  Stream create_stream() override { return {reinterpret_cast<void*>(++streams_)}; }
  Event create_event() override { return {reinterpret_cast<void*>(++events_)}; }
  void record(Event event, Stream stream) override {
    if (broken) throw Error(ErrorCode::device_failure, "record");
    recorded_[number(event.handle)] = number(stream.handle);
  }
  void wait(Event event, Stream stream) override {
    notes.push_back(std::to_string(number(stream.handle)) + " waits for " + std::to_string(recorded_.at(number(event.handle))));
  }

  std::vector<std::string> notes;
  bool broken = false;

 private:
  static uintptr_t number(const void* handle) { return reinterpret_cast<uintptr_t>(handle); }
  uintptr_t streams_ = 0, events_ = 0;
  std::map<uintptr_t, uintptr_t> recorded_;
};

// The lanes' streams are 1 and 2, the call's is 9.
class OpRunnerTest : public testing::Test {
 protected:
  // Runs f(runner) as a forward does.
  template <class F>
  void forward(F&& f) {
    Arena arena(device_->id(), {memory_, sizeof(memory_)});
    OpRunner runner(*device_, {reinterpret_cast<void*>(9)}, ops_, arena, &lanes_);
    f(runner);
  }
  // An op that has no contract and fails when it runs.
  Op<RmsNormPairParams> failing_op() const {
    return {"failing",
            [](const RmsNormPairParams&, DeviceId) {},
            {{.name = "failing",
              .supports = [](const RmsNormPairParams&, const Device&) { return Support::yes(); },
              .workspace_bytes = [](const RmsNormPairParams&, const Device&) { return size_t{0}; },
              .run = [](const RmsNormPairParams&, const ExecutionContext&) { throw Error(ErrorCode::device_failure, "the op's own"); }}}};
  }
  std::vector<std::string>& notes() { return device_->notes; }

  std::shared_ptr<NotedDevice> device_ = std::make_shared<NotedDevice>();
  Lanes lanes_{device_};
  OpSet ops_ = default_ops();
  alignas(256) std::byte memory_[4096];
};

TEST_F(OpRunnerTest, ALaneIsForkedAndJoinedOnce) {
  forward([&](OpRunner& run) {
    run.aside(0, [](OpRunner&) {});
    run.join(0);
    notes().emplace_back("joined");
    run.join();
  });
  EXPECT_THAT(notes(), ElementsAre("1 waits for 9", "9 waits for 1", "joined"));
}

TEST_F(OpRunnerTest, WorkThatThrowsAsideIsJoined) {
  const Op<RmsNormPairParams> op = failing_op();
  const auto step = [&] {
    forward([&](OpRunner& run) {
      run.aside(1, [&](OpRunner& aside) { aside(op, {}); });
      notes().emplace_back("not reached");
    });
  };
  EXPECT_THROW(step(), Error);
  EXPECT_THAT(notes(), ElementsAre("2 waits for 9", "9 waits for 2"));
}

TEST_F(OpRunnerTest, WorkThatThrowsBesideALaneJoinsIt) {
  const Op<RmsNormPairParams> op = failing_op();
  const auto step = [&] {
    forward([&](OpRunner& run) {
      run.aside(0, [](OpRunner&) {});
      run.aside(1, [](OpRunner&) {});
      run(op, {});
    });
  };
  EXPECT_THROW(step(), Error);
  EXPECT_THAT(notes(), ElementsAre("1 waits for 9", "2 waits for 9", "9 waits for 1", "9 waits for 2"));
}

// The error of the op, not that of the join, reaches the caller.
TEST_F(OpRunnerTest, ADeviceThatFailsMeanwhileHidesNoError) {
  const auto step = [&] {
    forward([&](OpRunner& run) {
      run.aside(0, [](OpRunner&) {});
      device_->broken = true;
      throw Error(ErrorCode::invalid_argument, "the first");
    });
  };
  try {
    step();
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "the first");
  }
}

TEST_F(OpRunnerTest, APreparedCallHasItsLaneAndMemoryOfItsOwn) {
  struct Call {
    void* stream;
    std::byte* workspace;
  };
  std::vector<Call> calls;
  const Op<RmsNormPairParams> op{"noted",
                                 [](const RmsNormPairParams&, DeviceId) {},
                                 {{.name = "noted",
                                   .supports = [](const RmsNormPairParams&, const Device&) { return Support::yes(); },
                                   .workspace_bytes = [](const RmsNormPairParams&, const Device&) { return size_t{500}; },
                                   .run =
                                       [&](const RmsNormPairParams&, const ExecutionContext& context) {
                                         EXPECT_GE(context.workspace.bytes, 500);
                                         calls.push_back({context.stream.handle, static_cast<std::byte*>(context.workspace.data)});
                                       }}}};
  const auto step = [&](OpRunner& run) {
    std::optional<OpRunner::Prepared<RmsNormPairParams>> later;
    run.aside(0, [&](OpRunner& aside) { later.emplace(aside.prepare(op, {})); });
    EXPECT_THAT(calls, IsEmpty());
    run(op, {});
    (*later)();
  };
  forward(step);
  ASSERT_EQ(calls.size(), 2u);
  EXPECT_EQ(calls[0].stream, reinterpret_cast<void*>(9));
  EXPECT_EQ(calls[1].stream, reinterpret_cast<void*>(1)) << "the lane's";
  EXPECT_GE(calls[0].workspace - calls[1].workspace, 500);
  EXPECT_THAT(notes(), ElementsAre("1 waits for 9", "9 waits for 1"));
  calls.clear();
  Arena arena(device_->id());
  OpRunner run(*device_, {}, ops_, arena, &lanes_);
  step(run);
  EXPECT_THAT(calls, IsEmpty());
  EXPECT_GE(arena.peak(), 1000);
}

TEST_F(OpRunnerTest, MeasuringTouchesNoStream) {
  Arena arena(device_->id());
  {
    OpRunner run(*device_, {}, ops_, arena, &lanes_);
    run.aside(0, [](OpRunner& aside) { aside.arena.tensor(DType::u8, {1000}); });
  }
  EXPECT_THAT(notes(), IsEmpty());
  EXPECT_EQ(arena.used(), 1024);  // stays taken: it may still be in use
}

}  // namespace
}  // namespace strata
