#include "backends/opencl/runtime/program.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <span>
#include <string_view>
#include <vector>

#include "backends/opencl/runtime/check.h"
#include "core/check.h"
#include "core/fnv1a.h"

namespace strata::opencl {
namespace {

// Quantisers divide by scales. By default, OpenCL allows division an error of 2.5 units in the last place.
constexpr const char* kOptions = "-cl-fp32-correctly-rounded-divide-sqrt";
// By default, a thread of Intel's GPUs has 128 registers. That is too few for the register tiles of attention in fp32 and, except on Data
// Center GPU Max, for tiles of 32 x 64 on the matrix engine.
constexpr const char* kManyRegisters = "-cl-fp32-correctly-rounded-divide-sqrt -cl-intel-256-GRF-per-thread";
// Lets the compiler choose the number of registers per kernel.
constexpr const char* kRegistersAsNeeded = "-cl-fp32-correctly-rounded-divide-sqrt -cl-intel-enable-auto-large-GRF-mode";

bool is_matrix(Variant variant) { return variant == Variant::xmx8 || variant == Variant::xmx16; }

bool is_attention(const Module& module) {
  const std::string_view name = module.name;
  return name.find("_attn_decode") != name.npos || name.find("_attn_prefill") != name.npos;
}

// tools/opencl-offline has the same options.
const char* options_of(const Module& module, const Capabilities& c) {
  const bool is_intel_gpu = c.is_gpu && !c.subgroup_sizes.empty();
  if (!is_intel_gpu) return kOptions;
  if (is_matrix(module.variant)) return c.name.find("Data Center GPU Max") != std::string::npos ? kOptions : kManyRegisters;
  if (module.variant != Variant::basic && module.variant != Variant::basic16) return kOptions;
  return is_attention(module) ? kManyRegisters : kRegistersAsNeeded;
}

std::string_view text_of(std::span<const unsigned char> bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

std::filesystem::path cache_file(const std::string& folder, const Capabilities& c, const Module& module,
                                 std::span<const unsigned char> code, const std::string& options) {
  uint64_t key = fnv1a(text_of(code));
  for (const std::string& text : {c.name, c.version, c.driver, options}) key = fnv1a({text.c_str(), text.size() + 1}, key);
  return std::filesystem::path(folder) / fmt::format("{}-{}-{:016x}.bin", module.name, to_string(module.variant), key);
}

// An entry of the cache: this header, then the binary. Drivers may crash on a binary that is cut or damaged.
struct EntryHeader {
  uint64_t bytes, checksum;  // of the binary
};
EntryHeader header_of(const std::vector<unsigned char>& binary) { return {binary.size(), fnv1a(text_of(binary))}; }

// The binary of an entry; empty if there is none, or if it is not as it was written.
std::vector<unsigned char> read_entry(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return {};
  const uintmax_t bytes = std::filesystem::file_size(path, error);
  if (error || bytes <= sizeof(EntryHeader)) return {};
  std::ifstream file(path, std::ios::binary);
  EntryHeader header{};
  if (!file.read(reinterpret_cast<char*>(&header), sizeof header) || header.bytes != bytes - sizeof header) return {};
  std::vector<unsigned char> binary(header.bytes);
  if (!file.read(reinterpret_cast<char*>(binary.data()), static_cast<std::streamsize>(binary.size()))) return {};
  return header_of(binary).checksum == header.checksum ? binary : std::vector<unsigned char>();
}

// Writes to another name and renames, so that no reader finds an incomplete file.
void write_entry(const std::filesystem::path& path, const std::vector<unsigned char>& binary) {
  std::error_code ignored;
  std::filesystem::create_directories(path.parent_path(), ignored);
  std::filesystem::path scratch = path;
  scratch += fmt::format(".{}", getpid());
  const EntryHeader header = header_of(binary);
  std::ofstream file(scratch, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&header), sizeof header);
  file.write(reinterpret_cast<const char*>(binary.data()), static_cast<std::streamsize>(binary.size()));
  file.close();
  if (file) std::filesystem::rename(scratch, path, ignored);
  if (!file || ignored) std::filesystem::remove(scratch, ignored);
}

cl_program from_binary(cl_context context, cl_device_id device, std::span<const unsigned char> binary, cl_int& error) {
  const unsigned char* data = binary.data();
  const size_t bytes = binary.size();
  return api().clCreateProgramWithBinary(context, 1, &device, &bytes, &data, nullptr, &error);
}

std::string build_log(cl_program program, cl_device_id device) {
  size_t bytes = 0;
  if (api().clGetProgramBuildInfo(program, device, CL_PROGRAM_BUILD_LOG, 0, nullptr, &bytes) != CL_SUCCESS) return "no log";
  std::string log(bytes, '\0');
  if (api().clGetProgramBuildInfo(program, device, CL_PROGRAM_BUILD_LOG, bytes, log.data(), nullptr) != CL_SUCCESS) return "no log";
  while (!log.empty() && (log.back() == '\0' || log.back() == '\n')) log.pop_back();
  constexpr size_t kMost = 2000;
  return log.size() > kMost ? log.substr(0, kMost) + "..." : log;
}

// A cached program, built; null if there is none that builds.
cl_program kept_program(cl_context context, cl_device_id device, const std::filesystem::path& path) {
  const std::vector<unsigned char> bytes = read_entry(path);
  if (bytes.empty()) return nullptr;
  cl_int error = CL_SUCCESS;
  const cl_program program = from_binary(context, device, bytes, error);
  if (program == nullptr) return nullptr;
  if (error == CL_SUCCESS && api().clBuildProgram(program, 1, &device, "", nullptr, nullptr) == CL_SUCCESS) return program;
  api().clReleaseProgram(program);
  return nullptr;
}

void keep_program(cl_program program, const std::filesystem::path& path) {
  size_t bytes = 0;
  if (api().clGetProgramInfo(program, CL_PROGRAM_BINARY_SIZES, sizeof bytes, &bytes, nullptr) != CL_SUCCESS || bytes == 0) return;
  std::vector<unsigned char> binary(bytes);
  unsigned char* data = binary.data();
  if (api().clGetProgramInfo(program, CL_PROGRAM_BINARIES, sizeof data, &data, nullptr) == CL_SUCCESS) write_entry(path, binary);
}

}  // namespace

cl_program build_program(cl_context context, cl_device_id device, const Capabilities& c, const Module& module,
                         const std::string& cache_folder) {
  const std::span<const unsigned char> code = c.form == ModuleForm::spirv  ? module.spirv
                                              : c.form == ModuleForm::ptx  ? module.ptx
                                              : c.form == ModuleForm::none ? std::span<const unsigned char>{}
                                                                           : module.bitcode;
  const std::string what = fmt::format("the module {} ({})", module.name, to_string(module.variant));
  if (code.empty()) fail(ErrorCode::unsupported, "OpenCL: {} has no form that {} takes", what, c.name);
  const std::string options = options_of(module, c);
  const bool is_cached = !cache_folder.empty();
  const std::filesystem::path path = is_cached ? cache_file(cache_folder, c, module, code, options) : std::filesystem::path();
  if (is_cached) {
    if (const cl_program program = kept_program(context, device, path)) return program;
  }
  cl_int error = CL_SUCCESS;
  const bool is_spirv = c.form == ModuleForm::spirv;
  const cl_program program =
      is_spirv ? api().clCreateProgramWithIL(context, code.data(), code.size(), &error) : from_binary(context, device, code, error);
  check(error, fmt::format("{} of {}", is_spirv ? "clCreateProgramWithIL" : "clCreateProgramWithBinary", what));
  error = api().clBuildProgram(program, 1, &device, options.c_str(), nullptr, nullptr);
  if (error != CL_SUCCESS) {
    const std::string log = build_log(program, device);
    api().clReleaseProgram(program);
    fail(ErrorCode::device_failure, "OpenCL: clBuildProgram of {} for {} failed: {} ({}): {}", what, c.name, error_name(error), error, log);
  }
  if (is_cached) keep_program(program, path);
  return program;
}

void release_program(cl_program program) { api().clReleaseProgram(program); }

}  // namespace strata::opencl
