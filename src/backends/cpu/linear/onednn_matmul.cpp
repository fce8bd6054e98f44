#include "backends/cpu/linear/onednn_matmul.h"

#ifdef STRATA_WITH_ONEDNN
#include <algorithm>
#include <bit>

#include "backends/cpu/linear/onednn_alone.h"
#include "core/check.h"

namespace strata::cpu {
namespace {

using dnnl::memory;
using DataType = memory::data_type;

memory::desc row_major(int64_t rows, int64_t columns, DataType type) {
  return {memory::dims{rows, columns}, type, memory::dims{columns, 1}};
}
// W [n, k] row-major, seen as the [k, n] operand.
memory::desc transposed(int64_t n, int64_t k) { return {memory::dims{k, n}, DataType::bf16, memory::dims{1, k}}; }

template <class F>
auto call(F&& f) {
  try {
    return f();
  } catch (const dnnl::error& error) {
    fail(ErrorCode::device_failure, "oneDNN: {}", error.message);
  }
}

}  // namespace

struct OneDnnMatmul::Primitive {
  dnnl::matmul::primitive_desc desc;
  dnnl::matmul matmul;
};

std::shared_ptr<OneDnnMatmul> OneDnnMatmul::shared() {
  static const std::shared_ptr<OneDnnMatmul> instance = std::make_shared<OneDnnMatmul>();
  return instance;
}

// The layout that the product of 512 rows prefers; the products of other row counts are told to use it too.
memory::desc OneDnnMatmul::packed_desc(int64_t n, int64_t k) const {
  const std::lock_guard lock(mutex_);
  const auto found = packed_.find({n, k});
  if (found != packed_.end()) return found->second;
  constexpr int64_t kRows = 512;
  const memory::desc any(memory::dims{k, n}, DataType::bf16, memory::format_tag::any);
  const dnnl::matmul::primitive_desc desc({row_major(kRows, k, DataType::bf16), any, row_major(kRows, n, DataType::bf16)}, engine_);
  return packed_.emplace(std::pair{n, k}, desc.weights_desc()).first->second;
}

dnnl::matmul::primitive_desc OneDnnMatmul::describe(const Shape& s) const {
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return {{row_major(s.m, s.k, DataType::bf16), s.row_major ? transposed(s.n, s.k) : packed_desc(s.n, s.k),
           row_major(s.m, s.n, s.f32_out ? DataType::f32 : DataType::bf16)},
          attr,
          engine_};
}

std::shared_ptr<const OneDnnMatmul::Primitive> OneDnnMatmul::primitive(const Shape& shape) const {
  {
    const std::lock_guard lock(mutex_);
    const auto found = primitives_.find(shape);
    if (found != primitives_.end()) return found->second;
  }
  auto made = std::make_shared<Primitive>();
  made->desc = describe(shape);
  made->matmul = dnnl::matmul(made->desc);
  const std::lock_guard lock(mutex_);
  // Prompts of every length would fill the memory; oneDNN keeps its own last primitives, so that making one again is cheap.
  constexpr size_t kMost = 1024;
  if (primitives_.size() >= kMost) primitives_.clear();
  primitives_[shape] = made;
  return made;
}

size_t OneDnnMatmul::packed_bytes(int64_t n, int64_t k) const {
  return call([&] { return packed_desc(n, k).get_size(); });
}

void OneDnnMatmul::pack(int64_t n, int64_t k, const void* rows, void* dst) const {
  const OneDnnAlone alone;
  call([&] {
    const memory from(transposed(n, k), engine_, const_cast<void*>(rows));
    memory to(packed_desc(n, k), engine_, dst);
    dnnl::stream stream(engine_);
    dnnl::reorder(from, to).execute(stream, {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}});
    stream.wait();
  });
}

size_t OneDnnMatmul::scratch_bound(const Shape& shape) const {
  if (shape.m <= 0) return 0;
  Shape top = shape;
  top.m = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(shape.m)));
  {
    const std::lock_guard lock(mutex_);
    const auto found = bounds_.find(top);
    if (found != bounds_.end()) return found->second;
  }
  // oneDNN's scratch is no monotone function of m. The maximum over the powers of two up to m's is; run() splits the rare m that needs
  // more.
  const OneDnnAlone alone;
  size_t bound = 0;
  call([&] {
    for (Shape s = top; s.m >= 1; s.m /= 2) bound = std::max(bound, describe(s).scratchpad_desc().get_size());
  });
  const std::lock_guard lock(mutex_);
  bounds_[top] = bound;
  return bound;
}

void OneDnnMatmul::run(const Shape& shape, const void* x, const void* weight, void* y, Workspace scratch) const {
  if (shape.m <= 0 || shape.n <= 0) return;
  const OneDnnAlone alone;
  const auto p = call([&] { return primitive(shape); });
  if (static_cast<int64_t>(p->desc.scratchpad_desc().get_size()) > scratch.bytes) {
    Shape head = shape, tail = shape;
    head.m = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(shape.m - 1)));
    tail.m = shape.m - head.m;
    run(head, x, weight, y, scratch);
    const int64_t out_bytes = shape.f32_out ? 4 : 2;
    run(tail, static_cast<const std::byte*>(x) + head.m * shape.k * 2, weight, static_cast<std::byte*>(y) + head.m * shape.n * out_bytes,
        scratch);
    return;
  }
  call([&] {
    dnnl::stream stream(engine_);
    p->matmul.execute(stream, {{DNNL_ARG_SRC, memory(p->desc.src_desc(), engine_, const_cast<void*>(x))},
                               {DNNL_ARG_WEIGHTS, memory(p->desc.weights_desc(), engine_, const_cast<void*>(weight))},
                               {DNNL_ARG_DST, memory(p->desc.dst_desc(), engine_, y)},
                               {DNNL_ARG_SCRATCHPAD, memory(p->desc.scratchpad_desc(), engine_, scratch.data)}});
    stream.wait();
  });
}

}  // namespace strata::cpu
#endif
