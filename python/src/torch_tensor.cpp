#include "torch_tensor.h"

#include <dlfcn.h>

#include <array>
#include <atomic>
#include <mutex>
#include <utility>
#include <vector>

#include "strata/op_set.h"

namespace strata::torch_ops {
namespace {

DType dtype_of(AtenTensorHandle tensor, std::string_view op, ArgumentName name) {
  // Boolean tensors are flags, which ops read as bytes.
  static const std::array<std::pair<int32_t, DType>, 11> known{{{aoti_torch_dtype_bfloat16(), DType::bf16},
                                                                {aoti_torch_dtype_float32(), DType::f32},
                                                                {aoti_torch_dtype_int32(), DType::i32},
                                                                {aoti_torch_dtype_int64(), DType::i64},
                                                                {aoti_torch_dtype_float8_e4m3fn(), DType::e4m3},
                                                                {aoti_torch_dtype_uint8(), DType::u8},
                                                                {aoti_torch_dtype_bool(), DType::u8},
                                                                {aoti_torch_dtype_float16(), DType::f16},
                                                                {aoti_torch_dtype_float64(), DType::f64},
                                                                {aoti_torch_dtype_int16(), DType::i16},
                                                                {aoti_torch_dtype_int8(), DType::i8}}};
  int32_t code = 0;
  check_torch(aoti_torch_get_dtype(tensor, &code), "aoti_torch_get_dtype");
  for (const auto& [torch_code, dtype] : known) {
    if (torch_code == code) return dtype;
  }
  throw_invalid(op, name, "must have a dtype that ops compute with, has torch's dtype number " + std::to_string(code));
}

int64_t item_bytes(AtenTensorHandle tensor) {
  int32_t code = 0;
  check_torch(aoti_torch_get_dtype(tensor, &code), "aoti_torch_get_dtype");
  return static_cast<int64_t>(aoti_torch_dtype_element_size(code));
}

}  // namespace

void throw_invalid(std::string_view op, ArgumentName name, const std::string& what) {
  throw Error(ErrorCode::invalid_argument, std::string(op) + ": " + name.text() + ' ' + what);
}

void check_torch(AOTITorchError error, const char* function) {
  if (error != AOTI_TORCH_SUCCESS) throw Error(ErrorCode::device_failure, std::string(function) + " of torch failed");
}

DeviceId device_id_of(AtenTensorHandle tensor, std::string_view op, ArgumentName name) {
  static const int32_t cpu = aoti_torch_device_type_cpu(), cuda = aoti_torch_device_type_cuda();
  int32_t type = 0, index = 0;
  check_torch(aoti_torch_get_device_type(tensor, &type), "aoti_torch_get_device_type");
  if (type == cpu) return {};
  if (type != cuda) throw_invalid(op, name, "must be on a CPU or a CUDA device, is on torch's device type " + std::to_string(type));
  check_torch(aoti_torch_get_device_index(tensor, &index), "aoti_torch_get_device_index");
  return {DeviceKind::cuda, index};
}

void* memory_of(AtenTensorHandle tensor) {
  void* data = nullptr;
  check_torch(aoti_torch_get_data_ptr(tensor, &data), "aoti_torch_get_data_ptr");
  return data;
}

TensorView view_of(AtenTensorHandle tensor, std::string_view op, ArgumentName name) {
  int64_t rank = 0;
  check_torch(aoti_torch_get_dim(tensor, &rank), "aoti_torch_get_dim");
  if (rank < 1 || rank > kMaxRank) throw_invalid(op, name, "must have 1 to 4 dimensions, has " + std::to_string(rank));
  int64_t *sizes = nullptr, *strides = nullptr;
  check_torch(aoti_torch_get_sizes(tensor, &sizes), "aoti_torch_get_sizes");
  check_torch(aoti_torch_get_strides(tensor, &strides), "aoti_torch_get_strides");
  TensorView view{.data = memory_of(tensor), .dtype = dtype_of(tensor, op, name), .device = device_id_of(tensor, op, name)};
  view.rank = static_cast<int32_t>(rank);
  for (size_t i = 0; i < static_cast<size_t>(rank); ++i) {
    view.shape[i] = sizes[i];
    view.stride[i] = strides[i];
  }
  return view;
}

void check_pages(AtenTensorHandle tensor, const PagedCache& cache, int64_t rows_of_slot, std::string_view op, ArgumentName name) {
  // What is not a cache at all the op refuses.
  if (cache.num_pages <= 0 || cache.page_size <= 0 || cache.row_dim <= 0 || cache.page_stride < 0) return;
  int64_t rank = 0, storage = 0, offset = 0;
  int64_t *sizes = nullptr, *strides = nullptr;
  check_torch(aoti_torch_get_dim(tensor, &rank), "aoti_torch_get_dim");
  check_torch(aoti_torch_get_sizes(tensor, &sizes), "aoti_torch_get_sizes");
  check_torch(aoti_torch_get_strides(tensor, &strides), "aoti_torch_get_strides");
  check_torch(aoti_torch_get_storage_size(tensor, &storage), "aoti_torch_get_storage_size");
  check_torch(aoti_torch_get_storage_offset(tensor, &offset), "aoti_torch_get_storage_offset");
  const int64_t item = item_bytes(tensor);
  int64_t dense = 1;
  for (int64_t i = rank - 1; i >= (rank > 1 ? 1 : 0); --i) {
    if (sizes[i] > 1 && strides[i] != dense) throw_invalid(op, name, "must have contiguous pages, has gaps within them");
    dense *= sizes[i];
  }
  if (rank > 1 && sizes[0] > 1 && strides[0] * item != cache.page_stride) {
    throw_invalid(op, name,
                  "must have pages at distances of page_stride, " + std::to_string(cache.page_stride) + " bytes; its first dimension has " +
                      std::to_string(strides[0] * item));
  }
  const int64_t given = storage - offset * item;
  int64_t payload = 0, needed = 0;
  const bool is_huge = __builtin_mul_overflow(row_bytes(cache.format, cache.row_dim), rows_of_slot, &payload) ||
                       __builtin_mul_overflow(payload, int64_t{cache.page_size}, &payload) ||
                       __builtin_mul_overflow(cache.num_pages - 1, cache.page_stride, &needed) ||
                       __builtin_add_overflow(needed, payload, &needed);
  if (is_huge || needed > given) {
    throw_invalid(op, name,
                  "must have the memory of num_pages pages, " + (is_huge ? std::string("more than 2^63") : std::to_string(needed)) +
                      " bytes, has " + std::to_string(given));
  }
}

Device& device_of(DeviceId id) {
  constexpr size_t kMost = 64;
  static std::array<std::array<std::atomic<Device*>, kMost>, 2> opened{};
  const auto kind = static_cast<size_t>(id.kind), index = static_cast<size_t>(id.index);
  if (kind >= opened.size() || index >= kMost)
    throw Error(ErrorCode::unsupported, to_string(id) + " is not a device of torch's that ops run on");
  if (Device* device = opened[kind][index].load(std::memory_order_acquire)) return *device;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (Device* device = opened[kind][index].load(std::memory_order_acquire)) return *device;
  const Config config = Config::from_environment();
  check_forced(default_ops(), config);
  // Never destroyed: torch's runtime may be gone when static objects are.
  auto* owner = new std::shared_ptr<Device>(open_device(id, config));
  opened[kind][index].store(owner->get(), std::memory_order_release);
  return **owner;
}

Stream current_stream(DeviceId id) {
  if (id.kind != DeviceKind::cuda) return {};
  using Function = AOTITorchError (*)(int32_t, void**);
  // Only torches with CUDA have the function, in a library that they have loaded: nothing of CUDA is needed to load this one.
  static const auto function = []() -> Function {
    void* library = dlopen("libtorch_cuda.so", RTLD_NOLOAD | RTLD_NOW);
    return library == nullptr ? nullptr : reinterpret_cast<Function>(dlsym(library, "aoti_torch_get_current_cuda_stream"));
  }();
  if (function == nullptr) throw Error(ErrorCode::unsupported, "torch has a CUDA tensor, but no libtorch_cuda.so with its streams");
  Stream stream;
  check_torch(function(id.index, &stream.handle), "aoti_torch_get_current_cuda_stream");
  return stream;
}

Workspace aligned(const TensorView& memory) {
  const auto address = reinterpret_cast<uintptr_t>(memory.data);
  const auto skipped = static_cast<int64_t>((256 - address % 256) % 256);
  if (memory.bytes() <= skipped) return {};
  return {static_cast<char*>(memory.data) + skipped, memory.bytes() - skipped};
}

TorchWorkspace::TorchWorkspace(DeviceId device, int64_t bytes) {
  if (bytes == 0) return;
  const int64_t size = unaligned_bytes(bytes), stride = 1;
  const int32_t type = device.kind == DeviceKind::cuda ? aoti_torch_device_type_cuda() : aoti_torch_device_type_cpu();
  if (aoti_torch_empty_strided(1, &size, &stride, aoti_torch_dtype_uint8(), type, device.index, &tensor_) != AOTI_TORCH_SUCCESS) {
    throw Error(ErrorCode::out_of_memory, "torch has no workspace of " + std::to_string(size) + " bytes on " + to_string(device));
  }
  workspace_ = aligned(TensorView::contiguous(memory_of(tensor_), DType::u8, device, {size}));
}

TorchWorkspace::~TorchWorkspace() {
  if (tensor_ != nullptr) aoti_torch_delete_tensor_object(tensor_);
}

}  // namespace strata::torch_ops
