# Every target sets up what it needs in .venv; a second call installs nothing.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow test-peers test-sanitize test-undefined test-threads test-arm fuzz fuzz-kernels torture flip-bits fuzz-data check format wheel bench bench-short docs clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */\t/' | expand -t 14

# The stamp is written last, so that an interrupted install is done again.
$(READY): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $(READY)

setup: $(READY)  ## the environment, in .venv

demo: $(READY)  ## train a few models on irregular events, compare them, and fit a real table
	$(BIN)/lapse demo
	$(BIN)/lapse example pbc2 -o lapse-demo/pbc2.csv
	$(BIN)/lapse fit lapse-demo/pbc2.csv -o lapse-demo/pbc2 --yes

test: $(READY)  ## the tests, on all cores
	$(BIN)/python -m pytest -n auto

test-slow: $(READY)  ## the tests that take minutes
	$(BIN)/python -m pytest -m slow

# sktime and aeon need older versions of NumPy and pandas than the rest is tested with, hence an environment of their own.
PEERS := .venv-peers
$(PEERS)/.ready: pyproject.toml constraints.txt constraints-peers.txt
	@test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	grep -vE '^(numpy|pandas)==' constraints.txt | cat - constraints-peers.txt > $(PEERS)/constraints.txt
	$(PEERS)/bin/python -m pip install --quiet --constraint $(PEERS)/constraints.txt --editable '.[sktime,aeon]' pytest hypothesis
	@touch $@

test-peers: $(PEERS)/.ready  ## sktime's and aeon's own checks of lapse.sktime and lapse.aeon
	$(PEERS)/bin/python -m pytest tests/test_sktime.py tests/test_aeon.py

# Python itself is not instrumented, so the sanitizer is loaded first, with the C++ library whose exceptions it watches;
# what Python keeps to its end is no leak.
KERNEL_TESTS := tests/test_kernels_fused.py tests/test_kernels_single.py tests/test_kernels_fuzz.py tests/test_scan.py tests/test_streaming.py
SANITIZED = LD_PRELOAD="$$($${CXX:-c++} -print-file-name=lib$(1).so) $$($${CXX:-c++} -print-file-name=libstdc++.so)" OMP_NUM_THREADS=1 \
	LAPSE_CXXFLAGS="-fsanitize=$(2) -fno-sanitize-recover=all -g -O1"

test-sanitize: $(READY)  ## the kernels' tests under AddressSanitizer
	$(call SANITIZED,asan,address) ASAN_OPTIONS=detect_leaks=0 $(BIN)/python -m pytest -m "not slow" $(KERNEL_TESTS)

test-undefined: $(READY)  ## the kernels' tests under UndefinedBehaviorSanitizer
	$(call SANITIZED,ubsan,undefined) UBSAN_OPTIONS=print_stacktrace=1 $(BIN)/python -m pytest -m "not slow" $(KERNEL_TESTS)

test-threads: $(READY)  ## the kernels' tests with several threads under ThreadSanitizer
	$(call SANITIZED,tsan,thread) TSAN_OPTIONS=halt_on_error=1 \
	$(BIN)/python -m pytest -m "not slow" $(KERNEL_TESTS) -k "thread or parity or same_bits or sample"

# One test counts the threads that this process starts, where the emulated library starts its own.
test-arm: $(READY)  ## the kernels' tests on aarch64, in an emulator (needs g++-aarch64-linux-gnu and qemu-user)
	$(BIN)/python -m pytest --emulated $(KERNEL_TESTS) tests/test_kernels_emulated.py tests/test_kernels_operators.py \
	tests/test_scan.py tests/test_streaming.py -k "not does_it_all"

SECONDS ?= 60
HALF = $$((($(SECONDS) + 1) / 2))
fuzz:  ## fuzz-data and fuzz-kernels, each for half of SECONDS=60
	$(MAKE) --no-print-directory fuzz-data SECONDS=$(HALF)
	$(MAKE) --no-print-directory fuzz-kernels SECONDS=$(HALF)

fuzz-kernels: $(READY)  ## random calls by the fused path and the reference, for SECONDS=60
	LAPSE_CXXFLAGS=-DLAPSE_POISON $(BIN)/python tests/fuzz_kernels.py --seconds $(SECONDS)

MINUTES ?= 10
torture: $(READY)  ## kills, full disks, flipped bits: for MINUTES=10; prints tried and lost
	PYTHONPATH=tests $(BIN)/python tests/torture.py --minutes $(MINUTES)

FLIPS ?= 5000
flip-bits: $(READY)  ## FLIPS=5000 flipped bits in stored files; prints how many were silent
	PYTHONPATH=tests $(BIN)/python tests/test_flipped_bits.py $(FLIPS)

fuzz-data: $(READY)  ## random tables and damaged files, for SECONDS=60
	PYTHONPATH=tests $(BIN)/python tests/test_fuzz.py $(SECONDS)

# For another processor: `make wheel PLATFORM=aarch64`, with Debian's cross-compiler (g++-aarch64-linux-gnu).
CROSS = $(if $(PLATFORM),LAPSE_MACHINE=$(PLATFORM) CXX=$(PLATFORM)-linux-gnu-g++)
wheel: $(READY)  ## a wheel with compiled kernels, and an sdist, in dist/
	LAPSE_PREBUILT=1 $(CROSS) $(BIN)/python -m hatchling build

bench: $(READY)  ## speed against peers, as ratios in one run
	$(BIN)/lapse bench

check: $(READY) .venv/.docs-ready  ## format, lint, types, docs, tests with coverage: what CI runs
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(MAKE) --no-print-directory docs
	$(BIN)/python -m pytest -n auto --cov --cov-report=term

format: $(READY)  ## rewrite the sources in the project's format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

.venv/.docs-ready: $(READY)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	@touch $@

bench-short: $(READY)  ## a few lines of the benchmark, and what moved since earlier runs
	$(BIN)/lapse bench --only lstm --only latency --only ragged --repeats 7 --history results/bench.jsonl

docs: .venv/.docs-ready  ## the documentation as a site, in site/; fails on a broken link
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

clean:  ## remove the environment and caches
	rm -rf .venv .venv-peers .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage*
