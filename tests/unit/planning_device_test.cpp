// The device that layers are made on to count what they take.
#include "core/planning_device.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include "core/host_device.h"
#include "strata/error.h"
#include "strata/tensor.h"

namespace strata {
namespace {

TEST(PlanningDevice, HasAddressesWithoutMemory) {
  const auto device = std::make_shared<PlanningDevice>(open_device({}));
  constexpr int64_t kBytes = int64_t{64} << 30;
  const Tensor a(device, DType::u8, {kBytes}), b(device, DType::u8, {kBytes});
  ASSERT_NE(a.view().data, nullptr);
  const auto *first = a.view().ptr<char>(), *second = b.view().ptr<char>();
  EXPECT_TRUE(first + kBytes <= second || second + kBytes <= first);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(first) % 256, 0u);
  EXPECT_EQ(first[kBytes - 1], 0);
  // Nothing is written: it would fault.
  device->fill(a.view().data, 0, 4096, {});
  device->copy(a.view().data, b.view().data, 4096, {});
  device->copy_from_host(a.view().data, "text", 4, {});
  EXPECT_EQ(device->allocate(0), nullptr);
  device->deallocate(nullptr);
}

TEST(PlanningDevice, HostMemoryTakesPagesWhenItIsWritten) {
  const auto device = std::make_shared<PlanningDevice>(open_device({}));
  constexpr int64_t kBytes = int64_t{64} << 30;
  auto* data = static_cast<char*>(device->allocate_host(kBytes));
  data[kBytes - 1] = 1;
  EXPECT_EQ(data[0], 0);
  EXPECT_EQ(data[kBytes - 1], 1);
  device->deallocate_host(data);
  EXPECT_EQ(device->allocate_host(0), nullptr);
}

TEST(PlanningDevice, GivesAddressesBack) {
  const auto device = std::make_shared<PlanningDevice>(open_device({}));
  unsigned char resident = 0;
  void* data = device->allocate(size_t{1} << 20);
  EXPECT_EQ(mincore(data, 1, &resident), 0);
  device->deallocate(data);
  EXPECT_EQ(mincore(data, 1, &resident), -1) << "still mapped";
  EXPECT_THROW(device->allocate(size_t{1} << 62), Error);
}

TEST(PlanningDevice, IsTheOtherDeviceInAllElse) {
  const auto cpu = open_device({}, {.cpu_threads = 3, .cpu_isa = CpuIsa::portable});
  const PlanningDevice device(cpu);
  EXPECT_TRUE(is_planning(device));
  EXPECT_FALSE(is_planning(*cpu));
  EXPECT_EQ(device.id(), cpu->id());
  EXPECT_EQ(device.description(), cpu->description());
  EXPECT_EQ(device.properties().memory_bytes, cpu->properties().memory_bytes);
  EXPECT_EQ(host_threads(device), 3);
}

}  // namespace
}  // namespace strata
