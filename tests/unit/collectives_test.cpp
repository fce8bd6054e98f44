// Collective operations by threads and by processes: values, wrong use, ranks that leave, abort, stall and die.
#include "strata/collectives.h"

#include <gmock/gmock.h>
#include <signal.h>

#include <chrono>
#include <cstring>
#include <numeric>

#include "formats/bf16.h"
#include "ranks.h"
#include "strata/error.h"

namespace strata {
namespace {

using test::Over;
using test::run_ranks;
using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

constexpr DeviceId kCpu{};

template <class T>
TensorView view_of(std::vector<T>& values, DType dtype, int64_t rows) {
  return TensorView::contiguous(values.data(), dtype, kCpu, {rows, rows == 0 ? 3 : std::ssize(values) / rows});
}

// Value i of rank r: no two alike, and of sums that depend on their order.
float value_of(int rank, int64_t i) {
  return (static_cast<float>((i * 37 + rank * 101) % 1009) - 504.0f) * (rank % 2 == 0 ? 1.0f : 1.0f / 3.0f);
}
float sum_of(int size, int64_t i, bool bf16) {
  float sum = 0.0f;
  for (int rank = 0; rank < size; ++rank) sum += bf16 ? round_to_bf16(value_of(rank, i)) : value_of(rank, i);
  return bf16 ? round_to_bf16(sum) : sum;
}

class CollectiveRanks : public testing::TestWithParam<std::tuple<Over, int>> {
 protected:
  // Expects an empty result of each rank.
  void expect_right(const test::RankBody& body) {
    const auto [over, size] = GetParam();
    EXPECT_THAT(run_ranks(over, size, body), Each(""));
  }
};

// 300001 values are more than two buffers of bf16 and of f32.
constexpr int64_t kCounts[] = {0, 1, 3, 7168, 300001};

TEST_P(CollectiveRanks, AllReduceSumsInOrder) {
  expect_right([](Collectives& ranks) -> std::string {
    const auto device = open_device(kCpu, {.cpu_threads = 1});
    for (const int64_t count : kCounts) {
      std::vector<float> wide(static_cast<size_t>(count));
      std::vector<Bf16> narrow(static_cast<size_t>(count));
      for (int64_t i = 0; i < count; ++i) {
        wide[static_cast<size_t>(i)] = value_of(ranks.rank(), i);
        narrow[static_cast<size_t>(i)] = to_bf16(value_of(ranks.rank(), i));
      }
      ranks.all_reduce_sum(view_of(wide, DType::f32, count == 0 ? 0 : 1), *device, {});
      ranks.all_reduce_sum(view_of(narrow, DType::bf16, count == 0 ? 0 : 1), *device, {});
      for (int64_t i = 0; i < count; ++i) {
        if (wide[static_cast<size_t>(i)] != sum_of(ranks.size(), i, false)) return "f32 value " + std::to_string(i);
        if (to_float(narrow[static_cast<size_t>(i)]) != sum_of(ranks.size(), i, true)) return "bf16 value " + std::to_string(i);
      }
    }
    return "";
  });
}

TEST_P(CollectiveRanks, AllGatherKeepsRanksInOrder) {
  expect_right([](Collectives& ranks) -> std::string {
    const auto device = open_device(kCpu, {.cpu_threads = 1});
    for (const int64_t rows : {0, 1, 5, 1300}) {
      std::vector<int32_t> in(static_cast<size_t>(rows * 257)), out(static_cast<size_t>(rows * 257 * ranks.size()), -1);
      std::iota(in.begin(), in.end(), ranks.rank() * 1000000);
      ranks.all_gather(TensorView::contiguous(in.data(), DType::i32, kCpu, {rows, 257}),
                       TensorView::contiguous(out.data(), DType::i32, kCpu, {rows * ranks.size(), 257}), *device, {});
      for (int64_t i = 0; i < std::ssize(out); ++i) {
        const int64_t rank = i / std::ssize(in), at = i % std::ssize(in);
        if (out[static_cast<size_t>(i)] != rank * 1000000 + at) return "value " + std::to_string(i);
      }
    }
    return "";
  });
}

TEST_P(CollectiveRanks, ReduceScatterGivesEachRankItsRows) {
  expect_right([](Collectives& ranks) -> std::string {
    const auto device = open_device(kCpu, {.cpu_threads = 1});
    for (const int64_t rows : {0, 1, 40, 1300}) {
      const int64_t own = rows * 257;
      std::vector<float> in(static_cast<size_t>(own * ranks.size())), out(static_cast<size_t>(own), -1);
      for (int64_t i = 0; i < std::ssize(in); ++i) in[static_cast<size_t>(i)] = value_of(ranks.rank(), i);
      ranks.reduce_scatter_sum(TensorView::contiguous(in.data(), DType::f32, kCpu, {rows * ranks.size(), 257}),
                               TensorView::contiguous(out.data(), DType::f32, kCpu, {rows, 257}), *device, {});
      for (int64_t i = 0; i < own; ++i) {
        if (out[static_cast<size_t>(i)] != sum_of(ranks.size(), ranks.rank() * own + i, false)) return "value " + std::to_string(i);
      }
    }
    return "";
  });
}

TEST_P(CollectiveRanks, NobodyPassesABarrierAlone) {
  expect_right([](Collectives& ranks) -> std::string {
    const auto device = open_device(kCpu, {.cpu_threads = 1});
    ranks.barrier(*device, {});
    const auto begin = std::chrono::steady_clock::now();
    if (ranks.rank() == ranks.size() - 1) std::this_thread::sleep_for(std::chrono::milliseconds(300));
    ranks.barrier(*device, {});
    // The rank that comes last left the first barrier with the others, if a little before this one.
    return std::chrono::steady_clock::now() - begin < std::chrono::milliseconds(100) ? "passed a barrier alone" : "";
  });
}

// Of which one rank or another is ahead.
TEST_P(CollectiveRanks, ManyCallsInARow) {
  expect_right([](Collectives& ranks) -> std::string {
    const auto device = open_device(kCpu, {.cpu_threads = 1});
    for (int i = 0; i < 500; ++i) {
      std::vector<float> values(64, static_cast<float>(i));
      ranks.all_reduce_sum(view_of(values, DType::f32, 1), *device, {});
      if (values[63] != static_cast<float>(i * ranks.size())) return "call " + std::to_string(i);
    }
    return "";
  });
}

std::string name_of(const testing::TestParamInfo<std::tuple<Over, int>>& info) {
  return test::to_string(std::get<0>(info.param)) + std::to_string(std::get<1>(info.param));
}
INSTANTIATE_TEST_SUITE_P(Sizes, CollectiveRanks,
                         testing::Combine(testing::Values(Over::threads, Over::processes), testing::Values(1, 2, 4)), name_of);

class CollectiveFailures : public testing::TestWithParam<Over> {};

TEST_P(CollectiveFailures, DifferentCalls) {
  const auto results = run_ranks(GetParam(), 3, [](Collectives& ranks) -> std::string {
    const auto device = open_device(kCpu, {.cpu_threads = 1});
    std::vector<float> values(8);
    if (ranks.rank() == 2) ranks.barrier(*device, {});
    ranks.all_reduce_sum(view_of(values, DType::f32, 1), *device, {});
    return "no error";
  });
  EXPECT_THAT(results, Each(HasSubstr("rank 0 calls all_reduce_sum of 32 bytes of f32, rank 2 calls barrier")));
  EXPECT_THAT(results[1], HasSubstr("rank 1 of 3: "));
}

TEST_P(CollectiveFailures, ARankThatThrowsLeaves) {
  const auto begin = std::chrono::steady_clock::now();
  const auto results = run_ranks(GetParam(), 3, [](Collectives& ranks) -> std::string {
    const auto device = open_device(kCpu, {.cpu_threads = 1});
    std::vector<float> values(8);
    ranks.all_reduce_sum(view_of(values, DType::f32, 1), *device, {});
    if (ranks.rank() == 1) throw std::runtime_error("of its own");
    ranks.all_reduce_sum(view_of(values, DType::f32, 1), *device, {});
    return "no error";
  });
  EXPECT_EQ(results[1], "error: of its own");
  EXPECT_THAT(results[0], HasSubstr("all_reduce_sum of 32 bytes of f32: rank 1 has left"));
  EXPECT_THAT(results[2], HasSubstr("all_reduce_sum of 32 bytes of f32: rank 1 has left"));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30)) << "long before the timeout of 60 s";
}

TEST_P(CollectiveFailures, AnAbortIsEveryRanks) {
  const auto results = run_ranks(GetParam(), 3, [](Collectives& ranks) -> std::string {
    const auto device = open_device(kCpu, {.cpu_threads = 1});
    if (ranks.rank() == 0) ranks.abort("out of pages");
    ranks.barrier(*device, {});
    return "no error";
  });
  EXPECT_THAT(results, Each(HasSubstr("rank 0 aborted: out of pages")));
}

TEST_P(CollectiveFailures, ASilentRankIsNamedInTimeAndTheCommunicatorStaysFailed) {
  const auto begin = std::chrono::steady_clock::now();
  const auto results = run_ranks(
      GetParam(), 3,
      [](Collectives& ranks) -> std::string {
        const auto device = open_device(kCpu, {.cpu_threads = 1});
        if (ranks.rank() == 2) std::this_thread::sleep_for(std::chrono::milliseconds(4000));
        const auto call = [&] { return test::result_of([&] { return ranks.barrier(*device, {}), "no error"; }); };
        return call() + "\n" + call();
      },
      1.5);
  for (const std::string& result : results) {
    const std::string text = "barrier: rank 2 has not arrived within 1.5 s";
    EXPECT_THAT(result, HasSubstr(text));
    EXPECT_THAT(result.substr(result.find('\n')), HasSubstr(text));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
}

INSTANTIATE_TEST_SUITE_P(By, CollectiveFailures, testing::Values(Over::threads, Over::processes),
                         [](const auto& test_info) { return std::string(test::to_string(test_info.param)); });

// Three ranks, of which rank 1 gets this signal after its first call.
std::vector<std::string> after_signal(int signal, double timeout_seconds) {
  const std::string path = test::new_rendezvous_path();
  int ready[2];
  EXPECT_EQ(pipe(ready), 0);
  std::vector<test::ChildProcess> children;
  for (int rank = 0; rank < 3; ++rank) {
    children.emplace_back([&, rank]() -> std::string {
      const auto ranks =
          make_local_communicator({.rank = rank, .size = 3, .rendezvous = "file:" + path, .timeout_seconds = timeout_seconds});
      const auto device = open_device(kCpu, {.cpu_threads = 1});
      ranks->barrier(*device, {});
      if (rank == 1) {
        if (write(ready[1], "r", 1) != 1) return "pipe";
        std::this_thread::sleep_for(std::chrono::seconds(2));
      }
      ranks->barrier(*device, {});
      return "no error";
    });
  }
  char byte = 0;
  EXPECT_EQ(read(ready[0], &byte, 1), 1);
  EXPECT_EQ(kill(children[1].pid(), signal), 0);
  std::vector<std::string> results(3);
  results[0] = children[0].wait();
  results[2] = children[2].wait();
  kill(children[1].pid(), SIGCONT);
  results[1] = children[1].wait();
  close(ready[0]), close(ready[1]);
  return results;
}

TEST(CollectiveProcesses, AKilledRankIsNamedAtOnce) {
  const auto begin = std::chrono::steady_clock::now();
  const auto results = after_signal(SIGKILL, 60);
  EXPECT_THAT(results[0], HasSubstr("barrier: rank 1 has ended"));
  EXPECT_THAT(results[2], HasSubstr("barrier: rank 1 has ended"));
  EXPECT_EQ(results[1], "");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
}

TEST(CollectiveProcesses, AStoppedRankIsNamedInTimeAndFailsTooWhenItGoesOn) {
  const auto results = after_signal(SIGSTOP, 2.5);
  EXPECT_THAT(results, Each(HasSubstr("barrier: rank 1 has not arrived within 2.5 s")));
}

TEST(CollectiveProcesses, AJobLeavesNoSharedMemory) {
  const auto count = [] {
    int64_t files = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
      files += entry.path().filename().string().rfind("strata.", 0) == 0 ? 1 : 0;
    }
    return files;
  };
  // Other jobs of this machine come and go: a job that left its file would leave one each time.
  const int64_t before = count();
  for (int i = 0; i < 8; ++i) {
    run_ranks(Over::processes, 2, [](Collectives&) -> std::string { return kill(getpid(), SIGKILL), ""; });
  }
  EXPECT_LT(count(), before + 8);
}

TEST(CollectiveErrors, SizesTimeoutsAndViews) {
  const auto text_of = [](const std::function<void()>& call) { return test::result_of([&] { return call(), std::string("none"); }); };
  EXPECT_THAT(text_of([] { static_cast<void>(make_thread_communicators(0)); }), HasSubstr("ranks must be in [1, 1024], is 0"));
  EXPECT_THAT(text_of([] { static_cast<void>(make_thread_communicators(2, 0.0)); }), HasSubstr("timeout_seconds must be above 0"));
  const auto alone = make_thread_communicators(1)[0];
  const auto device = open_device(kCpu, {.cpu_threads = 1});
  std::vector<float> values(8), more(16);
  std::vector<int32_t> numbers(8);
  const TensorView wide = view_of(values, DType::f32, 4), narrow = wide.columns(0, 1);
  EXPECT_THAT(text_of([&] { alone->all_reduce_sum(narrow, *device, {}); }), HasSubstr("all_reduce_sum: tensor must be contiguous"));
  EXPECT_THAT(text_of([&] { alone->all_reduce_sum(view_of(numbers, DType::i32, 4), *device, {}); }),
              HasSubstr("all_reduce_sum: tensor must be bf16 or f32, is i32[4, 2]"));
  EXPECT_THAT(text_of([&] { alone->all_gather(wide, view_of(more, DType::f32, 8), *device, {}); }),
              HasSubstr("all_gather: out must have 1 times the rows of in f32[4, 2] on cpu, is f32[8, 2]"));
  EXPECT_THAT(text_of([&] { alone->reduce_scatter_sum(view_of(more, DType::f32, 8), wide, *device, {}); }),
              HasSubstr("reduce_scatter_sum: in must have 1 times the rows of out"));
}

TEST(CollectiveErrors, PeerMemoryIsOfGpus) {
  const auto ranks = make_thread_communicators(1);
  const auto device = open_device(kCpu, {.cpu_threads = 1});
  EXPECT_THAT(test::result_of([&] { return static_cast<void>(make_peer_communicator(ranks[0], device)), std::string("none"); }),
              HasSubstr("needs at most 8 ranks on GPUs of NVIDIA, has 1 ranks, this one on cpu"));
  EXPECT_THAT(test::result_of([&] { return static_cast<void>(make_peer_communicator(nullptr, device)), std::string("none"); }),
              HasSubstr("host must be a communicator, is null"));
}

}  // namespace
}  // namespace strata
