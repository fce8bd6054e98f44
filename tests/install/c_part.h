// A part of a program in C, which a part in C++ calls.
#ifndef C_PART_H
#define C_PART_H

#if defined(__cplusplus)
extern "C" {
#endif

// Allocates a page of 64 rows of V4 on a device, by the C API. Returns its bytes; -1 on an error.
long long bytes_in_c(const char* device);

#if defined(__cplusplus)
}
#endif

#endif
