// Which dimensions of a vector are rotated, and how they are paired. V4 specification 5.4, MLA specification 6.
#ifndef STRATA_C_OPS_ROPE_SLICE_H
#define STRATA_C_OPS_ROPE_SLICE_H

#include <stdint.h>

// The two elements of the rotary slice that form pair i.
typedef int32_t strata_rope_pairing;
enum {
  STRATA_ROPE_INTERLEAVED = 0,  // (2i, 2i+1): V4, MLA main path
  STRATA_ROPE_HALF_SPLIT = 1    // (i, i + R/2): the V3.2 indexer
};

// The rotary slice.
typedef int32_t strata_rope_slice;
enum {
  STRATA_ROPE_LAST = 0,  // the last R dimensions
  STRATA_ROPE_FIRST = 1  // the first R dimensions
};

#endif
