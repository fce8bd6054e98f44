#include "weights/load_weights.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "checkpoint/stored_value.h"
#include "weights/stored_matrix.h"
#include "weights/weight_form.h"
#include "core/ceil_div.h"
#include "core/check.h"
#include "core/host_device.h"
#include "core/planning_device.h"
#include "contracts/packed_weight.h"

namespace strata {
namespace {

// Fills `rows` rows of device memory through `write(row, count, host)`: in place on a CPU, elsewhere through a bounded buffer, so that a
// whole matrix is never on the host.
void fill_rows(Device& device, void* to, int64_t rows, size_t row_bytes, const std::function<void(int64_t, int64_t, void*)>& write) {
  if (is_planning(device)) return;
  if (device.id().kind == DeviceKind::cpu) return write(0, rows, to);
  constexpr size_t kBufferBytes = size_t{64} << 20;
  const int64_t step = std::clamp<int64_t>(static_cast<int64_t>(kBufferBytes / std::max<size_t>(row_bytes, 1)), 1, rows);
  std::vector<std::byte> buffer(static_cast<size_t>(step) * row_bytes);
  for (int64_t row = 0; row < rows; row += step) {
    const int64_t count = std::min(step, rows - row);
    write(row, count, buffer.data());
    device.copy_from_host(static_cast<std::byte*>(to) + static_cast<size_t>(row) * row_bytes, buffer.data(),
                          static_cast<size_t>(count) * row_bytes, Stream{});
    device.synchronize(Stream{});
  }
}

// The matrices that are stacked by rows.
struct Stack {
  std::vector<StoredMatrix> parts;
  int64_t rows = 0;
  int64_t columns = 0;
  bool fp8 = true;
  bool power_of_two_scales = true;  // FP8 only
  // The largest blocks that no matrix's border and no cut divides: a cut at any row or column keeps its exact scales.
  int64_t block_n = 0;
  int64_t block_k = 0;

  void add(StoredMatrix part) {
    fp8 = fp8 && part.is_fp8();
    if (fp8) {
      block_n = std::gcd(block_n, std::gcd(part.block_n(), std::gcd(part.row_begin(), rows)));
      block_k = std::gcd(block_k, std::gcd(part.block_k(), part.column_begin()));
      power_of_two_scales = power_of_two_scales && part.power_of_two_scales();
    }
    rows += part.rows();
    columns = part.columns();
    parts.push_back(std::move(part));
  }

  // "wq_a + wkv": the matrices' names, each once.
  std::string label() const {
    std::vector<std::string_view> names;
    for (const StoredMatrix& part : parts) {
      if (std::find(names.begin(), names.end(), part.suffix()) == names.end()) names.push_back(part.suffix());
    }
    return fmt::format("{}", fmt::join(names, " + "));
  }

  // Calls f(part, row within the part, count, row within the stack) for the rows [row, row + count).
  template <class F>
  void for_rows(int64_t row, int64_t count, F&& f) const {
    int64_t begin = 0;
    for (const StoredMatrix& part : parts) {
      const int64_t first = std::max(row, begin);
      const int64_t last = std::min(row + count, begin + part.rows());
      if (first < last) f(part, first - begin, last - first, first);
      begin += part.rows();
    }
  }
};

LinearWeight shape_only(const Stack& stack, const LinearRequest& request, bool fp8, DeviceId device) {
  LinearWeight weight;
  weight.groups = std::max<int64_t>(request.groups, 1);
  weight.n = stack.rows / weight.groups;
  weight.k = stack.columns;
  weight.weight = TensorView::contiguous(nullptr, fp8 ? DType::e4m3 : DType::bf16, device, {stack.rows, stack.columns});
  if (fp8) {
    weight.block_n = stack.block_n;
    weight.block_k = stack.block_k;
    weight.power_of_two_scales = stack.power_of_two_scales;
    weight.scale =
        TensorView::contiguous(nullptr, DType::f32, device, {ceil_div(stack.rows, stack.block_n), ceil_div(stack.columns, stack.block_k)});
  }
  return weight;
}

void store_rows(const Stack& stack, bool fp8, const std::shared_ptr<Device>& device, LoadedLinear& out) {
  out.storage = Tensor(device, fp8 ? DType::e4m3 : DType::bf16, {stack.rows, stack.columns});
  const size_t row_bytes = static_cast<size_t>(stack.columns) * size_of(out.storage.view().dtype);
  const int threads = host_threads(*device);
  fill_rows(*device, out.storage.view().data, stack.rows, row_bytes, [&](int64_t row, int64_t count, void* host) {
    stack.for_rows(row, count, [&](const StoredMatrix& part, int64_t part_row, int64_t part_count, int64_t at) {
      void* to = static_cast<std::byte*>(host) + static_cast<size_t>(at - row) * row_bytes;
      if (fp8) {
        part.read_codes(part_row, part_count, static_cast<E4m3*>(to), threads);
      } else {
        part.read_bf16(part_row, part_count, static_cast<Bf16*>(to), threads);
      }
    });
  });
  out.weight.weight = out.storage;
}

void store_scales(const Stack& stack, const std::shared_ptr<Device>& device, LoadedLinear& out) {
  const int64_t rows = ceil_div(stack.rows, stack.block_n);
  const int64_t columns = ceil_div(stack.columns, stack.block_k);
  std::vector<float> scales(static_cast<size_t>(rows * columns));
  for (int64_t i = 0; i < rows; ++i) {
    stack.for_rows(i * stack.block_n, 1, [&](const StoredMatrix& part, int64_t part_row, int64_t, int64_t) {
      for (int64_t j = 0; j < columns; ++j) scales[static_cast<size_t>(i * columns + j)] = part.scale(part_row, j * stack.block_k);
    });
  }
  out.scale_storage = Tensor(device, DType::f32, {rows, columns});
  device->copy_from_host(out.scale_storage.view().data, scales.data(), scales.size() * sizeof(float), Stream{});
  device->synchronize(Stream{});
  out.weight.scale = out.scale_storage;
}

void pack(const WeightFormChoice& choice, const std::shared_ptr<Device>& device, LoadedLinear& out) {
  out.packed_storage = Tensor(device, DType::u8, {static_cast<int64_t>(choice.packed_bytes)});
  if (!is_planning(*device)) choice.packing->pack(out.weight, *device, out.packed_storage.view().data);
  device->synchronize(Stream{});
  out.weight = ops::as_packed(out.weight, choice.packing->name, out.packed_storage);
  out.storage = Tensor();
  out.scale_storage = Tensor();
}

std::unique_ptr<LoadedLinear> load(const WeightLoader& loader, const Stack& stack, const LinearRequest& request) {
  const std::string& name = stack.parts.front().name();
  require(request.groups == 0 || stack.rows % request.groups == 0, "{}: groups: expected a divisor of {} rows, is {}", name, stack.rows,
          request.groups);
  // Scales finer than the bf16 copy they would save are no gain, unless that copy is a rounded one.
  constexpr int64_t kSmallestBlock = 32;
  const DeviceId device = loader.device->id();
  std::optional<LinearWeight> fp8;
  std::optional<LinearWeight> bf16;
  if (stack.fp8 && request.form != WeightForm::dequantize &&
      (request.form == WeightForm::fp8 || stack.block_n * stack.block_k >= kSmallestBlock || !stack.power_of_two_scales)) {
    fp8 = shape_only(stack, request, true, device);
  }
  if (!fp8 || request.form != WeightForm::fp8) {
    bf16 = shape_only(stack, request, false, device);
    bf16->from_e4m3 = fp8.has_value();
  }
  const WeightFormChoice choice = choose_weight_form(loader.ops, *loader.device, request, fp8, bf16, name);

  auto out = std::make_unique<LoadedLinear>();
  out->weight = choice.fp8 ? *fp8 : *bf16;
  out->weight.name = stack.label();
  out->weight.shares_device = request.shares_device;
  store_rows(stack, choice.fp8, loader.device, *out);
  if (choice.fp8) store_scales(stack, loader.device, *out);
  for (const StoredMatrix& part : stack.parts) part.release();
  if (choice.packing != nullptr) pack(choice, loader.device, *out);
  return out;
}

}  // namespace

Tensor WeightLoader::load_f32(std::string_view suffix, std::initializer_list<int64_t> shape, Shard shard) const {
  require(shape.size() == 1 || shape.size() == 2, "{}: load_f32: expected 1 or 2 dimensions, is {}", suffix, shape.size());
  const StoredTensor& tensor = require_tensor(checkpoint, layer, suffix, {DType::bf16, DType::f16, DType::f32}, shape);
  const Shard part = resolve(shard, tensor.shape[0], tensor.name);
  const int64_t columns = tensor.shape.size() == 2 ? tensor.shape[1] : 1;
  Tensor out = tensor.shape.size() == 2 ? Tensor(device, DType::f32, {part.count, columns}) : Tensor(device, DType::f32, {part.count});
  fill_rows(*device, out.view().data, part.count, static_cast<size_t>(columns) * sizeof(float),
            [&](int64_t row, int64_t count, void* host) {
              const int64_t begin = (part.begin + row) * columns;
              for (int64_t i = 0; i < count * columns; ++i) {
                const float value = stored_value(tensor, begin + i);
                if (std::isnan(value)) {
                  fail(ErrorCode::invalid_file, "{}: tensor {}: value {}: expected a number, is nan", checkpoint.directory().string(),
                       tensor.name, begin + i);
                }
                static_cast<float*>(host)[i] = value;
              }
            });
  checkpoint.release(tensor);
  return out;
}

std::unique_ptr<LoadedLinear> WeightLoader::load_linear(std::string_view name, const LinearRequest& request) const {
  Stack stack;
  stack.add(StoredMatrix(checkpoint, layer, std::string(name), request.n, request.k, request.rows, request.columns));
  return load(*this, stack, request);
}

std::unique_ptr<LoadedLinear> WeightLoader::load_fused_linear(const std::vector<FusedPart>& parts, const LinearRequest& request) const {
  require(!parts.empty(), "load_fused_linear: expected at least one part, is empty");
  Stack stack;
  for (const FusedPart& part : parts) {
    stack.add(StoredMatrix(checkpoint, layer, part.name, part.n, request.k, part.rows, request.columns, part.transposed));
  }
  return load(*this, stack, request);
}

}  // namespace strata
