// The instruction sets of the AVX-512 files, enabled only for the functions between BEGIN and END. The library is compiled for the
// baseline, and the linker must never keep an AVX-512 copy of an inline function. So include everything else before BEGIN, and put what
// follows it into unnamed namespaces.
#pragma once

// One string literal each: _Pragma of clang 14 does not join adjacent ones.
// clang-format off
#if defined(__clang__)
#define STRATA_AVX512_BEGIN _Pragma("clang attribute push(__attribute__((target(\"avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512bf16,amx-tile,amx-bf16,gfni,fma,avx2\"))), apply_to = function)")
#define STRATA_AVX512_END _Pragma("clang attribute pop")
#else
// g++ 12 warns of _mm512_undefined_*() inside its own intrinsics, hence the diagnostics.
#define STRATA_AVX512_BEGIN                                 \
  _Pragma("GCC diagnostic push")                            \
  _Pragma("GCC diagnostic ignored \"-Wuninitialized\"")       \
  _Pragma("GCC diagnostic ignored \"-Wmaybe-uninitialized\"") \
  _Pragma("GCC push_options")                               \
  _Pragma("GCC target(\"avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512bf16,amx-tile,amx-bf16,gfni,fma,avx2\")")
#define STRATA_AVX512_END _Pragma("GCC pop_options") _Pragma("GCC diagnostic pop")
#endif
// clang-format on
