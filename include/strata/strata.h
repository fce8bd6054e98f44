// The C API: everything. C99, and C++ from C++11 on. docs/c-api.md is its guide.
#ifndef STRATA_STRATA_H
#define STRATA_STRATA_H

#include "strata/c/api.h"
#include "strata/c/device.h"
#include "strata/c/op.h"
#include "strata/c/tensor.h"

#endif
