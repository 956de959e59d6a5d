# Verbs over CMake. `make` builds; `make help` lists the verbs.
# With nvcc the CUDA backend is built too; it needs no GPU to be built.
NVCC   := $(firstword $(shell command -v nvcc) $(wildcard /usr/local/cuda/bin/nvcc))
PRESET ?= $(if $(NVCC),cuda,cpu)
export CUDACXX ?= $(NVCC)
PREFIX ?= /usr/local
CLIPS  ?=
RUN    ?= runs/study
SECONDS ?= 120
PYTHON ?= python3
BUILD  := build/$(PRESET)

.PHONY: build deps demo test test-gpu fuzz sanitize-gpu bench study docs install format clean help

build: deps $(BUILD)/build.ninja
	@cmake --build $(BUILD)

$(BUILD)/build.ninja: CMakePresets.json | deps
	@cmake --preset $(PRESET) --log-level=NOTICE

deps:
	@tools/deps.sh

demo: build
	@tools/demo.sh $(BUILD)/dsv "$(CLIPS)"

test: build
	@ctest --preset $(PRESET)

test-gpu: build
	@ctest --preset $(PRESET) -L gpu

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

study: build
	@$(PYTHON) bench/study/choices.py --build $(BUILD) --clips "$(CLIPS)" --run "$(RUN)" $(STUDY)

docs: build
	@$(BUILD)/dsv help options --markdown >docs/configuration.md

install: build
	@cmake --install $(BUILD) --prefix "$(PREFIX)"

format:
	@tools/deps.sh clang-format
	@git clang-format --force --extensions c,h,cu,cuh

clean:
	@rm -rf build

help:
	@echo 'make                   builds the program, $(BUILD)/dsv'
	@echo 'make demo [CLIPS=DIR]  trains a small model on real clips, or on yours'
	@echo 'make test              runs every test'
	@echo 'make test-gpu          runs those that want a GPU'
	@echo 'make fuzz [SECONDS=120] feeds every reader of files with mutated inputs (clang, libFuzzer)'
	@echo 'make sanitize-gpu      runs the GPU kernels under compute-sanitizer'
	@echo 'make bench             measures attention and a training step'
	@echo 'make study CLIPS=DIR   measures the choices of sparse attention (bench/study/README.md)'
	@echo 'make docs              writes docs/configuration.md from the option table'
	@echo 'make install [PREFIX=/usr/local]'
	@echo 'make deps              installs the Debian packages that are missing'
	@echo 'make format            lays out the lines changed since the last commit (clang-format)'
	@echo 'make clean             removes build/'
	@echo 'PRESET=cpu|debug|asan|tsan|clang|cuda with any of them; $(PRESET) unless said: cuda where nvcc is'
