// MLA ops that run on the reference implementation for now: delete a line here when its implementation lands.
#include "backends/cpu/cpu_ops.h"

namespace strata::cpu {

std::vector<Implementation<MlaRopeKvInsertParams>> mla_rope_kv_insert() { return {}; }
std::vector<Implementation<IndexerKeyInsertParams>> indexer_key_insert() { return {}; }
std::vector<Implementation<DenseAttnDecodeParams>> dense_attn_decode() { return {}; }
std::vector<Implementation<DenseAttnPrefillParams>> dense_attn_prefill() { return {}; }

}  // namespace strata::cpu
