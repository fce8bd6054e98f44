// How kernels access memory. A kernel's argument is a struct with addresses as integers: OpenCL allows no pointers in structs, and Intel's
// Arc GPUs would access pointer arguments by 32-bit offsets.
#pragma once

#include <cstdint>

#include "strata/dtype.h"

namespace strata::opencl {

template <class T>
inline __global T* at(uint64_t address) {
  return (__global T*)address;
}

// Shifts pack values into words, because the compilers would keep a union in memory.

// The eight bf16 values of words.
inline void unpack8(uint4 w, float* values) {
  values[0] = as_float(w.x << 16), values[1] = as_float(w.x & 0xFFFF0000u);
  values[2] = as_float(w.y << 16), values[3] = as_float(w.y & 0xFFFF0000u);
  values[4] = as_float(w.z << 16), values[5] = as_float(w.z & 0xFFFF0000u);
  values[6] = as_float(w.w << 16), values[7] = as_float(w.w & 0xFFFF0000u);
}

// Loads eight bf16 values. is_aligned: they begin at a multiple of 16 bytes.
inline void load8(const __global uint16_t* from, bool is_aligned, float* values) {
  if (is_aligned) return unpack8(*(const __global uint4*)from, values);
#pragma unroll
  for (int i = 0; i < 8; ++i) values[i] = as_float((uint32_t)from[i] << 16);
}

inline uint32_t pack2(const uint16_t* bits) { return bits[0] | (uint32_t)bits[1] << 16; }

// Stores eight bf16 values, two per word.
inline void store8(__global uint16_t* to, bool is_aligned, uint4 words) {
  if (is_aligned) {
    *(__global uint4*)to = words;
    return;
  }
  const uint32_t w[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
  for (int i = 0; i < 8; ++i) to[i] = (uint16_t)(w[i / 2] >> i % 2 * 16);
}
inline void store8(__global uint16_t* to, bool is_aligned, const uint16_t* bits) {
  store8(to, is_aligned, (uint4)(pack2(bits), pack2(bits + 2), pack2(bits + 4), pack2(bits + 6)));
}
// Stores eight bytes. is_aligned: at a multiple of 8 bytes.
inline void store8(__global uint8_t* to, bool is_aligned, uint2 words) {
  if (is_aligned) {
    *(__global uint2*)to = words;
    return;
  }
  const uint32_t w[2] = {words.x, words.y};
#pragma unroll
  for (int i = 0; i < 8; ++i) to[i] = (uint8_t)(w[i / 4] >> i % 4 * 8);
}

// Stores values [first, last) of the eight.
inline void store_some(__global uint16_t* to, int first, int last, uint4 words) {
  const uint32_t w[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (i >= first && i < last) to[i] = (uint16_t)(w[i / 2] >> i % 2 * 16);
  }
}
inline void store_some(__global uint8_t* to, int first, int last, uint2 words) {
  const uint32_t w[2] = {words.x, words.y};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (i >= first && i < last) to[i] = (uint8_t)(w[i / 4] >> i % 4 * 8);
  }
}

// Loads and stores of words at any address; in units of 16, 8 or 4 bytes if the address is aligned to them.
inline uint32_t load_word(const __global uint8_t* from) {
  if (((uint64_t)from & 3) == 0) return *(const __global uint32_t*)from;
  return from[0] | (uint32_t)from[1] << 8 | (uint32_t)from[2] << 16 | (uint32_t)from[3] << 24;
}
inline uint2 load_words2(const __global uint8_t* from) {
  if (((uint64_t)from & 7) == 0) return *(const __global uint2*)from;
  return (uint2)(load_word(from), load_word(from + 4));
}
inline uint4 load_words4(const __global uint8_t* from) {
  if (((uint64_t)from & 15) == 0) return *(const __global uint4*)from;
  return (uint4)(load_words2(from), load_words2(from + 8));
}
inline void store_words(__global uint8_t* to, uint32_t word) {
  if (((uint64_t)to & 3) == 0) {
    *(__global uint32_t*)to = word;
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) to[i] = (uint8_t)(word >> i * 8);
}
inline void store_words(__global uint8_t* to, uint2 words) {
  if (((uint64_t)to & 7) == 0) {
    *(__global uint2*)to = words;
  } else {
    store_words(to, words.x), store_words(to + 4, words.y);
  }
}
inline void store_words(__global uint8_t* to, uint4 words) {
  if (((uint64_t)to & 15) == 0) {
    *(__global uint4*)to = words;
  } else {
    store_words(to, words.xy), store_words(to + 8, words.zw);
  }
}

}  // namespace strata::opencl
