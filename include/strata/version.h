// The version of these headers; CMake and pkg-config have it from here.
//
// Until 1.0 a new minor version may change the API, and a new patch version does not. Neither keeps the ABI: structs of parameters grow, so
// a program is compiled with the headers of the library that it is linked with. Fields of parameters have defaults that mean "as before";
// with designated initialisers code stays right when some are added.
#pragma once

#define STRATA_VERSION_MAJOR 0
#define STRATA_VERSION_MINOR 1
#define STRATA_VERSION_PATCH 0
