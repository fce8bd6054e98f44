// oneDNN's bf16 matmul over plain pointers, on the calling thread alone. Primitives are made once per shape and cached; packed weights have
// one layout for every number of rows; the caller provides scratch memory.
#pragma once

#ifdef STRATA_WITH_ONEDNN
#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <oneapi/dnnl/dnnl.hpp>
#include <utility>

#include "strata/op.h"

namespace strata::cpu {

class OneDnnMatmul {
 public:
  struct Shape {
    int64_t m = 0, n = 0, k = 0;
    bool f32_out = false;
    bool row_major = false;  // weights [n, k] as they are, not packed
    // The check takes the comparisons with 0 that `= default` makes for null pointers.
    friend auto operator<=>(const Shape&, const Shape&) = default;  // NOLINT(modernize-use-nullptr)
  };

  // The one object of the process: layers of equal shapes share primitives.
  static std::shared_ptr<OneDnnMatmul> shared();

  size_t packed_bytes(int64_t n, int64_t k) const;
  // rows: bf16 [n, k].
  void pack(int64_t n, int64_t k, const void* rows, void* dst) const;

  // Scratch that suffices for every product of at most shape.m rows; it does not shrink when m grows.
  size_t scratch_bound(const Shape& shape) const;
  // y [m, n] = x [m, k] * W^T, x bf16 and y dense.
  void run(const Shape& shape, const void* x, const void* weight, void* y, Workspace scratch) const;

 private:
  struct Primitive;
  std::shared_ptr<const Primitive> primitive(const Shape& shape) const;
  dnnl::memory::desc packed_desc(int64_t n, int64_t k) const;
  dnnl::matmul::primitive_desc describe(const Shape& shape) const;

  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  mutable std::mutex mutex_;
  mutable std::map<std::pair<int64_t, int64_t>, dnnl::memory::desc> packed_;  // never dropped: packed weights depend on it
  mutable std::map<Shape, std::shared_ptr<const Primitive>> primitives_;
  mutable std::map<Shape, size_t> bounds_;
};

}  // namespace strata::cpu
#endif
