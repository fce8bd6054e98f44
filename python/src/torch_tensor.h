// torch's tensors, devices and memory, by the functions of its stable C ABI.
#pragma once

#include <torch/csrc/stable/c/shim.h>

#include <string>
#include <string_view>

#include "arguments.h"
#include "strata/device.h"
#include "strata/error.h"
#include "strata/op.h"

namespace strata::torch_ops {

// Throws invalid_argument: "linear: x must be ..., is ...".
[[noreturn]] void throw_invalid(std::string_view op, ArgumentName name, const std::string& what);
// Throws device_failure where a function of torch failed.
void check_torch(AOTITorchError error, const char* function);

// A view of the tensor's memory. Throws invalid_argument for dtypes, devices and ranks that no op takes.
TensorView view_of(AtenTensorHandle tensor, std::string_view op, ArgumentName name);
DeviceId device_id_of(AtenTensorHandle tensor, std::string_view op, ArgumentName name);
void* memory_of(AtenTensorHandle tensor);
// Throws invalid_argument unless the cache's pages, with rows_of_slot rows in each slot, are within the tensor's storage, and page_stride
// is the tensor's own where it has more than one dimension.
void check_pages(AtenTensorHandle tensor, const PagedCache& cache, int64_t rows_of_slot, std::string_view op, ArgumentName name);

// The device, opened at its first use with the settings of the environment and kept until the process ends.
Device& device_of(DeviceId id);
// torch's current stream of the device.
Stream current_stream(DeviceId id);

// Workspace from torch's allocator, in a captured graph from the graph's pool. Freed in the order of the current stream.
class TorchWorkspace {
 public:
  TorchWorkspace(DeviceId device, int64_t bytes);
  TorchWorkspace(const TorchWorkspace&) = delete;
  TorchWorkspace& operator=(const TorchWorkspace&) = delete;
  ~TorchWorkspace();

  Workspace get() const { return workspace_; }

 private:
  AtenTensorHandle tensor_ = nullptr;
  Workspace workspace_{};
};
// The part of a caller's memory that begins at a multiple of 256 bytes.
Workspace aligned(const TensorView& memory);
// Bytes of a tensor whose aligned part has `bytes` bytes wherever it begins.
constexpr int64_t unaligned_bytes(int64_t bytes) { return bytes == 0 ? 0 : bytes + 255; }

}  // namespace strata::torch_ops
