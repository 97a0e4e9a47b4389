# The script runner. `make help` lists what there is; everything is incremental.

SHELL := /bin/sh
MAKEFLAGS += --no-builtin-rules --no-print-directory
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

GOARCH := $(shell go env GOARCH 2>/dev/null)
NODE := tools/with-node.sh
BIN := node_modules/.bin
NPM_STAMP := node_modules/.package-lock.json

# What a build depends on. The finds run at every start and cost milliseconds.
GO_FILES := $(shell find core capi -name '*.go' ! -name '*_test.go') go.mod go.sum
GO_TEST_FILES := $(shell find core capi -name '*_test.go' -o -name testdata)
C_FILES := $(shell find core capi src -name '*.[chSs]' -o -name '*.cc' -o -name '*.sh') binding.gyp
TS_FILES := $(shell find lib -name '*.ts') tsconfig.json

LIBRARY := build/Release/libsandbox.so
ADDON := build/Release/sandbox.node
TEST_ADDON := build/test/intact/sandbox.node
IMAGE := build/.image
GOTEST := build/gotest/packages
DIST := dist/index.js

##@ Everyday

help: ## list the targets
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} \
	  /^[a-z][a-z-]*:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: native dist ## build the library, the addon and the JavaScript; incremental

demo: deps pack ## run a real eve agent in the sandbox and print what it did
	@$(NODE) sh tools/run-script.sh "make demo" test/demo/run.mjs

test: ## run every test, started by root also as an ordinary user; prints counts
test: deps build gotest $(TEST_ADDON) test-types test-capi test-pack
	@tools/test.sh

bench: deps build ## measure ratios in one run; JSON goes to build/bench.json
	@$(NODE) sh tools/run-script.sh "make bench" test/bench/run.mjs

chart: node ## draw docs/bench.json, a committed report of make bench, as docs/bench.svg
	@$(NODE) sh tools/run-script.sh "make chart" test/bench/chart.mjs

lint: lint-go lint-c lint-ts lint-sh ## run every linter

fmt: lint-tools $(NPM_STAMP) ## format Go, C, C++, TypeScript
	@tools/format.sh write

check: fmt-check lint test ## the gate: formatting, linters, tests

pack: deps build ## write the installable tarball to build/
	@$(NODE) tools/pack.sh

clean: ## remove what was built; what was installed stays
	rm -rf build dist prebuilds
	rm -f core/initproc/image/bin/*.gz

##@ Parts of the above

deps: node $(NPM_STAMP) ## install what building and testing need
	@tools/require.sh bwrap setpriv

node: ## install Node 24 into tools/node unless the machine has one with headers
	@tools/require.sh go node npm c++ python3
	@tools/install-node.sh

$(NPM_STAMP): package.json package-lock.json | node
	@echo "installing development packages"
	@npm ci --ignore-scripts --no-fund --no-audit --loglevel=error
	@touch $@

native: $(ADDON) ## build libsandbox.so and sandbox.node in build/Release
dist: $(DIST) ## compile lib/ to dist/
image: $(IMAGE) ## build the program that is process 1 in a sandbox

# The Go code embeds it, so that nothing compiles without.
$(IMAGE): $(GO_FILES) $(C_FILES) | node
	@mkdir -p build
	sh core/initproc/image/build.sh $(GOARCH)
	@touch $@

# binding.gyp builds the library on the way: what node-gyp makes is the whole delivery.
$(ADDON): $(GO_FILES) $(C_FILES) package.json $(NPM_STAMP)
	$(NODE) $(BIN)/node-gyp configure build --silent
	@touch $(LIBRARY) $@

# The same with the exports that only tests have.
$(TEST_ADDON): $(GO_FILES) $(C_FILES) test/addon/build.sh package.json $(NPM_STAMP)
	$(NODE) sh test/addon/build.sh $(@D)
	@touch $@

$(DIST): $(TS_FILES) $(NPM_STAMP)
	@rm -rf dist
	$(NODE) $(BIN)/tsc -p tsconfig.json
	@touch $@

gotest: $(GOTEST) ## compile the Go tests into build/gotest

$(GOTEST): $(GO_FILES) $(GO_TEST_FILES) $(C_FILES) $(IMAGE) tools/build-gotest.sh
	@tools/build-gotest.sh

test-go: deps build gotest ## run the Go tests once, as whoever you are
	@tools/test.sh go

test-node: deps build $(TEST_ADDON) ## run the node:test suites once, as whoever you are
	@tools/test.sh node

test-types: deps dist ## check our types against the real eve's
	@$(NODE) sh tools/run-script.sh "make test-types" test/types/run.mjs

test-rules: deps build ## break each rule of the boundary on purpose and see its test fail
	@$(NODE) sh tools/run-script.sh "make test-rules" test/rules/native.mjs
	@sh core/initproc/rules_test.sh
	@sh core/supervise/rules_test.sh

test-capi: native ## misuse the library from C, under the sanitizers
	@sh capi/capitest/run.sh

test-pack: pack ## install the tarball without compiler and Go, and run a command
	@$(NODE) node --test 'test/pack/*.test.mjs'

test-eve: deps pack ## run real eve agents of nine releases in the sandbox; EVE_VERSION=x.y.z for one
	@$(NODE) node --test --test-concurrency=1 'test/e2e/*.test.mjs'

soak: deps build $(TEST_ADDON) ## 11,000 commands in one process, and nothing may be left; as test, also as a user
	@tools/test.sh soak

fuzz: node $(IMAGE) ## feed what parses untrusted input with nonsense, each for FUZZTIME (30s)
	@tools/fuzz.sh $(FUZZTIME)

fmt-check: lint-tools $(NPM_STAMP) ## say what fmt would change
	@tools/format.sh check

lint-tools: ## build the Go linters and install clang-format and shellcheck
	@tools/require.sh clang-format shellcheck
	@tools/build-tools.sh

lint-go: lint-tools $(IMAGE)
	@tools/lint-go.sh

lint-c: $(NPM_STAMP)
	@$(NODE) tools/lint-c.sh

lint-ts: $(NPM_STAMP)
	@$(NODE) $(BIN)/oxlint --quiet --deny-warnings
	@$(NODE) $(BIN)/tsc -p tsconfig.json --noEmit
	@$(NODE) $(BIN)/tsc -p tsconfig.test.json

lint-sh: lint-tools
	@git ls-files -z '*.sh' .ci/run | xargs -0 shellcheck

.PHONY: help build demo test bench chart lint fmt check pack clean deps node native dist image gotest test-go \
  test-node test-types test-capi test-rules test-pack test-eve fmt-check lint-tools lint-go lint-c lint-ts lint-sh \
  fuzz soak
