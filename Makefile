# What can be done here: `make help`.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help build run cluster demo test test-examples soak memcheck fuzz bench bench-limiters figures
.PHONY: lint check check-demo install uninstall dist check-dist clean setup

REDIS_SERVER ?= redis-server
TARGET := $(or $(CARGO_TARGET_DIR),$(CURDIR)/target)
MODULE := $(TARGET)/release/libredis_rl.so
# Where Debian keeps modules. Its units let the server execute files below /usr/lib, not /usr/local.
PREFIX ?= /usr
MODULEDIR ?= $(PREFIX)/lib/redis/modules
export REDIS_SERVER

# A package of its own, so that nothing it needs gets into the module.
DEMO := --manifest-path demo/Cargo.toml --target-dir $(TARGET)/demo

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "  settings: REDIS_SERVER=path for the server that runs and tests use, PORT=6379 for run, PORT=7000 for"
	@echo "    cluster, SECONDS=60 for soak and fuzz, REDIS_URL for a server that the demo is to use,"
	@echo "    REDIS_CELL=path for bench to measure CL.THROTTLE too, DESTDIR, PREFIX and MODULEDIR for install"

build: setup ## Build the module: target/release/libredis_rl.so
	cargo build --release --locked --lib

run: PORT ?= 6379
run: build ## Start a server with the module, on port 6379 or PORT=...
	@if (exec 3<>/dev/tcp/127.0.0.1/$(PORT)) 2>/dev/null; then \
		echo "port $(PORT) is taken: choose another, as in make run PORT=$$(($(PORT) + 1))" >&2; exit 1; fi
	@mkdir -p target/run
	$(REDIS_SERVER) --port $(PORT) --dir target/run --loadmodule $(MODULE)

cluster: PORT ?= 7000
cluster: build ## Start three masters and three replicas with the module, on ports 7000 to 7005 or from PORT=...
	@tools/cluster $(REDIS_SERVER) $(MODULE) $(PORT) $(CURDIR)/target/cluster

demo: $(if $(REDIS_URL),,build) ## Watch the three limiters under the same traffic: keys change it, q quits
	@MODULE=$(MODULE) cargo run --quiet --locked $(DEMO)

test: build ## Run the tests: the arithmetic, and the commands on real servers
	cargo test --locked

soak: SECONDS = 60
soak: build ## Load servers for a minute or SECONDS=..., and account for every unit granted
	SOAK_SECONDS=$(SECONDS) cargo test --locked --test soak -- --nocapture

memcheck: build ## Run the server tests with every server under valgrind: invalid accesses, lost memory
	tools/memcheck $(REDIS_SERVER)

test-examples: build target/examples/python target/examples/node ## Run the examples (Python, Node, Rust) on real servers
	cargo fmt --check --manifest-path examples/rust/Cargo.toml
	cargo clippy --quiet --locked $(RUST_EXAMPLE) -- --deny warnings
	cargo build --quiet --locked $(RUST_EXAMPLE)
	cargo test --locked --test examples

RUST_EXAMPLE := --manifest-path examples/rust/Cargo.toml --target-dir target/examples/rust

# Where packages cannot be had the folder stays away, and the tests skip that example.
target/examples/python: examples/python/requirements.txt
	@rm -rf $@
	python3 -m pip install --quiet --target $@ --requirement $< && touch $@ || rm -rf $@

target/examples/node: examples/node/package.json examples/node/package-lock.json
	@rm -rf $@ && mkdir -p $@
	@cp $^ $@ && ln -s ../../../examples/node/app.js $@
	npm ci --silent --prefix $@ && touch $@ || rm -rf $@

bench: build ## Measure what a request costs, in one table; BENCH_QUICK=1 for a first look
	@tools/install-missing $(REDIS_SERVER) bench
	cargo build --release --locked --package redis-rl-bench
	@cargo run --release --locked --quiet --package redis-rl-bench

bench-limiters: setup ## Count the instructions of the arithmetic alone, without a server
	@tools/install-missing $(REDIS_SERVER) bench
	cargo bench --locked --package redis-rl-bench

figures: build ## Draw the pictures of the docs, from a server's replies and the table of docs/benchmarks.md
	@cargo run --release --locked --quiet --package redis-rl-bench -- figures docs/figures docs/benchmarks.md

# Python packages that were installed for the benchmarks alone.
bench bench-limiters: export PYTHONPATH := $(CURDIR)/target/bench$(if $(PYTHONPATH),:$(PYTHONPATH))

lint: setup ## Check the format and the lints
	cargo fmt --all --check
	cargo fmt --check --manifest-path fuzz/Cargo.toml
	cargo clippy --locked --workspace --all-targets -- --deny warnings

check: lint test test-examples check-demo ## Check format, lints and tests: what CI runs on this server

check-demo: build ## Check the demo: format, lints, and tests in a terminal of its own
	cargo fmt --check --manifest-path demo/Cargo.toml
	cargo clippy --locked --all-targets $(DEMO) -- --deny warnings
	MODULE=$(MODULE) cargo test --locked $(DEMO)

install: $(MODULE) ## Install the module into the server's module folder
	install -D -m 755 $(MODULE) $(DESTDIR)$(MODULEDIR)/libredis_rl.so
	@echo "To load it, add this line to redis.conf (or valkey.conf) and restart the server:"
	@echo "loadmodule $(MODULEDIR)/libredis_rl.so"

uninstall: ## Remove what install installed
	rm -f $(DESTDIR)$(MODULEDIR)/libredis_rl.so

dist: build ## Make a tarball, a Debian package and checksums: target/dist
	@packaging/dist $(MODULE) $(TARGET)/dist

check-dist: dist ## Install what dist made on this machine, load it, and remove it (as root)
	@packaging/check $(MODULE) $(TARGET)/dist

fuzz: SECONDS ?= 60
fuzz: setup ## Look for input on which the module and models of it differ: three targets, SECONDS=60 each
	tools/fuzz $(SECONDS)

clean: ## Remove everything that was built
	cargo clean
	rm -rf fuzz/target fuzz/found fuzz/artifacts

# So that root can install what somebody else has built: root often has no cargo.
$(MODULE): $(shell find src -name '*.rs')
	@$(MAKE) build

setup:
	@tools/install-missing $(REDIS_SERVER)
