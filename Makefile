# `make help` lists the targets.
SHELL := /bin/bash
.DEFAULT_GOAL := help
# Cargo uses all cores by itself.
.NOTPARALLEL:
.PHONY: help build wasm playground test-playground run cluster test test-clients test-examples test-leases
.PHONY: test-languages compatibility soak memcheck fuzz bench bench-limiters
.PHONY: check-instructions figures lint docs audit msrv check check-rest install uninstall dist dist-arm64 musl dist-musl
.PHONY: check-dist check-dist-musl check-packages clean release-check image setup can-build setup-build setup-server free-ports

REDIS_SERVER ?= $(notdir $(firstword $(shell command -v redis-server valkey-server) redis-server))
TARGET := $(or $(CARGO_TARGET_DIR),$(CURDIR)/target)
MODULE := $(TARGET)/release/libredis_rl.so
# Debian's folder for modules. Its service units let the server execute files in /usr/lib, but not in /usr/local.
PREFIX ?= /usr
MODULEDIR ?= $(PREFIX)/lib/redis/modules
export REDIS_SERVER

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "  settings: REDIS_SERVER=path of the server to run and test, PORT=6379 for run, PORT=7000 for"
	@echo "    cluster, SECONDS=60 for soak and fuzz,"
	@echo "    BENCH_SERVERS=path:path, BENCH_ONLY=instructions and REDIS_CELL=path for bench, see docs/benchmarks.md,"
	@echo "    DESTDIR, PREFIX and MODULEDIR for install"

build: can-build ## Build the module: target/release/libredis_rl.so
	@[[ -e $(MODULE) ]] || echo "building the module: a minute or two the first time" >&2
	cargo build --release --locked

WASM_TARGET := wasm32-unknown-unknown
WASM := $(TARGET)/redis_rl.wasm
# The packages and the page that carry it.
WASM_COPIES := $(addsuffix /redis_rl.wasm,clients/node clients/python/src/redis_rl docs/playground)
wasm: ## Build the limiters in memory as WebAssembly: target/redis_rl.wasm, and where packages pack it
	@tools/install-missing wasm
	cargo build --quiet --locked --profile wasm --package redis-rl-wasm --target $(WASM_TARGET)
	@install -m 644 $(TARGET)/$(WASM_TARGET)/wasm/redis_rl_wasm.wasm $(WASM)
	@(($$(stat --format %s $(WASM)) <= 140 * 1024)) || { echo "$(WASM) has more than 140 KiB" >&2; exit 1; }
	@for copy in $(WASM_COPIES); do install -m 644 $(WASM) $$copy; done

playground: PORT ?= 8000
playground: wasm ## Show the limiters in a browser, on port 8000 or PORT=...
	@tools/install-missing python
	@python3 -m http.server --bind 127.0.0.1 --directory docs/playground $(PORT)

test-playground: wasm ## Test the playground in a headless Chromium
	@if tools/install-missing node chromium; then node --test tests/playground/; \
	else echo "not tested: docs/playground" >&2; [[ -z $$CI ]]; fi

run: PORT ?= 6379
run: PORTS = $(PORT)
run: free-ports setup-server build ## Start a server with the module, on port 6379 or PORT=...
	@mkdir -p $(TARGET)/run
	@echo "Ctrl-C stops the server. In another terminal:"
	@echo "    $$(tools/cli $(REDIS_SERVER)) -p $(PORT) RL.LOG login:alice 3 1m"
	@$(REDIS_SERVER) --port $(PORT) --dir $(TARGET)/run --loadmodule $(MODULE)

cluster: PORT ?= 7000
cluster: PORTS = $(PORT) 6 10000
cluster: free-ports setup-server build ## Start three masters and three replicas with the module, on ports 7000 to 7005 or from PORT=...
	@tools/cluster $(REDIS_SERVER) $(MODULE) $(PORT) $(CURDIR)/target/cluster

test: setup-server build ## Run the module's tests; make check adds lints, clients and examples
	@compgen -G '$(TARGET)/debug/deps/server-*' >/dev/null || echo "building the tests: some minutes the first time" >&2
	cargo test --locked

test-clients: test-client-python test-client-node test-client-rust ## Run the tests of the packages in clients on real servers

test-client-%: setup-server build wasm
	@if tools/install-missing $*; then \
		MODULE=$(MODULE) REDIS_SERVER=$(abspath $(shell command -v $(REDIS_SERVER))) clients/$*/check $(CHECK); \
	else echo "not tested: clients/$*" >&2; [[ -z $$CI ]]; fi

soak: SECONDS = 60
soak: setup-server build ## Put load on servers for a minute or SECONDS=..., and account for every unit granted
	SOAK_SECONDS=$(SECONDS) cargo test --locked --test soak -- --nocapture

memcheck: setup-server build ## Run the server tests under valgrind, to find invalid accesses and leaks
	@tools/install-missing valgrind
	tools/memcheck $(REDIS_SERVER)

# In one call, so that dependencies are built once, with the features that the client's tests need.
RUST_EXAMPLES := --package redis-rl-example --package redis-rl-client --features redis-rl-client/leases --bins --examples
test-examples: setup-server build wasm target/examples/python target/examples/node ## Run the examples (Python, Node, Rust, nginx) on real servers
	@tools/install-missing nginx || echo "not tested: examples/nginx" >&2
	@tools/install-missing prometheus || echo "not tested: examples/monitoring/alerts.yml" >&2
	cargo build --quiet --locked $(RUST_EXAMPLES)
	cargo test --locked --test examples

test-leases: setup-server build wasm target/examples/python target/examples/node ## Take leases and places of one key in Python, Node and Rust at once
	@for worker in worker holder; do ln -sfn ../../../tests/leases/$$worker.js target/examples/node/$$worker.js; done
	cargo build --quiet --locked $(RUST_EXAMPLES)
	cargo test --locked --test leases

# If the packages cannot be installed, the folder is removed and the tests skip that example.
target/examples/python: examples/python/requirements.txt $(shell find clients/python/src clients/python/pyproject.toml -type f)
	@rm -rf $@
	@tools/install-missing python && cd examples/python && \
		python3 -m pip install --quiet --target $(CURDIR)/$@ --requirement requirements.txt && \
		touch $(CURDIR)/$@ || rm -rf $(CURDIR)/$@

# The package refers to the client by its path relative to the example.
target/examples/node: examples/node/package.json examples/node/package-lock.json $(shell find clients/node/src -type f)
	@rm -rf $@ && mkdir -p $@ target/clients && ln -sfn ../../clients/node target/clients/node
	@cp examples/node/package.json examples/node/package-lock.json $@ && ln -s ../../../examples/node/app.js $@
	@tools/install-missing node && npm ci --loglevel error --prefix $@ && touch $@ || rm -rf $@

compatibility: setup-server build wasm ## Run the packages in the world that people have, or ROWS="python/fastapi node" of it: docs/compatibility.md
	@tools/install-missing python node rust
	MODULE=$(MODULE) tools/compatibility $(ROWS)

LANGUAGES := c go php ruby
test-languages: setup-server build ## Run the programs of docs/clients.md in other languages on real servers
	@skipped=(); for language in $(LANGUAGES); do \
		tools/install-missing $$language && continue; \
		echo "not tested: $$language in docs/clients.md" >&2; [[ -z $$CI ]] || exit 1; \
		skipped+=(--skip "::$$language"); \
	done; cargo test --locked --test languages -- "$${skipped[@]}"

bench: setup-server build ## Measure what a request costs; BENCH_QUICK=1 for a quick check
	@tools/install-missing bench
	cargo build --release --locked --package redis-rl-floor
	@cargo run --locked --quiet --package redis-rl-bench

check-instructions: setup-server build ## Compare instructions with the recorded ones: bench/src/recorded.rs
	@tools/install-missing valgrind
	cargo build --release --locked --package redis-rl-floor
	BENCH_ONLY=recorded cargo run --locked --quiet --package redis-rl-bench

bench-limiters: setup-build ## Count the instructions of the pure modules, without a server
	@tools/install-missing bench
	cargo bench --locked --package redis-rl-bench

figures: setup-server build ## Draw the figures in docs, from a server's replies
	@cargo run --release --locked --quiet --package redis-rl-figures -- docs/figures

# Packages that are installed for the benchmarks only.
bench bench-limiters: export PYTHONPATH := $(CURDIR)/target/bench$(if $(PYTHONPATH),:$(PYTHONPATH))
bench: export NODE_PATH := $(CURDIR)/target/bench/node_modules

# All in one call, so that dependencies are checked once. clients/rust/check has the docs of the Rust client.
LINTED_AT_NIGHT := redis-rl-bench redis-rl-example redis-rl-figures
lint: setup-build docs ## Check formatting, lints and source docs
	@tools/install-missing lint
	cargo fmt --all --check
	cargo fmt --check --manifest-path fuzz/Cargo.toml
	cargo clippy --locked --workspace $(LINTED_AT_NIGHT:%=--exclude %) --all-targets \
		--features redis-rl-client/actix,redis-rl-client/axum -- --deny warnings

# These are for readers of the source, so links to private items are fine.
docs: export RUSTDOCFLAGS = --deny warnings --allow rustdoc::private-intra-doc-links
docs: setup-build ## Build the source docs: target/doc
	cargo doc --locked --package redis-rl --package redis-rl-core --no-deps --document-private-items

audit: CHECKS ?= all
audit: setup-build ## Check all dependencies by deny.toml: advisories, licenses, sources; CHECKS=... for some
	@command -v cargo-deny >/dev/null || cargo install --locked cargo-deny
	@for lock in $$(git ls-files '*Cargo.lock'); do \
		cargo deny --locked --workspace --config deny.toml --manifest-path "$${lock%lock}toml" check $(CHECKS) || exit; done

MSRV := $(shell sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
msrv: setup-build ## Check the module with the oldest supported Rust
	@rustup run $(MSRV) rustc --version 2>/dev/null || rustup toolchain install $(MSRV) --profile minimal || \
		{ echo "Rust $(MSRV) cannot be installed here: nothing was built with it" >&2; exit 1; }
	cargo +$(MSRV) check --locked --target-dir $(TARGET)/msrv

check: CHECK = brief
check: lint test test-clients test-examples test-leases ## Check formatting, lints and tests, as CI does

check-rest: test-clients test-playground test-languages ## Check what CI checks only each night, and a release
	@tools/install-missing lint
	cargo clippy --locked $(LINTED_AT_NIGHT:%=--package %) --all-targets -- --deny warnings
	cargo test --locked --test rest

INSTALLED = $(DESTDIR)$(MODULEDIR)/libredis_rl.so
# The package's preinst refuses the reverse.
not-packaged = ! dpkg-query --search $(INSTALLED) >/dev/null 2>&1 || { echo \
	"$(INSTALLED) is of the package redis-rl: first run apt remove redis-rl, or $(1) elsewhere by MODULEDIR=..." >&2; exit 1; }

# Does not need cargo, which root often lacks.
install: ## Install the module into the server's module folder
	@[[ -e $(MODULE) ]] || { echo "there is nothing to install yet: run make build first, not as root" >&2; exit 1; }
	@$(call not-packaged,install)
	install -D -m 755 $(MODULE) $(INSTALLED)
	@echo "To load it, add this line to redis.conf (or valkey.conf) and restart the server:"
	@echo "loadmodule $(MODULEDIR)/libredis_rl.so"
	@for service in redis-server valkey-server; do \
		[[ $$(systemctl is-enabled $$service 2>/dev/null) != disabled ]] || \
		echo "The service $$service is disabled, as make run leaves it: sudo systemctl enable --now $$service"; \
	done

uninstall: ## Remove the installed module
	@$(call not-packaged,uninstall)
	rm -f $(INSTALLED)

dist: build ## Make a tarball, a Debian package, a zip for Redis Software and checksums: target/dist
	@tools/install-missing dist
	@packaging/dist $(MODULE) $(TARGET)/dist

ARM64 := aarch64-unknown-linux-gnu
dist-arm64: export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER = aarch64-linux-gnu-gcc
dist-arm64: setup-build ## The same for arm64, cross-built: target/dist-arm64
	@tools/install-missing arm64 dist
	cargo build --release --locked --target $(ARM64)
	@packaging/dist $(TARGET)/$(ARM64)/release/libredis_rl.so $(TARGET)/dist-arm64

MUSL := $(shell uname -m)-unknown-linux-musl
MUSL_MODULE := $(TARGET)/$(MUSL)/release/libredis_rl.so
# Rust looks for the system's libgcc_s, which on Debian is of glibc, and finds its own libunwind in this folder.
musl: export BINDGEN_EXTRA_CLANG_ARGS = -I/usr/include/$(shell uname -m)-linux-musl
musl: setup-build
	@tools/install-missing musl
	@mkdir -p $(TARGET)/musl
	@ln -sf "$$(rustc --print sysroot)/lib/rustlib/$(MUSL)/lib/self-contained/libunwind.a" $(TARGET)/musl/libgcc_s.a
	cargo build --release --locked --target $(MUSL) --config 'target.$(MUSL).linker = "musl-gcc"' \
		--config 'target.$(MUSL).rustflags = ["-L", "native=$(TARGET)/musl"]'

dist-musl: musl ## A tarball for Alpine, whose C library is musl: target/dist-musl
	@packaging/dist $(MUSL_MODULE) $(TARGET)/dist-musl

check-dist: setup-server dist ## Install, load and remove the module from the dist files on this machine (as root)
	@packaging/check $(MODULE) $(TARGET)/dist

check-dist-musl: setup-server dist-musl ## Load the module from that tarball
	@packaging/check $(MUSL_MODULE) $(TARGET)/dist-musl

RELEASE := $(TARGET)/artifacts
release-check: setup-server ## Build, check and collect all that a release consists of: target/artifacts
	@tools/install-missing python node
	packaging/versions
	@git diff --quiet HEAD || { echo "release-check: there are changes that are not committed" >&2; exit 1; }
	$(MAKE) check-rest compatibility check-dist check-dist-musl dist-arm64 check-packages
	@cp $(TARGET)/dist{,-arm64}/*.{deb,zip} $(TARGET)/dist{,-arm64,-musl}/*.tar.gz $(RELEASE)
	@cd $(RELEASE) && sha256sum -- * >SHA256SUMS && cat SHA256SUMS

check-packages: setup-server build wasm ## Build and try the packages of all languages, and publish them but for the upload
	@tools/install-missing python node
	@rm -rf $(RELEASE) && mkdir -p $(RELEASE)
	packaging/check-packages $(MODULE) $(RELEASE)

# Docker builds each architecture on this machine, the other one by emulation.
IMAGE ?= redis-rl
BASE ?= redis:8
ON := $(if $(findstring valkey,$(BASE)),-valkey)$(if $(findstring alpine,$(BASE)),-alpine)
image: ## Build the image for x86-64 and arm64, tagged 1.2.3, 1.2 and 1, on BASE=valkey/valkey:9.1 as 1-valkey, on redis:8-alpine as 1-alpine; IMAGE=name PUSH=1 pushes it
	@mkdir -p $(TARGET)
	@version=$$(packaging/versions) && docker buildx build --platform linux/amd64,linux/arm64 --build-arg BASE=$(BASE) \
		--label org.opencontainers.image.version=$$version --label org.opencontainers.image.revision=$$(git rev-parse HEAD) \
		$$(for tag in $$version $${version%.*} $${version%%.*}; do echo "--tag $(IMAGE):$$tag$(ON)"; done) \
		--metadata-file $(TARGET)/image.json $(if $(PUSH),--push) .

fuzz: SECONDS ?= 60
fuzz: setup-build ## Fuzz the module against plain models: four targets, SECONDS=60 each
	tools/fuzz $(SECONDS)

clean: ## Remove everything that was built
	rm -rf $(TARGET) target fuzz/target fuzz/found fuzz/artifacts clients/*/{dist,node_modules} clients/node/src/{memory/code,lines/error-table}.ts $(WASM_COPIES)

setup: setup-server ## Install what build, run and test need, and nothing else; run and test do so by themselves
	@echo "make build, make run and make test have what they need"

can-build:
	@tools/install-missing --print build

setup-build:
	@tools/install-missing build

setup-server:
	@tools/install-missing build server

free-ports:
	@tools/free-ports $(PORTS)
