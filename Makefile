# mmTLS: build, demo, tests, benchmarks. `make` lists the targets.

SHELL := /bin/sh
PREFIX ?= /usr/local
DESTDIR ?=
CARGO ?= cargo
FUZZ_SECONDS ?= 10
# Testbed tests start servers and move traffic: more at a time than this only disturbs them.
RUST_TEST_THREADS ?= 2
export RUST_TEST_THREADS

# Rust installed by `scripts/setup` is found without a new login.
export PATH := $(PATH):$(HOME)/.cargo/bin:/usr/sbin:/sbin

TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)
STEP := scripts/step
XTASK := scripts/with-testbed $(TARGET_DIR)/release/xtask

.PHONY: help setup build demo test bench interop install clean

help: ## List the targets
	@echo "mmTLS"
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo "Variables: PREFIX ($(PREFIX)), DESTDIR, FUZZ_SECONDS ($(FUZZ_SECONDS)), RUST_TEST_THREADS ($(RUST_TEST_THREADS))"

setup: ## Install what tests and demo need (Debian, Ubuntu); says what first
	@$(STEP) setup scripts/setup test

build: ## Build the release binaries
	@$(STEP) build $(CARGO) build --release --locked

demo: ## Show mmTLS between a real client and a real server
	@$(STEP) setup scripts/setup demo
	@$(STEP) build $(CARGO) build --release --locked --workspace
	@$(STEP) demo $(XTASK) demo

test: setup ## Run everything that must hold: format, clippy, tests, arrows, fuzzing, TLS stacks, demo
	@$(STEP) format $(CARGO) fmt --all --check
	@$(STEP) clippy $(CARGO) clippy --workspace --all-targets --release --locked -- -D warnings
	@$(STEP) build $(CARGO) build --workspace --release --locked
	@$(STEP) "build tests" $(CARGO) test --workspace --release --locked --no-run
	@$(STEP) tests scripts/with-testbed $(CARGO) test --workspace --release --locked --offline
	@$(STEP) arrows $(TARGET_DIR)/release/xtask arrows
	@$(STEP) fuzz $(TARGET_DIR)/release/xtask fuzz --seconds $(FUZZ_SECONDS)
	@$(STEP) interop $(XTASK) interop --quick
	@$(STEP) corpus $(TARGET_DIR)/release/xtask corpus --networks 1 --tampered 2000
	@$(STEP) demo $(XTASK) demo
	@echo
	@echo "all tests passed"

bench: ## Measure against nginx as split proxy, the kernel bridge and direct
	@$(STEP) setup scripts/setup bench
	@$(STEP) build $(CARGO) build --release --locked --workspace
	@$(STEP) bench $(XTASK) bench

# With the installed browser and Java about ten minutes; writes docs/interoperability.md.
interop: ## Let every TLS stack talk to every other, and check that mmTLS follows
	@$(STEP) setup scripts/setup interop
	@$(STEP) build $(CARGO) build --release --locked --workspace
	@$(STEP) "build endpoints" $(TARGET_DIR)/release/xtask interop --build
	@$(STEP) interop $(XTASK) interop
	@$(STEP) corpus $(TARGET_DIR)/release/xtask corpus --tshark

# Built first only when missing: `sudo make install` need not find cargo.
install: ## Install mmtls and libmmtls_preload.so under PREFIX (and DESTDIR)
	@test -f $(TARGET_DIR)/release/mmtls -a -f $(TARGET_DIR)/release/libmmtls_preload.so || $(MAKE) build
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/lib
	install -m 755 $(TARGET_DIR)/release/mmtls $(DESTDIR)$(PREFIX)/bin/mmtls
	install -m 755 $(TARGET_DIR)/release/libmmtls_preload.so $(DESTDIR)$(PREFIX)/lib/libmmtls_preload.so

clean: ## Remove what was built
	$(CARGO) clean
