# The friendly front door. Everything else is CMake: see CMakePresets.json.
BUILD ?= build
JOBS  ?= $(shell nproc)
# Further options for CMake: CONFIGURE="-DSTRATA_WERROR=ON".
CONFIGURE ?=
MODEL := $(BUILD)/demo-model

.PHONY: all setup build install demo test bench busy-cpu c-api-overhead cuda cuda-all cuda-sanitize compare opencl opencl-test opencl-intel-test opencl-offline lint format format-check words docs lint-all clean sanitize tsan coverage fuzz

all: build

# Installs the distribution's packages that the build needs; does nothing when they are there.
setup:
	@tools/setup build

build: setup
	@cmake --preset release -B $(BUILD) > $(BUILD).configure.log 2>&1 || { cat $(BUILD).configure.log; exit 1; }
	@rm -f $(BUILD).configure.log
	@cmake --build $(BUILD) -j $(JOBS)

# Library, headers, command, find_package(strata) and pkg-config.
PREFIX ?= /usr/local
install: setup
	@cmake --preset release -B $(BUILD) -DSTRATA_BUILD_TESTS=OFF -DSTRATA_BUILD_EXAMPLES=OFF > /dev/null
	@cmake --build $(BUILD) -j $(JOBS)
	@cmake --install $(BUILD) --prefix $(PREFIX)

# A small checkpoint in the official format, prefill and decode of several requests through every layer kind, checked against the
# reference backend.
demo: setup
	@cmake --preset release -B $(BUILD) -DSTRATA_BUILD_TESTS=OFF -DSTRATA_BUILD_EXAMPLES=OFF > /dev/null
	@cmake --build $(BUILD) -j $(JOBS) --target strata_cli
	@$(BUILD)/bin/strata synthesize --preset v4-tiny --out $(MODEL) --overwrite
	@$(BUILD)/bin/strata run --model $(MODEL) --device cpu --requests 5 --prompt-tokens 300 --decode-tokens 16 --check-reference

test: setup
	@cmake --preset release -B $(BUILD) -DSTRATA_BUILD_TESTS=ON -DSTRATA_BUILD_EXAMPLES=ON $(CONFIGURE) > /dev/null
	@cmake --build $(BUILD) -j $(JOBS)
	@ctest --test-dir $(BUILD) --output-on-failure -j $(JOBS)

bench: build
	@$(BUILD)/bin/strata bench

# A decode step on the machine as it is, and with a busy loop on each core.
busy-cpu: build
	@tools/busy-cpu $(BUILD)/bin/strata

# What a call through the C API costs more than the C++ call.
c-api-overhead: setup
	@cmake --preset release -B $(BUILD) -DSTRATA_BUILD_TESTS=ON $(CONFIGURE) > /dev/null
	@cmake --build $(BUILD) -j $(JOBS) --target strata_c_api_overhead
	@$(BUILD)/bin/strata_c_api_overhead

# The same with the CUDA backend, in a folder of its own. Needs nvcc; no GPU to build.
cuda: setup
	@cmake --preset cuda $(CONFIGURE)
	@cmake --build --preset cuda -j $(JOBS)

# The peers that are installed, timed on the same bytes as Strata, as a table: COMPARE="--all --csv FILE" (tools/compare/run --help). Needs an
# NVIDIA GPU and PyTorch with CUDA.
COMPARE ?=
compare: setup
	@cmake --preset cuda -DSTRATA_BUILD_COMPARE=ON $(CONFIGURE) > /dev/null
	@cmake --build --preset cuda -j $(JOBS) --target strata_compare
	@tools/compare/run $(COMPARE)

# Every architecture, warnings are errors: what CI, which builds one architecture, leaves out.
cuda-all: setup
	@cmake --preset cuda -B build-cuda-all -DSTRATA_WERROR=ON
	@cmake --build build-cuda-all -j $(JOBS)

# The OpenCL backend for Intel GPUs, in a folder of its own. Needs clang-15 and llvm-spirv-15; no GPU to build.
opencl: setup
	@tools/setup opencl
	@cmake --preset opencl $(CONFIGURE)
	@cmake --build --preset opencl -j $(JOBS)

# Its tests on opencl:0: PoCL, which runs on the CPU, where no GPU is.
opencl-test: setup
	@tools/setup opencl
	@cmake --preset opencl -DSTRATA_BUILD_EXAMPLES=OFF $(CONFIGURE) > /dev/null
	@cmake --build --preset opencl -j $(JOBS) --target strata_cli strata_tests_opencl
	@STRATA_OPENCL_REQUIRED=1 ctest --test-dir build-opencl --output-on-failure -L '^opencl$$'

# opencl/subgroup and opencl/xmx_emulated on Intel's OpenCL for CPUs, which it installs by pip; half an hour.
opencl-intel-test: opencl
	@tools/opencl-intel build-opencl

# Its kernels compiled for Intel's GPUs by Debian's ocloc: registers, spills, scratch, matrix instructions.
opencl-offline: opencl
	@tools/setup opencl-offline
	@tools/opencl-offline build-opencl

# compute-sanitizer over the cases of every op on the GPU; CUDA_OPS="linear ..." for a part of them. Prints what it leaves out and why.
CUDA_DEVICE ?= cuda:0
CUDA_OPS    ?=
cuda-sanitize: cuda
	@cmake --preset cuda-racecheck
	@cmake --build --preset cuda-racecheck -j $(JOBS) --target strata_cli
	@tools/cuda-sanitize build-cuda/bin/strata build-cuda-racecheck/bin/strata $(CUDA_DEVICE) $(CUDA_OPS)

# The wheel of the Python package, into dist/; with the CUDA backend where nvcc is. Its tests, with torch TORCH=2.10 or the newest.
TORCH ?=
.PHONY: python python-test
python: setup
	@tools/setup python
	@JOBS=$(JOBS) CONFIGURE="$(CONFIGURE)" tools/python-package build
python-test:
	@tools/setup python
	@tools/python-package test $(TORCH)

# ASan + UBSan, and TSan: each in a build folder of its own. SANITIZE_LABELS="unit layers": those tests alone.
SANITIZE_LABELS ?=
empty :=
space := $(empty) $(empty)
sanitize: PRESET := asan-ubsan
tsan: PRESET := tsan
sanitize tsan: setup
	@tools/setup clang
	@cmake --preset $(PRESET) $(CONFIGURE) > /dev/null
	@cmake --build --preset $(PRESET) -j $(JOBS) $(SANITIZE_LABELS:%=--target strata_tests_%)
	@ctest --preset $(PRESET) -j $(JOBS) $(if $(SANITIZE_LABELS),-L '^($(subst $(space),|,$(strip $(SANITIZE_LABELS))))$$')

# Every fuzzer over its corpus, then for FUZZ_SECONDS seconds, in the folder of make sanitize.
FUZZ_SECONDS ?= 60
fuzz: setup
	@tools/setup clang
	@cmake --preset asan-ubsan > /dev/null
	@cmake --build --preset asan-ubsan -j $(JOBS) --target strata_tests_fuzz
	@ctest --preset asan-ubsan -L '^fuzz$$'
	@tools/fuzz build-asan-ubsan $(FUZZ_SECONDS)

coverage: setup
	@cmake --preset coverage
	@cmake --build --preset coverage -j $(JOBS)
	@ctest --preset coverage
	@tools/coverage build-coverage

# clang-format and tools/words over the tree; clang-tidy over the sources that the last 50 commits changed, or differ from BASE. lint-all:
# clang-tidy over all, and with the checks that take longest.
BASE ?= HEAD~50
format:
	@git ls-files '*.h' '*.c' '*.cpp' '*.cu' '*.cuh' | xargs clang-format -i
format-check:
	@tools/setup lint
	@git ls-files '*.h' '*.c' '*.cpp' '*.cu' '*.cuh' | xargs clang-format --dry-run -Werror
words:
	@tools/words
lint lint-all: setup format-check words
	@cmake --preset release -B $(BUILD) > /dev/null
	@cmake --build $(BUILD) --target strata_commit
	@tools/tidy $(BUILD) $(if $(filter lint-all,$@),all,$(BASE))

# The API reference of include/strata as HTML, by Doxygen: build/docs/html/index.html. A public name without a comment, or a reference that
# leads nowhere, is an error.
docs:
	@tools/setup docs
	@rm -rf $(BUILD)/docs
	@mkdir -p $(BUILD)/docs
	@STRATA_DOCS=$(BUILD)/docs STRATA_VERSION=$$(sed -n 's/^#define STRATA_VERSION_[A-Z]* //p' include/strata/version.h | paste -sd.) \
	  doxygen cmake/Doxyfile
	@echo "$(BUILD)/docs/html/index.html"

clean:
	@cmake -E rm -rf $(BUILD) build-asan-ubsan build-tsan build-coverage build-cuda build-cuda-all build-cuda-racecheck build-python build-werror dist
