// What the tests of the C API's models and layers share: owners of handles, and refusals.
#pragma once

#include <gmock/gmock.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "strata/strata.h"

namespace strata::test {

// The call succeeds.
#define EXPECT_DONE(call) EXPECT_EQ(call, STRATA_OK) << strata_last_error()
#define ASSERT_DONE(call) ASSERT_EQ(call, STRATA_OK) << strata_last_error()
// The call fails with this status, and its text has this part.
#define EXPECT_FAILS(call, status, part)                          \
  do {                                                            \
    EXPECT_EQ(call, status) << strata_last_error();               \
    EXPECT_THAT(strata_last_error(), ::testing::HasSubstr(part)); \
  } while (false)

// Destroys its handle.
template <class Handle, strata_status (*destroy)(Handle) noexcept>
class Owner {
 public:
  Owner() = default;
  explicit Owner(Handle handle) : handle_(handle) {}
  ~Owner() { reset(); }
  Owner(Owner&& other) noexcept : handle_(std::exchange(other.handle_, Handle{})) {}
  Owner& operator=(Owner&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  // The handle, which stays known afterwards.
  Handle reset() {
    const Handle handle = std::exchange(handle_, Handle{});
    EXPECT_EQ(destroy(handle), STRATA_OK) << strata_last_error();
    return handle;
  }
  operator Handle() const { return handle_; }
  Handle* operator&() { return &handle_; }  // NOLINT(google-runtime-operator): where a function writes the handle

 private:
  Handle handle_{};
};
using OwnedCDevice = Owner<strata_device, strata_device_close>;
using OwnedConfig = Owner<strata_model_config, strata_model_config_destroy>;
using OwnedCheckpoint = Owner<strata_checkpoint, strata_checkpoint_destroy>;
using OwnedPool = Owner<strata_pool, strata_pool_destroy>;
using OwnedBuilder = Owner<strata_batch_builder, strata_batch_builder_destroy>;
using OwnedTables = Owner<strata_rope_tables, strata_rope_tables_destroy>;
using OwnedSideStreams = Owner<strata_side_streams, strata_side_streams_destroy>;
using OwnedCommunicator = Owner<strata_communicator, strata_communicator_destroy>;
using OwnedLayer = Owner<strata_layer, strata_layer_destroy>;

inline OwnedCDevice open_c_device(const char* id = "cpu") {
  OwnedCDevice device;
  EXPECT_DONE(strata_device_open(id, nullptr, &device));
  return device;
}
inline OwnedConfig c_preset(const char* name) {
  OwnedConfig config;
  EXPECT_DONE(strata_model_config_preset(name, &config));
  return config;
}

// Every number that is no size of the struct is refused by the struct's name; so is a struct of a later release that uses its new fields.
// call(pointer) is the call under test, which succeeds with `valid`.
template <class T, class Call>
void expect_versions_refused(const T& valid, const char* name, Call&& call) {
  std::vector<size_t> memory(sizeof(T) / sizeof(size_t) + 8);
  T* const copy = reinterpret_cast<T*>(memory.data());
  *copy = valid;
  for (const size_t size : {size_t{0}, size_t{8}, sizeof(T) - 8, sizeof(T) + 100000, ~size_t{0}}) {
    copy->struct_size = size;
    SCOPED_TRACE(size);
    EXPECT_FAILS(call(copy), STRATA_INVALID_ARGUMENT, name);
    EXPECT_THAT(strata_last_error(), ::testing::HasSubstr("struct_size"));
  }
  copy->struct_size = sizeof(T) + 16;
  EXPECT_EQ(call(copy), STRATA_OK) << "a later release's struct that uses no new field: " << strata_last_error();
  *copy = valid;
  copy->struct_size = sizeof(T) + 16;
  memory[sizeof(T) / sizeof(size_t) + 1] = 1;
  EXPECT_FAILS(call(copy), STRATA_INVALID_ARGUMENT, name);
  EXPECT_THAT(strata_last_error(), ::testing::HasSubstr("later release"));
}

}  // namespace strata::test
