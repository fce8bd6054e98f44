// Communicators of the library by the C API.
#include <thread>

#include "c_calls.h"
#include "ranks.h"

namespace strata {
namespace {

using test::OwnedCommunicator;

strata_tensor_view view_of(void* data, std::vector<int64_t> shape) {
  strata_tensor_view view{};
  view.data = data;
  view.dtype = STRATA_F32;
  view.rank = static_cast<int32_t>(shape.size());
  int64_t stride = 1;
  for (size_t i = shape.size(); i-- > 0;) view.shape[i] = shape[i], view.stride[i] = stride, stride *= shape[i];
  return view;
}

TEST(CCollectives, EveryOperationByThreads) {
  const test::OwnedCDevice device = test::open_c_device();
  strata_communicator handles[2];
  ASSERT_DONE(strata_communicator_threads(2, 20, handles));
  OwnedCommunicator ranks[2] = {OwnedCommunicator(handles[0]), OwnedCommunicator(handles[1])};
  const auto run = [&](int rank) {
    const strata_communicator own = ranks[rank];
    float values[2] = {rank + 1.0f, 10.0f}, gathered[4] = {}, part[1] = {};
    const strata_tensor_view in = view_of(values, {2, 1}), all = view_of(gathered, {4, 1}), one = view_of(part, {1, 1});
    EXPECT_DONE(strata_communicator_all_gather(own, &in, &all, device, {0}));
    EXPECT_THAT(gathered, testing::ElementsAre(1.0f, 10.0f, 2.0f, 10.0f));
    EXPECT_DONE(strata_communicator_reduce_scatter_sum(own, &in, &one, device, {0}));
    EXPECT_EQ(part[0], rank == 0 ? 3.0f : 20.0f);
    EXPECT_DONE(strata_communicator_barrier(own, device, {0}));
    EXPECT_DONE(strata_communicator_all_reduce_sum(own, &in, device, {0}));
    EXPECT_THAT(values, testing::ElementsAre(3.0f, 20.0f));
    if (rank == 1) {
      EXPECT_DONE(strata_communicator_abort(own, "enough"));
    }
    EXPECT_FAILS(strata_communicator_barrier(own, device, {0}), STRATA_DEVICE_FAILURE, "rank 1 aborted: enough");
  };
  std::thread other(run, 1);
  run(0);
  other.join();
}

TEST(CCollectives, LocalRanksMeetAtAFile) {
  const std::string rendezvous = "file:" + test::new_rendezvous_path();
  const auto run = [&](int rank) {
    strata_rank_options options = strata_rank_options_default();
    options.rank = rank;
    options.size = 2;
    options.rendezvous = rendezvous.c_str();
    OwnedCommunicator own;
    ASSERT_DONE(strata_communicator_local(&options, &own));
    const test::OwnedCDevice device = test::open_c_device();
    float value = rank + 1.0f;
    const strata_tensor_view view = view_of(&value, {1});
    EXPECT_DONE(strata_communicator_all_reduce_sum(own, &view, device, {0}));
    EXPECT_EQ(value, 3.0f);
  };
  std::thread other(run, 1);
  run(0);
  other.join();
}

TEST(CCollectives, WrongUse) {
  const test::OwnedCDevice device = test::open_c_device();
  strata_communicator handles[1];
  EXPECT_FAILS(strata_communicator_threads(0, 1, handles), STRATA_INVALID_ARGUMENT, "[1, 1024], is 0");
  EXPECT_FAILS(strata_communicator_threads(1, 1, nullptr), STRATA_INVALID_ARGUMENT, "communicators: expected a pointer, is null");
  OwnedCommunicator single;
  ASSERT_DONE(strata_communicator_single(&single));
  EXPECT_FAILS(strata_communicator_barrier(single, device, {0}), STRATA_INVALID_ARGUMENT, "expected one of strata_communicator_threads");
  EXPECT_FAILS(strata_communicator_abort(single, "x"), STRATA_INVALID_ARGUMENT, "expected one of strata_communicator_threads");
  strata_rank_options options = strata_rank_options_default();
  OwnedCommunicator alone;
  ASSERT_DONE(strata_communicator_local(&options, &alone));
  EXPECT_FAILS(strata_communicator_all_reduce_sum(alone, nullptr, device, {0}), STRATA_INVALID_ARGUMENT,
               "tensor: expected a view, is null");
  EXPECT_FAILS(strata_communicator_abort(alone, nullptr), STRATA_INVALID_ARGUMENT, "reason: expected a text, is null");
  EXPECT_FAILS(strata_communicator_local(&options, nullptr), STRATA_INVALID_ARGUMENT, "communicator: expected a pointer, is null");
  options.size = 2;
  OwnedCommunicator none;
  EXPECT_FAILS(strata_communicator_local(&options, &none), STRATA_INVALID_ARGUMENT, "file:PATH or tcp:HOST:PORT, is ''");
  options.size = 1;
  test::expect_versions_refused(options, "strata_rank_options", [](const strata_rank_options* given) {
    OwnedCommunicator made;
    return strata_communicator_local(given, &made);
  });
}

}  // namespace
}  // namespace strata
