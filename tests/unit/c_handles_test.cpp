// Handles of the C API: null, destroyed, of another kind, never made; on one thread and on several.
#include <gmock/gmock.h>
#include <pthread.h>

#include <atomic>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "c_api/objects.h"
#include "strata/strata.h"

namespace strata::c_api {
namespace {

using ::testing::HasSubstr;

strata_device open_cpu() {
  strata_device device{};
  EXPECT_EQ(strata_device_open("cpu", nullptr, &device), STRATA_OK) << strata_last_error();
  return device;
}

TEST(CHandles, NullIsNamed) {
  strata_device_id id{};
  EXPECT_EQ(strata_device_get_id({}, &id), STRATA_INVALID_HANDLE);
  EXPECT_STREQ(strata_last_error(), "expected a handle of strata_device, is null");
}

TEST(CHandles, DestroyedIsNamed) {
  const strata_device device = open_cpu();
  ASSERT_EQ(strata_device_close(device), STRATA_OK);
  strata_device_id id{};
  EXPECT_EQ(strata_device_get_id(device, &id), STRATA_INVALID_HANDLE);
  EXPECT_THAT(strata_last_error(), HasSubstr("which is destroyed"));
  EXPECT_EQ(strata_device_close(device), STRATA_INVALID_HANDLE);
  EXPECT_THAT(strata_last_error(), HasSubstr("expected a handle of strata_device, got 0x"));
}

TEST(CHandles, DestroyedIsNamedAlsoWhenItsSlotIsUsedAgain) {
  const strata_device device = open_cpu();
  ASSERT_EQ(strata_device_close(device), STRATA_OK);
  const strata_device other = open_cpu();
  EXPECT_EQ(static_cast<uint32_t>(other.value), static_cast<uint32_t>(device.value)) << "the test expects the same slot";
  EXPECT_NE(other.value, device.value);
  strata_device_id id{};
  EXPECT_EQ(strata_device_get_id(device, &id), STRATA_INVALID_HANDLE);
  EXPECT_THAT(strata_last_error(), HasSubstr("which is destroyed"));
  EXPECT_EQ(strata_device_get_id(other, &id), STRATA_OK);
  EXPECT_EQ(strata_device_close(other), STRATA_OK);
}

TEST(CHandles, AnotherKindIsNamed) {
  const strata_device device = open_cpu();
  strata_stream stream{};
  ASSERT_EQ(strata_stream_create(device, &stream), STRATA_OK);
  strata_device_id id{};
  EXPECT_EQ(strata_device_get_id({stream.value}, &id), STRATA_INVALID_HANDLE);
  EXPECT_THAT(strata_last_error(), HasSubstr("which is a strata_stream"));
  EXPECT_EQ(strata_device_close({stream.value}), STRATA_INVALID_HANDLE);
  EXPECT_EQ(strata_stream_synchronize(device, stream), STRATA_OK) << "a refused destroy must not destroy";
  EXPECT_EQ(strata_stream_destroy(stream), STRATA_OK);
  EXPECT_EQ(strata_device_close(device), STRATA_OK);
}

TEST(CHandles, NumbersThatWereNeverMadeAreNamed) {
  const strata_device device = open_cpu();
  const uint64_t generation = device.value >> 32, slot = device.value & 0xFFFFFFFFu;
  strata_device_id id{};
  for (const uint64_t value : {slot, (generation + 1) << 32 | slot, uint64_t{1} << 32 | 0xFFFFFFFFu, uint64_t{1} << 32, ~uint64_t{0},
                               uint64_t{1}, reinterpret_cast<uint64_t>(&id)}) {
    EXPECT_EQ(strata_device_get_id({value}, &id), STRATA_INVALID_HANDLE) << value;
    EXPECT_THAT(strata_last_error(), HasSubstr("which was never made")) << value;
  }
  EXPECT_EQ(strata_device_close(device), STRATA_OK);
}

TEST(CHandles, DestroyOfNullDoesNothing) {
  EXPECT_EQ(strata_device_close({}), STRATA_OK);
  EXPECT_EQ(strata_stream_destroy({}), STRATA_OK);
  EXPECT_EQ(strata_event_destroy({}), STRATA_OK);
  EXPECT_EQ(strata_graph_destroy({}), STRATA_OK);
}

TEST(CHandles, ObjectsKeepTheirDevice) {
  const int64_t before = num_objects();
  const strata_device device = open_cpu();
  strata_stream stream{};
  strata_event event{};
  ASSERT_EQ(strata_stream_create(device, &stream), STRATA_OK);
  ASSERT_EQ(strata_event_create(device, &event), STRATA_OK);
  EXPECT_EQ(num_objects(), before + 3);
  ASSERT_EQ(strata_device_close(device), STRATA_OK);
  EXPECT_EQ(strata_event_record(event, stream), STRATA_OK) << strata_last_error();
  EXPECT_EQ(strata_event_wait(event, stream), STRATA_OK) << strata_last_error();
  EXPECT_EQ(strata_event_destroy(event), STRATA_OK);
  EXPECT_EQ(strata_stream_destroy(stream), STRATA_OK);
  EXPECT_EQ(num_objects(), before);
}

// An object that is destroyed during a call lives until the call ends.
TEST(CHandles, ObjectsOutliveTheirUses) {
  auto object = std::make_shared<RopeTables>(open_device({}), 16);
  const std::weak_ptr<RopeTables> watched = object;
  const auto handle = make_handle<strata_rope_tables>(std::move(object));
  auto use = find(handle);
  ASSERT_EQ(destroy(handle), STRATA_OK);
  EXPECT_FALSE(watched.expired());
  use.reset();
  EXPECT_TRUE(watched.expired());
}

// Threads make, use and destroy devices, and use those of others, which may be destroyed at any time.
TEST(CHandles, Threads) {
  const int64_t before = num_objects();
  constexpr int kThreads = 8, kRounds = 300;
  std::array<std::atomic<uint64_t>, kThreads> shared{};
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < kRounds; ++round) {
        const strata_device own = open_cpu();
        shared[static_cast<size_t>(t)] = own.value;
        strata_device_id id{};
        wrong += strata_device_get_id(own, &id) != STRATA_OK;
        const strata_device other{shared[static_cast<size_t>((t + 1) % kThreads)]};
        const strata_status status = strata_device_get_id(other, &id);
        wrong += status != STRATA_OK && status != STRATA_INVALID_HANDLE;
        wrong += strata_device_close(own) != STRATA_OK;
        wrong += strata_device_close(own) != STRATA_INVALID_HANDLE;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(num_objects(), before);
}

TEST(CErrors, TextsAreOfTheirThread) {
  EXPECT_EQ(strata_device_close({1}), STRATA_INVALID_HANDLE);
  const std::string mine = strata_last_error();
  std::thread([] {
    EXPECT_STREQ(strata_last_error(), "");
    strata_device device{};
    EXPECT_EQ(strata_device_open("tpu:0", nullptr, &device), STRATA_INVALID_ARGUMENT);
    EXPECT_STREQ(strata_last_error(), "a device is cpu, cuda:N or opencl:N, got 'tpu:0'");
    EXPECT_EQ(device.value, 0u);
  }).join();
  EXPECT_EQ(strata_last_error(), mine);
  const strata_device device = open_cpu();
  EXPECT_EQ(strata_last_error(), mine) << "success leaves the text";
  EXPECT_EQ(strata_device_close(device), STRATA_OK);
}

TEST(CErrors, EveryExceptionHasAStatus) {
  const auto status_of = [](auto&& f) { return guarded(f); };
  EXPECT_EQ(status_of([] { throw Error(ErrorCode::invalid_argument, "a"); }), STRATA_INVALID_ARGUMENT);
  EXPECT_EQ(status_of([] { throw Error(ErrorCode::invalid_file, "b"); }), STRATA_INVALID_FILE);
  EXPECT_EQ(status_of([] { throw Error(ErrorCode::unsupported, "c"); }), STRATA_UNSUPPORTED);
  EXPECT_EQ(status_of([] { throw Error(ErrorCode::workspace_too_small, "d"); }), STRATA_WORKSPACE_TOO_SMALL);
  EXPECT_EQ(status_of([] { throw Error(ErrorCode::out_of_memory, "e"); }), STRATA_OUT_OF_MEMORY);
  EXPECT_EQ(status_of([] { throw Error(ErrorCode::device_failure, "f"); }), STRATA_DEVICE_FAILURE);
  EXPECT_STREQ(strata_last_error(), "f");
  EXPECT_EQ(status_of([] { throw std::bad_alloc(); }), STRATA_OUT_OF_MEMORY);
  EXPECT_EQ(status_of([] { std::vector<char>().resize(~size_t{0}); }), STRATA_OUT_OF_MEMORY);
  EXPECT_EQ(status_of([] { throw std::runtime_error("g"); }), STRATA_INTERNAL_ERROR);
  EXPECT_STREQ(strata_last_error(), "g");
  EXPECT_EQ(status_of([] { throw 1; }), STRATA_INTERNAL_ERROR);
  EXPECT_EQ(status_of([] {}), STRATA_OK);
}

TEST(CErrors, LongTextsEndWithDots) {
  EXPECT_EQ(guarded([] { throw std::runtime_error(std::string(10000, 'x')); }), STRATA_INTERNAL_ERROR);
  EXPECT_THAT(strata_last_error(), ::testing::EndsWith("xxx..."));
  EXPECT_EQ(std::string(strata_last_error()).size(), 4095u);
  EXPECT_EQ(guarded([] { throw std::runtime_error(strata_last_error()); }), STRATA_INTERNAL_ERROR) << "its own text is no trouble";
  EXPECT_EQ(std::string(strata_last_error()).size(), 4095u);
}

// What a thread runs as it ends may fail, and ask why.
TEST(CErrors, AtTheEndOfAThread) {
  struct AtEnd {
    ~AtEnd() {
      EXPECT_EQ(strata_device_close({1}), STRATA_INVALID_HANDLE);
      EXPECT_THAT(strata_last_error(), HasSubstr("which was never made"));
    }
  };
  std::thread([] {
    thread_local AtEnd at_end;
    static_cast<void>(&at_end);
    EXPECT_EQ(strata_device_close({1}), STRATA_INVALID_HANDLE);
  }).join();
  pthread_key_t key{};
  ASSERT_EQ(pthread_key_create(&key, [](void*) { EXPECT_EQ(strata_device_close({1}), STRATA_INVALID_HANDLE); }), 0);
  std::thread([&] { EXPECT_EQ(pthread_setspecific(key, &key), 0); }).join();
  EXPECT_EQ(pthread_key_delete(key), 0);
}

TEST(CErrors, StatusesHaveNames) {
  std::set<std::string> names;
  for (strata_status status = STRATA_OK; status <= STRATA_INTERNAL_ERROR; ++status) names.insert(strata_status_name(status));
  EXPECT_EQ(names.size(), 9u);
  EXPECT_EQ(names.count("unknown status"), 0u);
  EXPECT_STREQ(strata_status_name(-1), "unknown status");
  EXPECT_STREQ(strata_status_name(STRATA_INTERNAL_ERROR + 1), "unknown status");
  EXPECT_STREQ(strata_status_name(STRATA_INVALID_HANDLE), "STRATA_INVALID_HANDLE");
}

TEST(CErrors, Version) {
  int32_t major = -1, minor = -1, patch = -1;
  strata_version(&major, &minor, &patch);
  EXPECT_EQ(major, STRATA_VERSION_MAJOR);
  EXPECT_EQ(minor, STRATA_VERSION_MINOR);
  EXPECT_EQ(patch, STRATA_VERSION_PATCH);
  strata_version(nullptr, nullptr, nullptr);
}

}  // namespace
}  // namespace strata::c_api
