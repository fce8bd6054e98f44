#include "backends/opencl/kv_insert/insert_rows.h"

#include "backends/opencl/kv_insert/call.h"
#include "core/ceil_div.h"

namespace strata::opencl {

void insert_rows(const InsertRows& p, const ExecutionContext& context) {
  const int64_t columns = p.cache.row_dim, rotary = p.cos_sin.present() ? p.cos_sin.shape[1] : 0;
  const int64_t shift = (columns - rotary) % 2 * (rotary > 0 ? 1 : 0), runs = ceil_div(columns + shift, 8), rows = kInsertItems / runs;
  const InsertCall call{.slots = address(p.slots),
                        .first = address(p.first),
                        .second = address(p.second),
                        .positions = address(p.positions),
                        .cos_sin = address(p.cos_sin),
                        .num_slots = p.slots.shape[0],
                        .first_stride = p.first.stride[0],
                        .second_stride = p.second.stride[0],
                        .cos_sin_stride = p.cos_sin.stride[0],
                        .cache = cache_view(p.cache),
                        .split = static_cast<int32_t>(p.second.present() ? p.first.shape[1] : columns),
                        .rotary = static_cast<int32_t>(rotary),
                        .shift = static_cast<int32_t>(shift),
                        .runs = static_cast<int32_t>(runs),
                        .rows = static_cast<int32_t>(rows),
                        .is_ue8m0 = p.is_ue8m0,
                        .is_divided = p.is_divided};
  launch(context, {"kv_insert", Variant::basic, "insert"}, call,
         {.groups = {static_cast<size_t>(ceil_div(call.num_slots, rows)), 1, 1}, .items = {kInsertItems, 1, 1}});
}

}  // namespace strata::opencl
