# make setup | build | test | demo | bench. Nothing is done twice: stamps are as new as what they were made from.

VENV  ?= .venv
PY    := $(VENV)/bin/python
TORCH := 2.13.0

export LLVM_SYS_221_PREFIX ?= /usr/lib/llvm-22
export PYO3_PYTHON := $(abspath $(PY))

# Everything that ends up in the wheel.
SOURCES := $(shell git ls-files -co --exclude-standard '*.rs' '*.toml' 'Cargo.lock' 'ffi/shim/*' 'python/*' 2>/dev/null)
STAMPS  := target/stamps

.PHONY: setup build test test-rust test-python demo bench lint clean
setup: $(STAMPS)/llvm $(STAMPS)/venv
build: $(STAMPS)/installed

$(STAMPS)/llvm:
	@mkdir -p $(@D)
	@test -x $(LLVM_SYS_221_PREFIX)/bin/llvm-config || { \
	  echo "installing LLVM 22 (apt)"; \
	  SUDO=$$(test "$$(id -u)" = 0 || echo sudo); \
	  $$SUDO apt-get update -q && $$SUDO apt-get install -qy --no-install-recommends \
	    llvm-22-dev libpolly-22-dev libzstd-dev zlib1g-dev; }
	@touch $@

# A virtual environment of one's own (VENV=...) only gets what it lacks.
$(STAMPS)/venv: requirements.txt
	@mkdir -p $(@D)
	@test -x $(PY) || python3 -m venv $(VENV)
	$(PY) -m pip install -q --disable-pip-version-check -r requirements.txt
	@touch $@

$(STAMPS)/wheel: $(STAMPS)/llvm $(STAMPS)/venv $(SOURCES)
	rm -rf dist
	$(VENV)/bin/maturin build --release --interpreter $(PY) --out dist
	@touch $@

$(STAMPS)/installed: $(STAMPS)/wheel
	$(PY) -m pip install -q --disable-pip-version-check --no-deps --force-reinstall dist/rsx-*.whl
	@touch $@

test: test-rust test-python

# Without libtorch: everything below ffi/. Nextest where it is installed.
test-rust: $(STAMPS)/llvm
	@if command -v cargo-nextest >/dev/null; then cargo nextest run --no-fail-fast --workspace --exclude rsx-ffi; \
	 else cargo test --workspace --exclude rsx-ffi --lib --bins --tests; fi
	cargo test --workspace --exclude rsx-ffi --doc

test-python: build
	$(PY) -m pytest tests/python

demo: build
	$(PY) examples/train_gpt.py

bench: build
	$(PY) benches/compare.py --peers eager

lint: setup
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings

clean:
	rm -rf target dist
