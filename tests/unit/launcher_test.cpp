// The waits between streams that follow from what steps read, above all when a step throws: what was launched before still runs, and
// whoever uses the caller's stream next must not overtake it.
#include "layers/launcher.h"

#include <gmock/gmock.h>

#include <functional>
#include <map>

#include "core/host_device.h"

namespace strata {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

enum class Letter : uint8_t { a, b, c, d };

// b reads a; c and d read a and b.
constexpr StepSet reads_of(Letter step) {
  using enum Letter;
  switch (step) {
    case a: return {};
    case b: return steps(a);
    case c:
    case d: return steps(a, b);
  }
  return {};
}

// Streams are numbers: the caller's is 9, the side streams 1 and 2. A wait is noted with the launch after which its event was recorded.
class NotedDevice final : public HostDevice {
 public:
  Stream create_stream() override { return {reinterpret_cast<void*>(++streams_)}; }
  Event create_event() override { return {reinterpret_cast<void*>(++events_)}; }
  void record(Event event, Stream stream) override {
    if (broken) throw Error(ErrorCode::device_failure, "record");
    recorded_[event.handle] = last_[stream.handle];
  }
  void wait(Event event, Stream stream) override { notes.push_back(number(stream) + " after " + recorded_.at(event.handle)); }
  void launch(const std::string& what, Stream stream) {
    last_[stream.handle] = what;
    notes.push_back(what + " on " + number(stream));
  }

  std::vector<std::string> notes;
  bool broken = false;

 private:
  static std::string number(Stream stream) { return std::to_string(reinterpret_cast<uintptr_t>(stream.handle)); }
  uintptr_t streams_ = 0, events_ = 0;
  std::map<void*, std::string> last_{{reinterpret_cast<void*>(9), "begin"}};
  std::map<void*, std::string> recorded_;
};

class LauncherTest : public testing::Test {
 protected:
  using Order = std::vector<Launch<Letter>>;
  void launch(const Order& order, const std::function<void(Letter, const OpRunner&)>& issue = {}) {
    Arena arena(device_->id(), {memory_, sizeof(memory_)});
    launch_in(arena, order, issue);
  }
  void launch_in(Arena& arena, const Order& order, const std::function<void(Letter, const OpRunner&)>& issue = {}) {
    const OpRunner run{ops_, *device_, arena, {reinterpret_cast<void*>(9)}, &side_};
    launch_steps(run, std::span<const Launch<Letter>>(order), [&](Letter step, const OpRunner& on) {
      if (issue) issue(step, on);
      if (!arena.measuring()) device_->launch(std::string(1, "abcd"[static_cast<size_t>(step)]), on.stream);
    });
  }
  std::vector<std::string>& notes() { return device_->notes; }

  std::shared_ptr<NotedDevice> device_ = std::make_shared<NotedDevice>();
  SideStreams side_{device_};
  OpSet ops_ = default_ops();
  alignas(256) std::byte memory_[4096];
};

using enum Letter;

TEST_F(LauncherTest, AListOnTheCallersStreamWaitsForNothing) {
  launch({{a}, {b}, {c}});
  EXPECT_THAT(notes(), ElementsAre("a on 9", "b on 9", "c on 9"));
}

TEST_F(LauncherTest, AStepOnASideStreamFollowsTheBeginAndIsJoined) {
  launch({{a, 1}});
  EXPECT_THAT(notes(), ElementsAre("1 after begin", "a on 1", "9 after a"));
}

TEST_F(LauncherTest, AStepWaitsForTheStepThatItReadsAndNotForLaterOnes) {
  launch({{a}, {c}, {b, 1}});
  EXPECT_THAT(notes(), ElementsAre("a on 9", "c on 9", "1 after a", "b on 1", "9 after b"));
}

TEST_F(LauncherTest, AWaitThatAnotherImpliesIsLeftOut) {
  launch({{a}, {b, 1}, {c, 1}, {d}});
  EXPECT_THAT(notes(), ElementsAre("a on 9", "1 after a", "b on 1", "c on 1", "9 after b", "d on 9", "9 after c"));
}

TEST_F(LauncherTest, AWaitThatTheOrderAsksForIsThereAllTheSame) {
  launch({{a}, {b, 1}, {.step = c, .stream = 1, .also_after = steps(a)}});
  EXPECT_THAT(notes(), ElementsAre("a on 9", "1 after a", "b on 1", "1 after a", "c on 1", "9 after c"));
}

TEST_F(LauncherTest, StreamsAreJoinedWhenAStepThrows) {
  const auto throws_at = [](Letter which) {
    return [which](Letter step, const OpRunner&) {
      if (step == which) throw Error(ErrorCode::device_failure, "the step's own");
    };
  };
  EXPECT_THROW(launch({{a, 1}, {b, 2}, {c}}, throws_at(c)), Error);
  EXPECT_THAT(notes(), ElementsAre("1 after begin", "a on 1", "2 after a", "b on 2", "9 after a", "9 after b", "9 after a", "9 after b"));
  notes().clear();
  EXPECT_THROW(launch({{a, 1}}, throws_at(a)), Error);
  EXPECT_THAT(notes(), ElementsAre("1 after begin", testing::StartsWith("9 after "))) << "part of the step may have been launched";
}

// The error of the step, not that of the join, reaches the caller.
TEST_F(LauncherTest, ADeviceThatFailsMeanwhileHidesNoError) {
  try {
    launch({{a, 1}, {c}}, [&](Letter step, const OpRunner&) {
      if (step != c) return;
      device_->broken = true;
      throw Error(ErrorCode::invalid_argument, "the first");
    });
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "the first");
  }
}

TEST_F(LauncherTest, StepsHaveMemoryOfTheirOwnWhateverTheOrder) {
  const auto takes = [](Letter step, const OpRunner& on) {
    on.arena.tensor(DType::u8, {step == a ? 500 : 200});
    static_cast<void>(on.arena.rest(300));
  };
  int64_t peak = 0;
  for (const Order& order : {Order{{a}, {b, 1}, {c, 2}}, Order{{c, 2}, {a, 1}, {b}}}) {
    Arena arena(device_->id());
    launch_in(arena, order, takes);
    EXPECT_TRUE(peak == 0 || arena.peak() == peak);
    peak = arena.peak();
    EXPECT_EQ(arena.used(), peak) << "stays taken: it may still be in use";
  }
  EXPECT_GE(peak, 500 + 200 + 200 + 3 * 300);
  EXPECT_THAT(notes(), IsEmpty()) << "measuring touches no stream";
}

TEST_F(LauncherTest, WithoutSideStreamsMemoryIsReusedAndTheOrderIsTheLists) {
  Arena arena(device_->id(), {memory_, sizeof(memory_)});
  const OpRunner run{ops_, *device_, arena, {reinterpret_cast<void*>(9)}};
  const Order order{{a, 1}, {b, 2}};
  launch_steps(run, std::span<const Launch<Letter>>(order), [&](Letter step, const OpRunner& on) {
    arena.tensor(DType::u8, {3000});
    device_->launch(step == a ? "a" : "b", on.stream);
  });
  EXPECT_THAT(notes(), ElementsAre("a on 9", "b on 9"));
  EXPECT_EQ(arena.used(), 0);
}

}  // namespace
}  // namespace strata
