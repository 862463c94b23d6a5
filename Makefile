# The commands of the project. `make` alone lists them.
# T=regexp narrows a run to tests of that name, PKG=./shm/... to packages.

GO       ?= go
PYTHON   ?= python3
VERSION  := $(shell cat VERSION)
PKG      ?= ./...
CRASH    ?= 1000
SOAK     ?= 1h
PREFIX   ?= /usr/local
FUZZTIME ?= 30s
# Without symbols and debug information a program has two thirds of the size; a debugger wants LDFLAGS= .
LDFLAGS  ?= -s -w
SEEDS    ?= 1 2 3

CARGO    := $(shell command -v cargo)
VENV     := $(wildcard build/venv/bin/python)
COMMA    := ,

# The race detector needs a C compiler; the product does not.
RACE = $(if $(shell command -v "$$($(GO) env CC)"),-race)
# Packages whose tests start real processes, or read the project's files: the race detector sees nothing there.
WITH_PROCESSES = /(integration|cmd|bench|internal/rules)(/|$$)
PROCESSES = $(shell $(GO) list $(PKG) | grep -E '$(WITH_PROCESSES)')
UNITS     = $(shell $(GO) list $(PKG) | grep -vE '$(WITH_PROCESSES)')
TEST      = $(GO) test -count=1 $(if $(T),-run '$(T)')

.DEFAULT_GOAL := help
.PHONY: help build test test-torches test-delays rust-test rust-versions test-arm64 test-gpu gpu-kit bench-gpu race crash soak lint fmt vectors fuzz bench demo pipeline model loom mutants docs clib install-clib header python-test wheel release man site clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## build the one static binary, bin/baton, and bin/baton-bench, which measures it
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS) -X main.version=$(VERSION)' -o bin/ ./cmd/baton ./cmd/baton-bench

test: build ## all tests: units with the race detector, real processes, Rust, Python (T=, PKG=)
	@$(if $(RACE),:,tools/skip race "no C compiler, so the tests run without the race detector (Debian: apt-get install gcc libc6-dev)")
	@$(if $(UNITS)$(PROCESSES),:,echo 'no package matches PKG=$(PKG)' && exit 1)
	$(if $(UNITS),$(if $(RACE),CGO_ENABLED=1) $(TEST) -timeout 30m $(RACE) $(UNITS))
	$(if $(filter ./...,$(PKG)),tools/python package)
	$(if $(PROCESSES),$(TEST) -timeout 60m $(PROCESSES))
	$(if $(filter-out ./...,$(PKG)),,tools/rust test $(T))
	$(if $(filter ./...,$(PKG)),tools/python test $(if $(T),-k '$(T)'))

test-delays: ## tests with pauses around locks, atomics and system calls, which make races likely (SEEDS="1 2 3", T=, PKG=)
	$(GO) run ./internal/delays -o build/delays
	CGO_ENABLED=0 build/delays/run 0 $(GO) build -o build/delays/baton ./cmd/baton
	@set -e; for seed in $(SEEDS); do echo "--- BATON_DELAYS=$$seed"; run="build/delays/run $$seed"; \
		$(if $(UNITS),$(if $(RACE),CGO_ENABLED=1) $$run $(TEST) -timeout 30m $(RACE) $(UNITS);) \
		$(if $(filter ./...,$(PKG)),$$run tools/rust test $(T);) \
		$(if $(filter %/integration/langs,$(PROCESSES)),$$run $(GO) test -count=1 -timeout 30m -run '$(or $(T),Threads|Fork|Kill)' ./integration/langs;) \
	done

rust-test: build ## the tests of the Rust crates alone (T=name)
	tools/rust test $(T)

rust-versions: ## build the crate with the newest and the oldest versions of other crates that it allows (needs the registry)
	tools/rust versions

test-arm64: build ## what knows the machine, as programs for arm64; on others by emulation (Debian: qemu-user-static)
	GOARCH=arm64 CGO_ENABLED=0 $(TEST) -timeout 20m ./client/... ./dlpack ./handles ./internal/wire ./protocol ./shm
	tools/rust arm64 $(T)

test-gpu: ## the tests of CUDA on this machine's GPU; skipped without one, unless BATON_REQUIRE=cuda (T=)
	tools/test-gpu $(T)

gpu-kit: ## build what test-gpu and bench-gpu need on another machine into build/gpu, where run does them
	tools/gpu-kit

bench-gpu: build ## what a hand-over of CUDA tensors takes, beside torch's; without a GPU the calls of the driver
	tools/bench-gpu

race: build ## every test with the race detector (T=, PKG=)
	CGO_ENABLED=1 $(TEST) -timeout 40m -race $(PKG)

crash: build ## kill clients and brokers at random, at every crash point, and go through every seam (CRASH=times)
	BATON_CRASH_KILLS=$(CRASH) BATON_SEAMS=$(CRASH) $(GO) test -count=1 -timeout 600m -v -run '$(or $(T),Crash|Kill|Death|Seams)' ./integration/...

soak: build ## sessions come and go for hours, hundreds at once: files, mappings, heaps and lanes stay flat (SOAK=1h each)
	BATON_SOAK=$(SOAK) $(GO) test -count=1 -timeout 0 -v -run Soak ./integration/langs

lint: ## formatting, vet for both architectures, staticcheck, rustfmt, clippy, shellcheck, codespell
	tools/lint

fmt: ## format the Go and the Rust code
	gofmt -w .
	if command -v cargo >/dev/null; then cd rust && cargo fmt --all; fi

vectors: ## write the golden vectors of the protocol anew; must leave a clean diff
	$(GO) test -count=1 -run '^TestVectors$$' ./protocol -update

fuzz: ## run every fuzz target for a while each (FUZZTIME=30s, T=, PKG=)
	FUZZTIME='$(FUZZTIME)' tools/fuzz '$(or $(T),^Fuzz)' $(PKG)

bench: build ## measure: a table on the terminal (ARGS= for the command's flags, such as --json)
	$(if $(CARGO),$(CARGO) build --quiet --locked --release --manifest-path rust/bench/Cargo.toml)
	$(if $(VENV),tools/python package)
	bin/baton-bench $(if $(CARGO),--rust rust/bench/target/release/baton-bench) \
		$(if $(VENV),--python $(VENV)$(COMMA)python/bench) $(ARGS)

demo: build ## train a network in several processes over shared memory, some in Python where it has the package, and kill one
	$(if $(wildcard build/venv/bin/python3),PATH="$(CURDIR)/build/venv/bin:$$PATH" )bin/baton demo $(ARGS)

pipeline: ## digits through stages in Go, Rust and C, none copied (needs cargo and a C compiler; ARGS=)
	$(GO) run ./examples/pipeline $(ARGS)

model: ## check the protocol's models with spin (SHORT=1: a minute; T="wake attach": these)
	models/check $(if $(SHORT),--short) $(T)

loom: ## run lanes, ledger, groups, waiting and closing of the Rust crate through every order of their steps (SHORT=1: a minute at most)
	cd rust && RUSTFLAGS='--cfg baton_loom' $(if $(SHORT),LOOM_MAX_PREEMPTIONS=2) cargo test --quiet --locked --release --lib --target-dir target/loom loom_models

mutants: ## weaken each order of the Rust crate's shared memory: the models that the page names must find it (long; T=regexp)
	$(GO) run ./internal/rules/mutants -t '$(T)'

docs: ## write the generated parts of docs/ anew
	$(GO) run ./internal/rules/modeldoc

clib: ## build the C library: build/c/lib, build/c/include (needs cargo)
	tools/clib build/c

install-clib: ## install the C library with headers for C and C++, pkg-config, CMake (PREFIX=/usr/local, DESTDIR=)
	tools/clib '$(DESTDIR)$(PREFIX)'

header: ## write baton.h anew from rust/capi
	cd rust && BATON_WRITE_HEADER=1 cargo test --quiet --locked -p baton-capi --test header

python-test: build ## build the Python package into build/venv and test it (T=)
	tools/python test $(if $(T),-k '$(T)')

test-torches: build ## the tests of Baton under torch with other versions of torch, of 5 GB each (TORCHES="2.4.1 2.9.1")
	tools/torches $(TORCHES)

wheel: ## build the Python package for this machine, the program in it: python/dist/*.whl (needs cargo, python3)
	tools/wheel python/dist

release: ## build all that a release consists of into build/release: binaries, .deb, wheels, SBOM, notices, checksums
	tools/release/build

man: ## write the pages of the manual into build/man
	BATON_WRITE_MANUAL=$(CURDIR)/build/man $(GO) test -count=1 -run '^TestManualNamesEveryCommandAndFlag$$' ./cmd/baton

site: ## build the site of the documentation from docs/ into build/site, its links checked
	tools/site/build

clean: ## remove what was built
	rm -rf bin build
