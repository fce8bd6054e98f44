// Devices, streams, views and structs of the C API, and every wrong use of them.
#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "strata/strata.h"
#include "unit/c_calls.h"

namespace strata {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class CDevice : public ::testing::Test {
 protected:
  CDevice() { EXPECT_EQ(strata_device_open("cpu", nullptr, &device_), STRATA_OK) << strata_last_error(); }
  ~CDevice() override { EXPECT_EQ(strata_device_close(device_), STRATA_OK); }
  strata_device device_{};
};

TEST_F(CDevice, IdPropertiesAndDescription) {
  strata_device_id id{7, 7};
  ASSERT_EQ(strata_device_get_id(device_, &id), STRATA_OK);
  EXPECT_EQ(id.kind, STRATA_CPU);
  EXPECT_EQ(id.index, 0);
  strata_device_properties properties = strata_device_properties_default();
  ASSERT_EQ(strata_device_get_properties(device_, &properties), STRATA_OK);
  EXPECT_GT(properties.memory_bytes, 0);
  EXPECT_EQ(properties.struct_size, sizeof properties);
  int64_t needed = 0;
  ASSERT_EQ(strata_device_description(device_, nullptr, 0, &needed), STRATA_OK);
  std::string text(static_cast<size_t>(needed), 'x');
  ASSERT_EQ(strata_device_description(device_, text.data(), needed, &needed), STRATA_OK);
  EXPECT_EQ(text.find('\0'), text.size() - 1);
  std::array<char, 4> small{};
  ASSERT_EQ(strata_device_description(device_, small.data(), 4, nullptr), STRATA_OK);
  EXPECT_EQ(std::string(small.data()), text.substr(0, 3));
}

TEST_F(CDevice, MemoryAndCopies) {
  void* data = nullptr;
  ASSERT_EQ(strata_device_allocate(device_, 1000, &data), STRATA_OK);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % 256, 0u);
  const std::vector<char> sent(1000, 'a');
  std::vector<char> got(1000);
  ASSERT_EQ(strata_device_copy_from_host(device_, data, sent.data(), 1000, {}), STRATA_OK);
  ASSERT_EQ(strata_device_fill(device_, data, 'b', 10, {}), STRATA_OK);
  ASSERT_EQ(strata_device_copy(device_, static_cast<char*>(data) + 500, data, 5, {}), STRATA_OK);
  ASSERT_EQ(strata_device_copy_to_host(device_, got.data(), data, 1000, {}), STRATA_OK);
  ASSERT_EQ(strata_stream_synchronize(device_, {}), STRATA_OK);
  EXPECT_EQ(std::count(got.begin(), got.end(), 'b'), 15);
  ASSERT_EQ(strata_device_deallocate(device_, data), STRATA_OK);
  ASSERT_EQ(strata_device_deallocate(device_, nullptr), STRATA_OK);
  ASSERT_EQ(strata_device_allocate_host(device_, 10, &data), STRATA_OK);
  ASSERT_EQ(strata_device_deallocate_host(device_, data), STRATA_OK);
}

TEST_F(CDevice, WrongMemory) {
  void* data = &data;
  EXPECT_FAILS(strata_device_allocate(device_, -1, &data), STRATA_INVALID_ARGUMENT, "must not be negative, is -1");
  EXPECT_EQ(data, &data) << "nothing is written on an error";
  EXPECT_FAILS(strata_device_allocate(device_, INT64_MAX, &data), STRATA_OUT_OF_MEMORY, "bytes");
  EXPECT_FAILS(strata_device_allocate(device_, 1, nullptr), STRATA_INVALID_ARGUMENT, "data: expected a pointer, is null");
  char byte = 0;
  EXPECT_FAILS(strata_device_copy(device_, &byte, nullptr, 1, {}), STRATA_INVALID_ARGUMENT, "a pointer is null");
  EXPECT_FAILS(strata_device_fill(device_, nullptr, 0, 1, {}), STRATA_INVALID_ARGUMENT, "a pointer is null");
  EXPECT_FAILS(strata_device_copy_to_host(device_, &byte, &byte, -1, {}), STRATA_INVALID_ARGUMENT, "bytes: expected at least 0, is -1");
  EXPECT_FAILS(strata_device_copy_from_host({}, &byte, &byte, 1, {}), STRATA_INVALID_HANDLE, "is null");
  EXPECT_FAILS(strata_device_fill(device_, &byte, 0, 1, {device_.value}), STRATA_INVALID_HANDLE, "which is a strata_device");
  EXPECT_EQ(strata_device_fill(device_, nullptr, 0, 0, {}), STRATA_OK);
}

TEST_F(CDevice, Streams) {
  strata_stream stream{}, own{};
  ASSERT_EQ(strata_stream_create(device_, &stream), STRATA_OK);
  ASSERT_EQ(strata_stream_wrap(device_, nullptr, &own), STRATA_OK);
  void* native = &native;
  EXPECT_FAILS(strata_stream_wrap(device_, native, &own), STRATA_INVALID_ARGUMENT, "native: expected null on a CPU");
  ASSERT_EQ(strata_stream_native(own, &native), STRATA_OK);
  EXPECT_EQ(native, nullptr);
  EXPECT_EQ(strata_stream_synchronize(device_, own), STRATA_OK);
  strata_graph graph{};
  EXPECT_FAILS(strata_stream_capture(stream, nullptr, nullptr, &graph), STRATA_INVALID_ARGUMENT, "work: expected a function, is null");
  const auto nothing = [](void*) -> strata_status { return STRATA_OK; };
  EXPECT_FAILS(strata_stream_capture(stream, nothing, nullptr, &graph), STRATA_UNSUPPORTED, "captures no graphs");
  EXPECT_FAILS(strata_stream_capture({}, nothing, nullptr, &graph), STRATA_INVALID_HANDLE, "strata_stream, is null");
  EXPECT_FAILS(strata_graph_launch(graph, stream), STRATA_INVALID_HANDLE, "strata_graph, is null");
  EXPECT_FAILS(strata_event_record({}, stream), STRATA_INVALID_HANDLE, "strata_event, is null");
  EXPECT_FAILS(strata_event_create(device_, nullptr), STRATA_INVALID_ARGUMENT, "event: expected a pointer, is null");
  EXPECT_EQ(strata_stream_destroy(stream), STRATA_OK);
  EXPECT_FAILS(strata_stream_synchronize(device_, stream), STRATA_INVALID_HANDLE, "which is destroyed");
  EXPECT_EQ(strata_stream_destroy(own), STRATA_OK);
}

TEST(COpen, Settings) {
  strata_config config = strata_config_default();
  config.cpu_threads = 3;
  config.cpu_isa = "portable";
  config.force = "linear=reference,*=cpu/baseline";
  strata_device device{};
  EXPECT_FAILS(strata_device_open("cpu", &config, &device), STRATA_INVALID_ARGUMENT, "cpu/baseline");
  config.force = "linear=reference";
  ASSERT_EQ(strata_device_open("cpu", &config, &device), STRATA_OK) << strata_last_error();
  EXPECT_EQ(strata_device_close(device), STRATA_OK);
}

TEST(COpen, WrongSettings) {
  strata_device device{};
  const auto open = [&](auto change) {
    strata_config config = strata_config_default();
    change(config);
    return strata_device_open("cpu", &config, &device);
  };
  EXPECT_FAILS(open([](auto& c) { c.cpu_threads = -1; }), STRATA_INVALID_ARGUMENT, "cpu_threads must be in [0, 4096], is -1");
  EXPECT_FAILS(open([](auto& c) { c.from_environment = 2; }), STRATA_INVALID_ARGUMENT, "config.from_environment: expected 0 or 1, is 2");
  EXPECT_FAILS(open([](auto& c) { c.cpu_isa = "avx1024"; }), STRATA_INVALID_ARGUMENT, "avx1024");
  EXPECT_FAILS(open([](auto& c) { c.force = "linear"; }), STRATA_INVALID_ARGUMENT, "config.force must be op=implementation,...");
  EXPECT_FAILS(open([](auto& c) { c.force = "nonsense=reference"; }), STRATA_INVALID_ARGUMENT, "nonsense");
  EXPECT_FAILS(open([](auto& c) { c.force = "linear=nonsense"; }), STRATA_INVALID_ARGUMENT, "nonsense");
  EXPECT_FAILS(strata_device_open(nullptr, nullptr, &device), STRATA_INVALID_ARGUMENT, "id: expected a text, is null");
  EXPECT_FAILS(strata_device_open("cpu", nullptr, nullptr), STRATA_INVALID_ARGUMENT, "device: expected a pointer, is null");
  EXPECT_FAILS(strata_device_open("cpu:1", nullptr, &device), STRATA_INVALID_ARGUMENT, "cpu:1");
  EXPECT_EQ(device.value, 0u);
}

// A struct of another release, in memory of its own size so that a sanitizer sees any access after it.
strata_status open_with_size(size_t allocated, size_t stated, unsigned char rest, strata_device* device) {
  const strata_config config = strata_config_default();
  std::vector<unsigned char> bytes(std::max(allocated, sizeof(size_t)), rest);
  std::memcpy(bytes.data(), &config, std::min(allocated, sizeof config));
  std::memcpy(bytes.data(), &stated, sizeof stated);
  return strata_device_open("cpu", reinterpret_cast<const strata_config*>(bytes.data()), device);
}

TEST(CStructs, OtherReleases) {
  strata_device device{};
  const size_t size = sizeof(strata_config);
  for (const size_t wrong : {size_t{0}, size_t{1}, size - 8, ~size_t{0}, size + 100000}) {
    EXPECT_FAILS(open_with_size(8, wrong, 0, &device), STRATA_INVALID_ARGUMENT, "strata_config: struct_size must be");
    EXPECT_THAT(strata_last_error(), HasSubstr(std::to_string(wrong)));
  }
  EXPECT_FAILS(open_with_size(size + 16, size + 16, 1, &device), STRATA_INVALID_ARGUMENT, "it needs a later release");
  ASSERT_EQ(open_with_size(size + 16, size + 16, 0, &device), STRATA_OK) << strata_last_error();
  EXPECT_EQ(strata_device_close(device), STRATA_OK);
}

TEST_F(CDevice, ResultsAreWrittenUpToTheCallersSize) {
  std::vector<unsigned char> bytes(sizeof(strata_device_properties) + 16, 0xAB);
  const size_t size = bytes.size();
  std::memcpy(bytes.data(), &size, sizeof size);
  auto* properties = reinterpret_cast<strata_device_properties*>(bytes.data());
  ASSERT_EQ(strata_device_get_properties(device_, properties), STRATA_OK) << strata_last_error();
  EXPECT_EQ(properties->struct_size, size);
  for (size_t i = sizeof(strata_device_properties); i < size; ++i) EXPECT_EQ(bytes[i], 0xAB) << "unknown fields stay as they are";
  properties->struct_size = 8;
  EXPECT_FAILS(strata_device_get_properties(device_, properties), STRATA_INVALID_ARGUMENT, "strata_device_properties: struct_size must be");
  EXPECT_FAILS(strata_device_get_properties(device_, nullptr), STRATA_INVALID_ARGUMENT, "properties: expected a strata_device_properties");
}

TEST(CViews, Contiguous) {
  const std::array<int64_t, 3> shape{2, 3, 4};
  int data = 0;
  strata_tensor_view view;
  ASSERT_EQ(strata_tensor_view_contiguous(&data, STRATA_I32, {STRATA_CUDA, 2}, 3, shape.data(), &view), STRATA_OK);
  EXPECT_EQ(view.data, &data);
  EXPECT_EQ(view.rank, 3);
  EXPECT_EQ(view.device.index, 2);
  EXPECT_THAT(view.shape, ::testing::ElementsAre(2, 3, 4, 0));
  EXPECT_THAT(view.stride, ::testing::ElementsAre(12, 4, 1, 0));
}

TEST(CViews, WrongArguments) {
  strata_tensor_view view;
  std::memset(&view, 0x5A, sizeof view);
  const strata_tensor_view before = view;
  std::array<int64_t, 4> shape{2, 3, 4, 5};
  const auto make = [&](strata_dtype dtype, strata_device_id device, int32_t rank) {
    return strata_tensor_view_contiguous(nullptr, dtype, device, rank, shape.data(), &view);
  };
  EXPECT_FAILS(make(12, {}, 2), STRATA_INVALID_ARGUMENT, "expected an enumerator, 0 to 11, is 12");
  EXPECT_FAILS(make(-1, {}, 2), STRATA_INVALID_ARGUMENT, "is -1");
  EXPECT_FAILS(make(STRATA_U8, {3, 0}, 2), STRATA_INVALID_ARGUMENT, "0 to 2, is 3");
  EXPECT_FAILS(make(STRATA_U8, {STRATA_CPU, -1}, 2), STRATA_INVALID_ARGUMENT, "expected a device index in [0, 0], is -1");
  EXPECT_FAILS(make(STRATA_U8, {STRATA_CUDA, -1}, 2), STRATA_INVALID_ARGUMENT, "is -1");
  EXPECT_FAILS(make(STRATA_U8, {}, 0), STRATA_INVALID_ARGUMENT, "rank: expected 1 to 4, is 0");
  EXPECT_FAILS(make(STRATA_U8, {}, 5), STRATA_INVALID_ARGUMENT, "rank: expected 1 to 4, is 5");
  shape = {int64_t{1} << 62, 2, 2, 1};
  EXPECT_FAILS(make(STRATA_U8, {}, 4), STRATA_INVALID_ARGUMENT, "at most 2^63 - 1 bytes");
  shape = {1, -2, 2, 1};
  EXPECT_FAILS(make(STRATA_U8, {}, 4), STRATA_INVALID_ARGUMENT, "dimension 1 has extent -2");
  EXPECT_FAILS(strata_tensor_view_contiguous(nullptr, STRATA_U8, {}, 1, nullptr, &view), STRATA_INVALID_ARGUMENT, "shape");
  EXPECT_FAILS(strata_tensor_view_contiguous(nullptr, STRATA_U8, {}, 1, shape.data(), nullptr), STRATA_INVALID_ARGUMENT, "view");
  EXPECT_EQ(std::memcmp(&view, &before, sizeof view), 0) << "nothing is written on an error";
}

TEST(CViews, Sizes) {
  EXPECT_EQ(strata_dtype_bytes(STRATA_F64), 8);
  EXPECT_EQ(strata_dtype_bytes(STRATA_BF16), 2);
  EXPECT_EQ(strata_dtype_bytes(STRATA_BOOL), 1);
  EXPECT_EQ(strata_dtype_bytes(12), 0);
  EXPECT_EQ(strata_dtype_bytes(-1), 0);
  int64_t bytes = 0;
  ASSERT_EQ(strata_page_payload_bytes(STRATA_KV_FP8_DS_MLA_V4, 512, 64, &bytes), STRATA_OK);
  EXPECT_EQ(bytes, 584 * 64);
  EXPECT_FAILS(strata_page_payload_bytes(7, 512, 64, &bytes), STRATA_INVALID_ARGUMENT, "format: expected an enumerator, 0 to 6, is 7");
  EXPECT_FAILS(strata_page_payload_bytes(STRATA_KV_BF16, -1, 64, &bytes), STRATA_INVALID_ARGUMENT, "row_dim");
  EXPECT_FAILS(strata_page_payload_bytes(STRATA_KV_BF16, 512, INT64_MAX, &bytes), STRATA_INVALID_ARGUMENT, "page_size");
  EXPECT_FAILS(strata_page_payload_bytes(STRATA_KV_STATE_F32, INT32_MAX, INT32_MAX, &bytes), STRATA_INVALID_ARGUMENT, "2^63 - 1 bytes");
  EXPECT_FAILS(strata_page_payload_bytes(STRATA_KV_BF16, 1, 1, nullptr), STRATA_INVALID_ARGUMENT, "bytes");
}

}  // namespace
}  // namespace strata
