# mmTLS: build, demo, tests, benchmarks. `make` lists the targets.

SHELL := /bin/sh
PREFIX ?= /usr/local
DESTDIR ?=
CARGO ?= cargo
# Seconds for each fuzz target; without it each runs a fixed number of inputs.
FUZZ_SECONDS ?=
# What random choices start from. Addresses and hash tables are random, too: two runs differ a little. To look for more: cargo xtask fuzz --long --seconds 600.
FUZZ_SEED ?= 1
# As for fuzzing; another one, or `make test PROPTEST_RNG_SEED=`, looks elsewhere.
PROPTEST_RNG_SEED ?= 1
EVADE_SECONDS ?= 30
# Testbed tests start servers and move traffic, and wait for both: twice as many at a time as there are processors.
RUST_TEST_THREADS ?= 4
export RUST_TEST_THREADS
ifneq ($(PROPTEST_RNG_SEED),)
export PROPTEST_RNG_SEED
endif

# Rust installed by `scripts/setup` is found without a new login.
export PATH := $(PATH):$(HOME)/.cargo/bin:/usr/sbin:/sbin

VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
PLACE = $(DESTDIR)$(PREFIX)
TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)
# The directory whose programs `make install` takes: release, or debug for those that tests use.
PROFILE ?= release
BUILT = $(TARGET_DIR)/$(PROFILE)
MAN = $(TARGET_DIR)/man
STEP := scripts/step
# Crates in which no two files import each other, directly or in a ring.
WITHOUT_CIRCLES := mmtls mmtls-agent mmtls-capi mmtls-endpoint mmtls-engine mmtls-inspect mmtls-key-server mmtls-keylog \
	mmtls-keyshare mmtls-hyperscan mmtls-middlebox mmtls-packet-io mmtls-record mmtls-sender mmtls-share mmtls-tls
XTASK := scripts/with-testbed $(TARGET_DIR)/release/xtask
# In `make test` everything is compiled once, without link-time optimisation, and what needs only
# processors runs beside what waits.
TEST_XTASK := $(TARGET_DIR)/debug/xtask
TEST_XTASK_LIVE := scripts/with-testbed $(TEST_XTASK)

.PHONY: help setup build demo test checks live gates hyperscan bench interop evade soak soak-quick openssl openssl-test private-tag install install-share man deb deb-test clean

help: ## List the targets
	@echo "mmTLS"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo "Variables: PREFIX ($(PREFIX)), DESTDIR, FUZZ_SECONDS, RUST_TEST_THREADS ($(RUST_TEST_THREADS)), FIG, QUICK, RESUME (bench)"

setup: ## Install what tests and demo need (Debian, Ubuntu); says what first
	@$(STEP) setup scripts/setup test

build: ## Build the release binaries
	@$(STEP) build $(CARGO) build --release --locked

demo: ## Show mmTLS between a real client and a real server
	@$(STEP) setup scripts/setup demo
	@$(STEP) build $(CARGO) build --release --locked
	@$(STEP) demo $(XTASK) demo

# The build has the features of tests, and programs and libraries besides: tests build nothing. That
# the shipped profile builds, with its link-time optimisation, the smallest library shows.
test: setup ## Run everything that must hold: format, clippy, tests, dependencies, fuzzing, TLS stacks, attacks, demo
	@$(STEP) format $(CARGO) fmt --all --check
	@$(STEP) build $(CARGO) build --workspace --all-targets --locked
	@scripts/beside "$(MAKE) --no-print-directory checks" $(MAKE) --no-print-directory live
	@echo
	@echo "all tests passed"

# What is compiled and computed. The first ones leave cargo's lock to the tests, which start then.
checks:
	@$(STEP) dependencies scripts/check-dependencies
	@$(STEP) tree $(TEST_XTASK) tree
	@$(STEP) "import circles" scripts/check-import-circles $(WITHOUT_CIRCLES)
	@$(STEP) instructions $(TEST_XTASK) instructions
	@$(STEP) clippy $(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	@$(STEP) features scripts/check-features
	@RUSTDOCFLAGS="-D warnings" $(STEP) documentation $(CARGO) doc --quiet --workspace --no-deps --locked
	@$(STEP) fuzz $(TEST_XTASK) fuzz $(if $(FUZZ_SECONDS),--seconds $(FUZZ_SECONDS)) --seed $(FUZZ_SEED)
	@$(STEP) "release profile" $(CARGO) build --release --locked -p mmtls-preload

# What waits: for servers, clients, and clocks. Interop and evade leave half of the processors' time unused each.
live:
	@$(STEP) tests scripts/with-testbed $(CARGO) test --workspace --locked --offline
	@scripts/beside "$(STEP) evade $(TEST_XTASK_LIVE) evade --seconds $(EVADE_SECONDS)" \
		$(STEP) interop $(TEST_XTASK_LIVE) interop --quick
	@$(STEP) corpus $(TEST_XTASK) corpus --networks 1 --tampered 2000
	@$(STEP) demo $(TEST_XTASK_LIVE) demo

gates: ## Run what needs other toolchains, which rustup brings: the oldest Rust, Miri
	@$(STEP) toolchains scripts/check-toolchains

# As root: it installs the library. `make build` and `make test` know nothing of it.
hyperscan: ## Build with Hyperscan as the search for rules' patterns, and test that nothing else changes
	@$(STEP) setup scripts/setup hyperscan
	@$(STEP) tests $(CARGO) test --locked -p mmtls-hyperscan -p mmtls-inspect \
		--features mmtls-hyperscan/library,mmtls-inspect/hyperscan
	@$(STEP) build $(CARGO) build --release --locked -p mmtls --features hyperscan

# FIG=10 (or 10,11, or 'Table 1') measures these figures only, QUICK=1 just enough to see that it works, RESUME=1 what the latest file of this commit
# lacks. The page is made of the file that was written, of what failed, too.
bench: ## Measure against nginx as split proxy and the kernel bridge, and make out/report.html
	@$(STEP) setup scripts/setup bench
	@$(STEP) build $(CARGO) build --release --locked
	@$(STEP) bench $(XTASK) bench $(if $(FIG),--fig '$(FIG)') $(if $(QUICK),--quick) $(if $(RESUME),--resume) --report out/report.html

# With the installed browser and Java about ten minutes; writes docs/interoperability.md and the CSV files beside it.
interop: ## Let every TLS stack talk to every other, and check that mmTLS follows
	@$(STEP) setup scripts/setup interop
	@$(STEP) build $(CARGO) build --release --locked
	@$(STEP) "build endpoints" $(TARGET_DIR)/release/xtask interop --build
	@$(STEP) interop $(XTASK) interop
	@$(STEP) corpus $(TARGET_DIR)/release/xtask corpus --tshark

# Named attacks, slow ones too, 100,000 generated ones, 10,000 honest connections: most of an hour.
evade: ## Attack the inspection with everything there is, against every TLS stack
	@$(STEP) setup scripts/setup interop
	@$(STEP) build $(CARGO) build --release --locked
	@$(STEP) evade $(XTASK) evade --slow --cases 100000 --honest 10000 --table out/evade.md
	@$(STEP) "evade, held frames" $(XTASK) evade --hold 2000
	@$(STEP) "evade, restarted" $(XTASK) evade --restart
	@$(STEP) "evade, just started" $(XTASK) evade --grace 86400 --cases 10000 --table out/evade-grace.md

# An hour and a few minutes, the last half hour without kills; seconds between reloads and kills, loss: cargo xtask soak --help.
soak: ## Run for an hour at load over links that lose and reorder, with reloads and kills; look for cuts and leaks
	@$(STEP) setup scripts/setup test
	@$(STEP) build $(CARGO) build --release --locked
	@$(STEP) soak $(XTASK) soak

# As built for tests; lives are too short to judge memory.
soak-quick: ## The same in three minutes, with two kills
	@$(STEP) build $(CARGO) build --workspace --locked
	@$(STEP) soak $(TEST_XTASK_LIVE) soak --minutes 3 --reload-seconds 15 --kill-seconds 60

openssl: ## Build OpenSSL with the private tag into target/openssl (minutes, once)
	@$(STEP) openssl openssl/build $(TARGET_DIR)/openssl

# Another release of the same series, since the package that is built has no tests (openssl/README.md).
openssl-test: ## Run OpenSSL's own TLS tests with the private tag (minutes; needs Debian's archive)
	@$(STEP) "openssl test" openssl/test $(TARGET_DIR)/openssl-test

private-tag: openssl ## Test the private tag in OpenSSL, with itself, rustls and other stacks
	@$(STEP) setup scripts/setup test
	@$(STEP) build $(CARGO) build --release --locked
	@MMTLS_REQUIRE_OPENSSL=1 $(STEP) tests scripts/with-testbed $(CARGO) test --release --locked \
		-p mmtls-testkit -p mmtls-endpoint -p mmtls -p mmtls-middlebox private_tag
	@MMTLS_REQUIRE_OPENSSL=1 $(STEP) "1 GB each way" scripts/with-testbed $(CARGO) test --release --locked \
		-p mmtls-endpoint -p mmtls 1_gb_each_way_with -- --ignored
	@$(STEP) "build endpoints" $(TARGET_DIR)/release/xtask interop --private-tag --build
	@$(STEP) interop $(XTASK) interop --private-tag

# Built first only when missing: `sudo make install` need not find cargo.
install: install-share ## Install programs, libraries, header, mmtls.pc, man pages and completion under PREFIX (and DESTDIR)
	@test -f $(BUILT)/mmtls -a -f $(BUILT)/libmmtls_preload.so -a -f $(BUILT)/libmmtls_capi.so || $(MAKE) build
	install -d $(PLACE)/bin $(PLACE)/lib/pkgconfig $(PLACE)/include
	install -m 755 $(BUILT)/mmtls $(PLACE)/bin/mmtls
	install -m 755 $(BUILT)/libmmtls_preload.so $(PLACE)/lib/libmmtls_preload.so
	install -m 755 $(BUILT)/libmmtls_capi.so $(PLACE)/lib/libmmtls.so.$(VERSION)
	ln -sf libmmtls.so.$(VERSION) $(PLACE)/lib/libmmtls.so.0
	ln -sf libmmtls.so.0 $(PLACE)/lib/libmmtls.so
	install -m 644 $(BUILT)/libmmtls_capi.a $(PLACE)/lib/libmmtls.a
	install -m 644 crates/mmtls-capi/include/mmtls.h $(PLACE)/include/mmtls.h
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@VERSION@|$(VERSION)|' crates/mmtls-capi/mmtls.pc.in \
		> $(PLACE)/lib/pkgconfig/mmtls.pc
	@test $(MAN)/mmtls.1 -nt $(BUILT)/mmtls || $(MAKE) man
	install -d $(PLACE)/share/man/man1 $(PLACE)/share/bash-completion/completions
	install -d $(PLACE)/share/zsh/site-functions $(PLACE)/share/fish/vendor_completions.d
	install -m 644 $(MAN)/*.1 $(PLACE)/share/man/man1
	install -m 644 $(MAN)/mmtls.bash $(PLACE)/share/bash-completion/completions/mmtls
	install -m 644 $(MAN)/_mmtls $(PLACE)/share/zsh/site-functions/_mmtls
	install -m 644 $(MAN)/mmtls.fish $(PLACE)/share/fish/vendor_completions.d/mmtls.fish

install-share: ## Install libmmtls-share alone, with which programs share their keys: libraries, header, mmtls-share.pc
	@test -f $(BUILT)/libmmtls_share.so || $(CARGO) build --release --locked -p mmtls-share
	install -d $(PLACE)/lib/pkgconfig $(PLACE)/include
	install -m 755 $(BUILT)/libmmtls_share.so $(PLACE)/lib/libmmtls-share.so.$(VERSION)
	ln -sf libmmtls-share.so.$(VERSION) $(PLACE)/lib/libmmtls-share.so.0
	ln -sf libmmtls-share.so.0 $(PLACE)/lib/libmmtls-share.so
	install -m 644 $(BUILT)/libmmtls_share.a $(PLACE)/lib/libmmtls-share.a
	install -m 644 crates/mmtls-share/include/mmtls_share.h $(PLACE)/include/mmtls_share.h
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@VERSION@|$(VERSION)|' crates/mmtls-share/mmtls-share.pc.in \
		> $(PLACE)/lib/pkgconfig/mmtls-share.pc

man: ## Write man pages and shell completion into target/man
	@if test -x $(BUILT)/xtask; then $(BUILT)/xtask man $(MAN); else $(CARGO) run --quiet --locked -p xtask -- man $(MAN); fi

deb: ## Make Debian packages in target/deb: mmtls, mmtls-agent, libmmtls0, libmmtls-share0, libmmtls-dev
	@test -f $(BUILT)/mmtls -a -f $(BUILT)/libmmtls_preload.so -a -f $(BUILT)/libmmtls_capi.so || $(MAKE) build
	@test $(MAN)/mmtls.1 -nt $(BUILT)/mmtls || $(MAKE) man
	scripts/deb $(BUILT) $(MAN) $(TARGET_DIR)/deb

# As root; it brings debootstrap's Debian, unless ROOT names one.
deb-test: build deb ## Install the packages in a clean Debian, run the monitor there, remove them without a trace
	scripts/test-packages $(TARGET_DIR)/deb $(ROOT)

clean: ## Remove what was built
	$(CARGO) clean
