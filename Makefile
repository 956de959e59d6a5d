# Shortcuts for CMake commands. `make` builds; `make help` lists the targets.
# The CUDA backend is built if nvcc is installed; no GPU is needed to build.
NVCC   := $(firstword $(shell command -v nvcc) $(wildcard /usr/local/cuda/bin/nvcc))
PRESET ?= $(if $(NVCC),cuda,cpu)
export CUDACXX ?= $(NVCC)
PREFIX ?= /usr/local
CLIPS  ?=
MODEL  ?=
PROMPT ?= A cat walks on the grass, realistic
export PROMPT
RUN    ?= runs/study
SECONDS ?= 120
PYTHON ?= python3
PYTHON_TESTS ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/dsv/python-tests
BUILD  := build/$(PRESET)
# The preset tsan runs only the tests of threads and ranks.
TARGETS := $(if $(filter tsan,$(PRESET)),--target threads_tests)

.PHONY: build deps demo test test-gpu test-python python-environment fuzz sanitize-gpu bench study \
	study-programs docs api-docs install wheel wheel-cuda deb format tidy clean help

build: deps $(BUILD)/build.ninja
	@cmake --build $(BUILD) $(TARGETS)

$(BUILD)/build.ninja: CMakePresets.json | deps
	@cmake --preset $(PRESET) --log-level=NOTICE

deps:
	@tools/deps.sh

ifeq ($(MODEL),)
demo: build
	@tools/demo.sh $(BUILD)/dsv "$(CLIPS)"
else
demo: build
	@tools/demo_published.sh $(BUILD)/dsv "$(MODEL)" "$(CLIPS)"
endif

test: build
	@ctest --preset $(PRESET)

test-gpu: build
	@ctest --preset $(PRESET) -L gpu

# An environment with PyTorch from PyPI, which later calls find again.
python-environment:
	@tools/deps.sh python3-venv
	@$(PYTHON) tests/python/make_environment.py "$(PYTHON_TESTS)"

# The tests of python/ in this environment.
test-python: build python-environment
	@cmake --preset $(PRESET) --log-level=NOTICE -DDSV_PYTHON="$(PYTHON_TESTS)/bin/python"
	@ctest --preset $(PRESET) -R '^python_' -LE gpu

fuzz:
	@tools/deps.sh clang libclang-rt-14-dev libomp-dev
	@cmake --preset fuzz --log-level=NOTICE
	@cmake --build --preset fuzz
	@tests/fuzz/run.sh build/fuzz/tests/fuzz $(SECONDS)

sanitize-gpu: build
	@tests/cuda/sanitize.sh $(BUILD)

bench: build
	@$(BUILD)/dsv bench attention
	@$(BUILD)/dsv bench step --config configs/demo.yaml

# Compiles the programs of study/ and, with CUDA, of lab/. Later builds of PRESET compile these programs too.
study-programs: deps
	@cmake --preset $(PRESET) --log-level=NOTICE -DDSV_STUDY=ON
	@cmake --build $(BUILD)

study: study-programs
	@$(PYTHON) study/choices.py --build $(BUILD) --clips "$(CLIPS)" --run "$(RUN)" $(STUDY)

docs: build
	@$(BUILD)/dsv help options --markdown >docs/configuration.md

# docs/Doxyfile reads the version from the environment.
api-docs:
	@tools/deps.sh doxygen
	@mkdir -p build
	@DSV_VERSION=$$(sed -n 's/^project(dsv VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt) doxygen docs/Doxyfile
	@echo 'build/api-docs/html/index.html'

install: build
	@cmake --install $(BUILD) --prefix "$(PREFIX)"

# A wheel for CPUs that contains the libraries it needs, and is then tried in a clean environment.
wheel: deps
	@tools/deps.sh nasm libdav1d-dev zlib1g-dev dpkg-dev python3-venv
	@tools/make_wheel.sh $(PYTHON)
	@tests/python/try_wheel.sh $(PYTHON) dist/dsv-*.whl

# The CUDA backend as a second wheel beside the one for CPUs.
wheel-cuda: deps
	@tools/deps.sh python3-venv
	@tools/make_wheel.sh $(PYTHON) cuda

deb: deps
	@tools/deps.sh dpkg-dev
	@cmake --preset cpu -B build/deb -DDSV_TESTS=OFF --log-level=NOTICE
	@cmake --build build/deb
	@cd build/deb && cpack
	@rm -rf dist/_CPack_Packages

format:
	@tools/deps.sh clang-format
	@tools/check_format . --write

# clang-tidy takes the compiler flags from the configured preset clang; nothing has to be built.
tidy: deps
	@tools/deps.sh clang clang-tidy libomp-dev
	@cmake --preset clang --log-level=NOTICE
	@tools/tidy_commands build/clang build/clang/tidy
	@run-clang-tidy-14 -quiet -p build/clang/tidy '^$(CURDIR)/(src|cli|study)/.*\.c$$' \
		>build/clang/tidy.log 2>&1 || \
		{ grep -E -A3 '(error|warning): ' build/clang/tidy.log; exit 1; }
	@echo 'clang-tidy found no errors or warnings'

clean:
	@rm -rf build

help:
	@echo 'make                   builds the program, $(BUILD)/dsv'
	@echo 'make demo [CLIPS=DIR]  trains a small model on downloaded clips, or on your folder DIR'
	@echo 'make demo MODEL=FOLDER [PROMPT=TEXT] [CLIPS=DIR]  samples a published Wan model, trains a LoRA'
	@echo 'make test              runs every test'
	@echo 'make test-gpu          runs the tests that need a GPU'
	@echo 'make test-python       runs the tests of the Python package with PyTorch from PyPI (530 MB, kept)'
	@echo 'make python-environment  installs what test-python needs, and nothing else'
	@echo 'make fuzz [SECONDS=120] fuzzes every reader of files and network data (clang, libFuzzer)'
	@echo 'make sanitize-gpu      runs the GPU kernels under compute-sanitizer'
	@echo 'make bench             measures attention and a training step'
	@echo 'make study CLIPS=DIR   measures the options of sparse attention (study/README.md)'
	@echo 'make study-programs    compiles the programs of study/ and, with CUDA, of lab/'
	@echo 'make docs              writes docs/configuration.md from the option table'
	@echo 'make api-docs          writes the reference of the public headers to build/api-docs (Doxygen)'
	@echo 'make install [PREFIX=/usr/local]'
	@echo 'make wheel             makes a Python wheel in dist/ that needs no other library'
	@echo 'make wheel-cuda        makes a second wheel in dist/ with the CUDA backend'
	@echo 'make deb               makes a Debian package in dist/'
	@echo 'make deps              installs the Debian packages that are missing'
	@echo 'make format            formats every C and CUDA file (clang-format 14, .clang-format)'
	@echo 'make tidy              runs clang-tidy over the C sources (.clang-tidy)'
	@echo 'make clean             removes build/'
	@echo 'All targets accept PRESET=cpu|debug|asan|tsan|clang|cuda; default: cuda if nvcc is found, else cpu'
