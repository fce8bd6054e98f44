// The macro of the formats: marks functions that CUDA code calls too.
#pragma once

#ifdef __CUDACC__
#define STRATA_HOST_DEVICE __host__ __device__
#else
#define STRATA_HOST_DEVICE
#endif
