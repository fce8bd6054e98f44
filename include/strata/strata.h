// The C API: everything. C99, and C++ from C++11 on. docs/c-api.md is its guide.
// Comments name sections of docs/specification: "V4 6.5" is section 6.5 of deepseek_v4_attention.md, "MLA 9" section 9 of
// multi_head_latent_attention.md.
#ifndef STRATA_STRATA_H
#define STRATA_STRATA_H

#include "strata/c/api.h"
#include "strata/c/batch.h"
#include "strata/c/cache.h"
#include "strata/c/checkpoint.h"
#include "strata/c/communicator.h"
#include "strata/c/device.h"
#include "strata/c/layer.h"
#include "strata/c/model_config.h"
#include "strata/c/op.h"
#include "strata/c/ops/activation_format.h"
#include "strata/c/ops/compressor.h"
#include "strata/c/ops/dense_attention.h"
#include "strata/c/ops/indexer.h"
#include "strata/c/ops/indices.h"
#include "strata/c/ops/kv_insert.h"
#include "strata/c/ops/linear.h"
#include "strata/c/ops/mla.h"
#include "strata/c/ops/norm.h"
#include "strata/c/ops/rope.h"
#include "strata/c/ops/rope_slice.h"
#include "strata/c/ops/sparse_attention.h"
#include "strata/c/tensor.h"

#endif
