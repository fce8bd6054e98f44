#include "parallel/host_collectives.h"

#include <algorithm>
#include <cstring>

#include "core/check.h"
#include "formats/bf16.h"

namespace strata::parallel {
namespace {

constexpr int64_t kAligned = 64;  // bytes: of a rank's rows in a buffer

void check_view(const char* call, const char* name, const TensorView& view, const Device& device) {
  require(view.is_contiguous(), "{}: {} must be contiguous, is {}", call, name, view);
  require(view.device == device.id(), "{}: {} must be on {}, is {}", call, name, device.id(), view);
  require(view.data != nullptr || view.bytes() == 0, "{}: {} must have memory, is null", call, name);
}

void check_sums(const char* call, const char* name, const TensorView& view) {
  require(view.dtype == DType::bf16 || view.dtype == DType::f32, "{}: {} must be bf16 or f32, is {}", call, name, view);
}

// `whole` has size times the rows of `part`.
void check_parts(const char* call, const TensorView& part, const TensorView& whole, int size, const char* part_name,
                 const char* whole_name) {
  bool same = part.dtype == whole.dtype && part.rank == whole.rank && part.rank >= 1 && whole.shape[0] == part.shape[0] * size;
  for (size_t i = 1; same && i < static_cast<size_t>(part.rank); ++i) same = part.shape[i] == whole.shape[i];
  require(same, "{}: {} must have {} times the rows of {} {}, is {}", call, whole_name, size, part_name, part, whole);
}

float value_of(const float* values, int64_t i) { return values[i]; }
float value_of(const Bf16* values, int64_t i) { return to_float(values[i]); }
void store(float* to, float value) { *to = value; }
void store(Bf16* to, float value) { *to = to_bf16(value); }

// out[i] = the sum of part r of every rank's buffer, `at` bytes into it.
template <class T>
void sum(const Board& board, int64_t at, int64_t bytes, std::byte* out) {
  constexpr int64_t kValues = 256;
  const int64_t count = bytes / static_cast<int64_t>(sizeof(T));
  T* const to = reinterpret_cast<T*>(out);
  float sums[kValues];
  for (int64_t begin = 0; begin < count; begin += kValues) {
    const int64_t n = std::min(kValues, count - begin);
    std::fill_n(sums, n, 0.0f);
    for (int rank = 0; rank < board.size(); ++rank) {
      const T* const from = reinterpret_cast<const T*>(board.read(rank) + at) + begin;
      for (int64_t i = 0; i < n; ++i) sums[i] += value_of(from, i);
    }
    for (int64_t i = 0; i < n; ++i) store(to + begin + i, sums[i]);
  }
}
void sum(DType dtype, const Board& board, int64_t at, int64_t bytes, std::byte* out) {
  dtype == DType::f32 ? sum<float>(board, at, bytes, out) : sum<Bf16>(board, at, bytes, out);
}

// f(offset, bytes) for consecutive ranges of at most `most` bytes; once, with nothing, for no bytes at all.
template <class F>
void for_ranges(int64_t bytes, int64_t most, F&& f) {
  int64_t offset = 0;
  do {
    const int64_t count = std::min(most, bytes - offset);
    f(offset, count);
    offset += count;
  } while (offset < bytes);
}

void copy_bytes(std::byte* to, const std::byte* from, int64_t bytes) {
  if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
}

}  // namespace

std::byte* HostCollectives::on_host(const TensorView& view, bool read, std::vector<std::byte>& buffer, Device& device,
                                    Stream stream) const {
  if (device.id().kind == DeviceKind::cpu) return static_cast<std::byte*>(view.data);
  if (static_cast<int64_t>(buffer.size()) < view.bytes()) buffer.resize(static_cast<size_t>(view.bytes()));
  if (read && view.bytes() > 0) {
    device.copy_to_host(buffer.data(), view.data, view.bytes(), stream);
    device.synchronize(stream);
  }
  return buffer.data();
}

void HostCollectives::to_device(const TensorView& view, const std::byte* bytes, Device& device, Stream stream) const {
  if (device.id().kind == DeviceKind::cpu || view.bytes() == 0) return;
  device.copy_from_host(view.data, bytes, view.bytes(), stream);
  device.synchronize(stream);
}

void HostCollectives::all_reduce_sum(const TensorView& tensor, Device& device, Stream stream) {
  constexpr const char* kCall = "all_reduce_sum";
  check_view(kCall, "tensor", tensor, device);
  check_sums(kCall, "tensor", tensor);
  const std::lock_guard lock(one_call_);
  std::byte* const values = on_host(tensor, true, in_, device, stream);
  const Call call{Operation::all_reduce_sum, tensor.dtype, tensor.bytes()};
  for_ranges(tensor.bytes(), Board::kBufferBytes, [&](int64_t offset, int64_t bytes) {
    board_->step(call, [&](std::byte* buffer) { copy_bytes(buffer, values + offset, bytes); });
    sum(tensor.dtype, *board_, 0, bytes, values + offset);
  });
  to_device(tensor, values, device, stream);
}

void HostCollectives::all_gather(const TensorView& in, const TensorView& out, Device& device, Stream stream) {
  constexpr const char* kCall = "all_gather";
  check_view(kCall, "in", in, device);
  check_view(kCall, "out", out, device);
  check_parts(kCall, in, out, size(), "in", "out");
  const std::lock_guard lock(one_call_);
  const std::byte* const values = on_host(in, true, in_, device, stream);
  std::byte* const gathered = on_host(out, false, out_, device, stream);
  for_ranges(in.bytes(), Board::kBufferBytes, [&](int64_t offset, int64_t bytes) {
    board_->step({Operation::all_gather, in.dtype, in.bytes()}, [&](std::byte* buffer) { copy_bytes(buffer, values + offset, bytes); });
    for (int peer = 0; peer < size(); ++peer) copy_bytes(gathered + peer * in.bytes() + offset, board_->read(peer), bytes);
  });
  to_device(out, gathered, device, stream);
}

void HostCollectives::reduce_scatter_sum(const TensorView& in, const TensorView& out, Device& device, Stream stream) {
  constexpr const char* kCall = "reduce_scatter_sum";
  check_view(kCall, "in", in, device);
  check_view(kCall, "out", out, device);
  check_sums(kCall, "in", in);
  check_parts(kCall, out, in, size(), "out", "in");
  const std::lock_guard lock(one_call_);
  const std::byte* const values = on_host(in, true, in_, device, stream);
  std::byte* const sums = on_host(out, false, out_, device, stream);
  // A buffer has a range of every rank's rows.
  const int64_t most = Board::kBufferBytes / size() / kAligned * kAligned;
  for_ranges(out.bytes(), most, [&](int64_t offset, int64_t bytes) {
    board_->step({Operation::reduce_scatter_sum, out.dtype, out.bytes()}, [&](std::byte* buffer) {
      for (int peer = 0; peer < size(); ++peer) copy_bytes(buffer + peer * most, values + peer * out.bytes() + offset, bytes);
    });
    sum(out.dtype, *board_, rank() * most, bytes, sums + offset);
  });
  to_device(out, sums, device, stream);
}

void HostCollectives::barrier(Device& device, Stream stream) {
  const std::lock_guard lock(one_call_);
  device.synchronize(stream);
  board_->step({Operation::barrier, DType::u8, 0}, [](std::byte*) {});
}

void HostCollectives::abort(const std::string& reason) noexcept {
  try {
    board_->fail(fmt::format("rank {} aborted: {}", rank(), reason));
  } catch (...) {
    board_->fail("a rank aborted");  // no memory for the text
  }
}

}  // namespace strata::parallel
