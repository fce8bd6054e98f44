# The CUDA backend: kernels in smxx/ for every architecture of the list, kernels in sm90/ for Hopper alone.
set(STRATA_CUDA_ARCHITECTURES "80;89-real;90a-real;120-real" CACHE STRING "Architectures of the portable kernels")
if(NOT CMAKE_CUDA_COMPILER)
  find_program(CMAKE_CUDA_COMPILER nvcc HINTS /usr/local/cuda/bin REQUIRED)
endif()
set(CMAKE_CUDA_ARCHITECTURES ${STRATA_CUDA_ARCHITECTURES})
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)

file(GLOB_RECURSE STRATA_CUDA_SMXX CONFIGURE_DEPENDS src/backends/cuda/common/*.cu src/backends/cuda/smxx/*.cu)
file(GLOB_RECURSE STRATA_CUDA_SM90 CONFIGURE_DEPENDS src/backends/cuda/sm90/*.cu)
function(strata_kernels name architectures)
  if(ARGN)
    add_library(${name} OBJECT ${ARGN})
    set_target_properties(${name} PROPERTIES CUDA_ARCHITECTURES "${architectures}" POSITION_INDEPENDENT_CODE ON)
    # CMake 3.25 does not know cuda_std_20 of nvcc 12 and later, hence the option itself.
    # relaxed-constexpr: the formats of src/formats are constexpr functions. -lineinfo costs nothing at run time and names lines in profiles.
    target_compile_options(${name} PRIVATE -std=c++20 --expt-relaxed-constexpr -lineinfo -Xcompiler=-Wall,-Wextra,-Wno-restrict
                                           $<$<BOOL:${STRATA_WERROR}>:-Werror=all-warnings>)
    target_include_directories(${name} PRIVATE include src)
    target_link_libraries(${name} PRIVATE fmt::fmt)
    target_sources(strata PRIVATE $<TARGET_OBJECTS:${name}>)
  endif()
endfunction()
strata_kernels(strata_cuda_smxx "${STRATA_CUDA_ARCHITECTURES}" ${STRATA_CUDA_SMXX})
strata_kernels(strata_cuda_sm90 "90a-real" ${STRATA_CUDA_SM90})
target_link_libraries(strata PRIVATE CUDA::cudart_static CUDA::cublasLt)
