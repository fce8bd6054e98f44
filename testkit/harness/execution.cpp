#include "testkit/harness/execution.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "core/check.h"
#include "core/host_device.h"

namespace strata::testkit {
namespace {

constexpr int64_t kGuard = 256;  // keeps the alignment that a workspace promises
constexpr std::byte kGuardByte{0xA5};
constexpr std::byte kWorkspacePoison{0xFF};

// f(offset, bytes) for every row of a view, in bytes from the view's first element.
template <class F>
void for_each_row(const TensorView& view, F&& f) {
  if (view.numel() == 0) return;
  const auto element = static_cast<int64_t>(size_of(view.dtype));
  const int64_t columns = view.shape[view.rank - 1];
  for (int64_t row = 0; row < view.numel() / columns; ++row) {
    int64_t offset = 0, rest = row;
    for (int i = view.rank - 2; i >= 0; --i) {
      offset += rest % view.shape[i] * view.stride[i];
      rest /= view.shape[i];
    }
    f(static_cast<size_t>(offset * element), static_cast<size_t>(columns * element));
  }
}

// Stands in for a device where shapes are made and no memory is touched.
class ShapeOnlyDevice final : public HostDevice {
 public:
  explicit ShapeOnlyDevice(const Device& like) : HostDevice(like.id(), like.config()), properties_(like.properties()) {}
  std::string description() const override { return "shapes only"; }
  DeviceProperties properties() const override { return properties_; }
  void* allocate(int64_t) override { return nullptr; }
  void deallocate(void*) noexcept override {}
  void copy_from_host(void*, const void*, int64_t, Stream) override {}
  void copy_to_host(void*, const void*, int64_t, Stream) override {}
  void copy(void*, const void*, int64_t, Stream) override {}
  void fill(void*, uint8_t, int64_t, Stream) override {}

 private:
  DeviceProperties properties_;
};

}  // namespace

std::shared_ptr<Device> shape_only_device(const Device& like) { return std::make_shared<ShapeOnlyDevice>(like); }

GuardedWorkspace::GuardedWorkspace(std::shared_ptr<Device> device, int64_t bytes)
    : device_(std::move(device)), memory_(device_, DType::u8, {bytes + 2 * kGuard}) {
  std::vector<std::byte> image(static_cast<size_t>(bytes + 2 * kGuard), kWorkspacePoison);
  std::fill_n(image.begin(), kGuard, kGuardByte);
  std::fill(image.end() - kGuard, image.end(), kGuardByte);
  auto* data = static_cast<std::byte*>(memory_.view().data);
  device_->copy_from_host(data, image.data(), memory_.allocated_bytes(), {});
  device_->synchronize({});
  workspace_ = {bytes > 0 ? data + kGuard : nullptr, bytes};
}

std::string GuardedWorkspace::check() const {
  const int64_t bytes = workspace_.bytes;
  const auto* data = static_cast<const std::byte*>(memory_.view().data);
  std::vector<std::byte> before(kGuard), after(kGuard);
  device_->copy_to_host(before.data(), data, kGuard, {});
  device_->copy_to_host(after.data(), data + kGuard + bytes, kGuard, {});
  device_->synchronize({});
  const auto intact = [](std::byte b) { return b == kGuardByte; };
  if (!std::all_of(after.begin(), after.end(), intact)) return fmt::format("wrote past its workspace of {} bytes", bytes);
  if (!std::all_of(before.begin(), before.end(), intact)) return fmt::format("wrote before its workspace of {} bytes", bytes);
  return "";
}

Snapshot::Snapshot(const Inputs& inputs) : inputs_(inputs) {
  for (const Inputs::Block& block : inputs.blocks()) {
    const TensorView& view = block.memory.view();
    blocks_.emplace_back(view.bytes());
    inputs.device()->copy_to_host(blocks_.back().data(), view.data, view.bytes(), {});
  }
  inputs.device()->synchronize({});
}

Snapshot::Place Snapshot::find(const void* data) const {
  const auto address = reinterpret_cast<uintptr_t>(data);
  for (size_t b = 0; b < blocks_.size(); ++b) {
    const auto begin = reinterpret_cast<uintptr_t>(inputs_.blocks()[b].memory.view().data);
    if (address >= begin && address < begin + blocks_[b].size()) return {b, address - begin};
  }
  fail(ErrorCode::invalid_argument, "a case's output is not in memory of the case");
}

HostArray Snapshot::array(const TensorView& view) const {
  HostArray array{view.dtype, Shape(view.shape.begin(), view.shape.begin() + view.rank), {}};
  if (view.numel() == 0) return array;
  array.data.resize(view.bytes());
  const Place place = find(view.data);
  std::byte* out = array.data.data();
  for_each_row(view, [&](size_t offset, size_t bytes) {
    std::memcpy(out, blocks_[place.block].data() + place.offset + offset, bytes);
    out += bytes;
  });
  return array;
}

PagedCache Snapshot::cache(const PagedCache& cache) const {
  PagedCache host = cache;
  host.device = {};
  if (cache.data == nullptr) return host;
  const Place place = find(cache.data);
  host.data = const_cast<std::byte*>(blocks_[place.block].data() + place.offset);
  return host;
}

std::string Snapshot::stray_writes(const std::vector<Output>& outputs) const {
  std::vector<std::vector<bool>> owned(blocks_.size());
  std::vector<bool> changed(blocks_.size());
  for (size_t b = 0; b < blocks_.size(); ++b) {
    changed[b] = blocks_[b] != inputs_.blocks()[b].image;
    if (changed[b]) owned[b].resize(blocks_[b].size(), false);
  }
  for (const Output& output : outputs) {
    if (output.cache.present() && output.cache.data != nullptr) {
      const Place place = find(output.cache.data);
      if (!changed[place.block]) continue;
      std::fill_n(owned[place.block].begin() + static_cast<int64_t>(place.offset), output.cache.num_pages * output.cache.page_stride, true);
    }
    if (!output.view.present() || output.view.numel() == 0) continue;
    const Place place = find(output.view.data);
    if (!changed[place.block]) continue;
    for_each_row(output.view, [&](size_t offset, size_t bytes) {
      std::fill_n(owned[place.block].begin() + static_cast<int64_t>(place.offset + offset), bytes, true);
    });
  }
  for (size_t b = 0; b < blocks_.size(); ++b) {
    if (!changed[b]) continue;
    const std::vector<std::byte>& image = inputs_.blocks()[b].image;
    for (size_t i = 0; i < blocks_[b].size(); ++i) {
      if (owned[b][i] || blocks_[b][i] == image[i]) continue;
      return fmt::format("changed byte {} of allocation {} ({} bytes, in the order of the case's inputs), which is no output's", i, b,
                         blocks_[b].size());
    }
  }
  return "";
}

std::string compare_runs(const Inputs& got_inputs, const std::vector<Output>& got, const Inputs& want_inputs,
                         const std::vector<Output>& want) {
  const Snapshot got_memory(got_inputs), want_memory(want_inputs);
  std::string text;
  const auto add = [&](const std::string& line) {
    if (!line.empty()) text += (text.empty() ? "" : "\n") + line;
  };
  // A tolerance may depend on the device under test, such as a GPU whose FP8 tensor cores round within a sum.
  for (size_t i = 0; i < want.size(); ++i) {
    const Output& w = want[i];
    if (w.cache.present()) {
      add(compare_caches(w.name, got_memory.cache(got[i].cache), want_memory.cache(w.cache), w.computed, got[i].tolerance));
      continue;
    }
    const HostArray got_array = got_memory.array(got[i].view), want_array = want_memory.array(w.view);
    add(w.compare ? w.compare(got_array, want_array, got_inputs.device()->id()) : compare(w.name, got_array, want_array, got[i].tolerance));
  }
  add(got_memory.stray_writes(got));
  return text;
}

std::string rerun_command(const AnyCase& c, const Device& device, const std::string& implementation, const CheckOptions& options) {
  std::string text = fmt::format("strata check --op {} --case {} --impl {} --device {} --seed {}", c.op(), c.name(), implementation,
                                 to_string(device.id()), options.seed);
  if (options.offset > 0) text += fmt::format(" --offset {}", options.offset);
  if (device.config().cpu_isa != CpuIsa::best) text += fmt::format(" --isa {}", to_string(device.config().cpu_isa));
  if (device.config().cpu_threads > 0) text += fmt::format(" --threads {}", device.config().cpu_threads);
  return text;
}

}  // namespace strata::testkit
