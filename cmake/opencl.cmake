# The OpenCL backend: kernels in C++ for OpenCL, each module compiled to SPIR-V (Intel), to LLVM bitcode (PoCL 3.1) and to PTX (NVIDIA), and
# embedded in the library. Sets STRATA_OPENCL_ABSENT to the reason where it cannot be built.
find_program(STRATA_OPENCL_CLANG NAMES clang-15 clang-16)
find_program(STRATA_LLVM_SPIRV NAMES llvm-spirv-15 llvm-spirv-16)
find_file(STRATA_LIBCLC_PTX nvptx64--nvidiacl.bc PATHS /usr/lib/clc /usr/share/clc)
find_path(STRATA_OPENCL_INCLUDE CL/cl_ext.h)
if(NOT STRATA_OPENCL_CLANG)
  set(STRATA_OPENCL_ABSENT "clang-15 was not found")
elseif(NOT STRATA_LLVM_SPIRV)
  set(STRATA_OPENCL_ABSENT "llvm-spirv-15 was not found")
elseif(NOT STRATA_OPENCL_INCLUDE)
  set(STRATA_OPENCL_ABSENT "CL/cl_ext.h was not found")
endif()
if(STRATA_OPENCL_ABSENT)
  return()
endif()

set(kernels ${CMAKE_CURRENT_SOURCE_DIR}/src/backends/opencl)
set(made ${CMAKE_CURRENT_BINARY_DIR}/opencl)
file(MAKE_DIRECTORY ${made})
# Not optimised here: llvm-spirv 15 does not know all that the optimiser writes, and the device's own compiler optimises. No contraction:
# quantised values are equal to the reference's; products say fma().
set(flags -x cl -cl-std=CLC++2021 -cl-fp32-correctly-rounded-divide-sqrt -ffp-contract=off -Wall -Wextra -Werror
          -I${kernels}/std -I${CMAKE_CURRENT_SOURCE_DIR}/src -I${CMAKE_CURRENT_SOURCE_DIR}/include)
set(subgroup_flags -Xclang -cl-ext=+cl_khr_subgroups,+cl_khr_subgroup_shuffle,+cl_intel_subgroups)

# What clang does not know of the target.
set(ptx_flags -Xclang -cl-ext=+__opencl_c_generic_address_space,+__opencl_c_program_scope_global_variables)

# PoCL 3.1 keeps the local memory of work-groups apart by the name KERNEL.VARIABLE, which C++ mangles.
set(unmangle "s/@_ZZ[0-9]+([A-Za-z_0-9]+)E([0-9]+)([A-Za-z_0-9]+)/@\\1.\\3/g")

set(STRATA_OPENCL_EMBEDDED)  # files
set(embeddings)
set(entries)
# Adds a command that makes FILE of the module's source.
macro(strata_opencl_make file)
  add_custom_command(OUTPUT ${file} COMMAND ${ARGN} DEPENDS ${source} DEPFILE ${file}.d VERBATIM
                     COMMENT "Compiling ${module}.clcpp to ${file}")
  list(APPEND STRATA_OPENCL_EMBEDDED ${file})
endmacro()
macro(strata_opencl_embed file)
  string(MAKE_C_IDENTIFIER "${file}" symbol)
  string(REGEX REPLACE "^.*_opencl_" "strata_opencl_" symbol ${symbol})
  string(APPEND embeddings "STRATA_EMBED(${symbol}, \"${file}\")\n")
  set(span "{${symbol}, ${symbol}_end}")
endmacro()
file(GLOB sources CONFIGURE_DEPENDS ${kernels}/*/*.clcpp)
foreach(source ${sources})
  get_filename_component(module ${source} NAME_WE)
  file(STRINGS ${source} variants REGEX "^// Variants: ")
  string(REGEX REPLACE "^// Variants: " "" variants "${variants}")
  if(NOT variants)
    message(FATAL_ERROR "${source}: expected a line '// Variants: basic, ...'")
  endif()
  string(REPLACE ", " ";" variants "${variants}")
  foreach(variant ${variants})
    if(variant STREQUAL "basic")
      set(kinds "basic;basic16")
    else()
      set(kinds "${variant}8;${variant}16")
    endif()
    foreach(kind ${kinds})
      set(stem ${made}/${module}.${kind})
      set(own)
      if(kind STREQUAL "basic16")
        set(own -Xclang -cl-ext=+cl_intel_required_subgroup_size "-D__kernel=__kernel __attribute__((intel_reqd_sub_group_size(16)))")
      elseif(NOT kind STREQUAL "basic")
        string(REGEX REPLACE "^.*[^0-9]" "" size ${kind})
        set(own ${subgroup_flags} -DSTRATA_SUBGROUP=${size})
      endif()
      if(kind MATCHES "^xmx")
        list(APPEND own -DSTRATA_XMX)
      endif()
      if(kind MATCHES "emulated")
        list(APPEND own -DSTRATA_XMX_EMULATED)
      endif()
      set(compile ${STRATA_OPENCL_CLANG} ${flags} ${own} -MD -MF ${stem}.spv.d -MT ${stem}.spv ${source})
      strata_opencl_make(${stem}.spv ${compile} -target spir64 -O1 -Xclang -disable-llvm-passes -emit-llvm -c -o ${stem}.bc
                         COMMAND ${STRATA_LLVM_SPIRV} ${stem}.bc -o ${stem}.spv)
      strata_opencl_embed(${stem}.spv)
      set(forms "${span}")
      if(kind STREQUAL "basic")
        add_custom_command(OUTPUT ${stem}.pocl.bc DEPENDS ${stem}.spv VERBATIM
                           COMMAND ${STRATA_OPENCL_CLANG} -x ir -target spir64 -O0 -Xclang -disable-llvm-passes -emit-llvm -S ${stem}.bc -o ${stem}.ll
                           COMMAND sed -E -i ${unmangle} ${stem}.ll
                           COMMAND ${STRATA_OPENCL_CLANG} -x ir -target spir64 -O0 -Xclang -disable-llvm-passes -emit-llvm -c ${stem}.ll -o ${stem}.pocl.bc)
        list(APPEND STRATA_OPENCL_EMBEDDED ${stem}.pocl.bc)
        strata_opencl_embed(${stem}.pocl.bc)
        string(APPEND forms ", ${span}")
        if(STRATA_LIBCLC_PTX)
          set(compile ${STRATA_OPENCL_CLANG} ${flags} -MD -MF ${stem}.ptx.d -MT ${stem}.ptx ${source})
          strata_opencl_make(${stem}.ptx ${compile} ${ptx_flags} -target nvptx64--nvidiacl -march=sm_80 -O3 -mllvm -inline-threshold=100000 -Xclang -mlink-builtin-bitcode
                             -Xclang ${STRATA_LIBCLC_PTX} -S -o ${stem}.ptx)
          strata_opencl_embed(${stem}.ptx)
          string(APPEND forms ", ${span}")
        else()
          string(APPEND forms ", {}")
        endif()
      else()
        string(APPEND forms ", {}, {}")
      endif()
      string(APPEND entries "    {\"${module}\", Variant::${kind}, ${forms}},\n")
    endforeach()
  endforeach()
endforeach()
file(CONFIGURE OUTPUT opencl/modules.cpp @ONLY CONTENT [[// Generated by cmake/opencl.cmake.
#include "backends/opencl/runtime/modules.h"

// The bytes of a file as an array, and its end.
#define STRATA_EMBED(symbol, file)                                                                                                  \
  extern "C" const unsigned char symbol[], symbol##_end[];                                                                          \
  __asm__(".pushsection .rodata\n.balign 16\n.hidden " #symbol "\n.hidden " #symbol "_end\n.globl " #symbol "\n.globl " #symbol     \
          "_end\n" #symbol ":\n.incbin \"" file "\"\n" #symbol "_end:\n.byte 0\n.popsection\n");
@embeddings@
namespace strata::opencl {

std::span<const Module> modules() {
  static const Module all[] = {
@entries@  };
  return all;
}

}  // namespace strata::opencl
]])
set_source_files_properties(${CMAKE_CURRENT_BINARY_DIR}/opencl/modules.cpp PROPERTIES OBJECT_DEPENDS "${STRATA_OPENCL_EMBEDDED}")
