// The version of these headers, which CMake and pkg-config read from here.
//
// Public names stay until the next major version; a minor version may add names. Neither a minor nor a patch version keeps the ABI, because
// parameter structs grow: compile a program with the headers of the library that it links. New parameter fields have defaults that keep the
// old behaviour. Code with designated initialisers stays correct when fields are added. docs/support.md has the rules.
#pragma once

// MAJOR of MAJOR.MINOR.PATCH.
#define STRATA_VERSION_MAJOR 0
// MINOR of MAJOR.MINOR.PATCH.
#define STRATA_VERSION_MINOR 1
// PATCH of MAJOR.MINOR.PATCH.
#define STRATA_VERSION_PATCH 0
