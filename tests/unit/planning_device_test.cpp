// The device that layers are made on to count what they take.
#include "core/planning_device.h"

#include <gtest/gtest.h>

#include "core/host_device.h"
#include "strata/error.h"
#include "strata/tensor.h"

namespace strata {
namespace {

TEST(PlanningDevice, HasAddressesWithoutMemory) {
  const auto device = std::make_shared<PlanningDevice>(open_device({}));
  constexpr int64_t kTerabyte = 1000000000000;
  const Tensor a(device, DType::u8, {kTerabyte}), b(device, DType::u8, {kTerabyte});
  ASSERT_NE(a.view().data, nullptr);
  const auto *first = a.view().ptr<char>(), *second = b.view().ptr<char>();
  EXPECT_TRUE(first + kTerabyte <= second || second + kTerabyte <= first);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(first) % 256, 0u);
  // Nothing is read or written: it would fault.
  device->fill(a.view().data, 0, 4096, {});
  device->copy(a.view().data, b.view().data, 4096, {});
  device->copy_from_host(a.view().data, "text", 4, {});
  EXPECT_EQ(device->allocate(0), nullptr);
  device->deallocate(nullptr);
}

TEST(PlanningDevice, GivesAddressesBack) {
  const auto device = std::make_shared<PlanningDevice>(open_device({}));
  for (int i = 0; i < 1000; ++i) Tensor(device, DType::u8, {int64_t{1} << 45});  // 32 TiB of the 128 that there are
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
