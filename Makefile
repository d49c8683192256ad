# make demo and make test are all that a fresh machine needs; make help lists the rest.

GO      := scripts/go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
PREFIX  ?= /usr/local
BENCH   ?= .
FUZZTIME ?= 10s
KILLS   ?= 200
MANY    ?= 100
FAULTS  ?= 1000

# Static, without paths or build ids: the same sources give the same bytes everywhere.
# The guest carries no version: it is known by its checksum, which changes with its code alone.
export CGO_ENABLED := 0
build_flags := -trimpath -buildvcs=false
ldflags     := -s -w -buildid=
guest_archs := amd64 arm64
guests      := $(guest_archs:%=bin/sandboxd-guest-linux-%)

# go tool with the tools' own module: what lints and reports is no dependency of the product.
lint_tool := $(GO) tool -modfile=scripts/tools/lint/go.mod

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-slow test-all build check lint fuzz bench bench-loops page-vendor network-table soak soak-asks soak-idle soak-churn soak-many soak-files faults soak-bombs reproducible conformance conformance-peers mcp-agents mcp-conformance tasks interop agentrun runsc engines image-python-full setup install uninstall clean bin/sandboxd $(guests)

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 20

demo: ## set up this machine, build, and watch an agent work in a real sandbox
	@scripts/setup demo
	@$(MAKE) --no-print-directory build
	bin/sandboxd demo

test: ## set up this machine, build, and run every test but the slow ones with the race detector
	@scripts/setup test
	@$(MAKE) --no-print-directory build
	scripts/test fast $(value TESTFLAGS)

test-slow: ## the tests that take minutes, of scripts/slow-tests: E2B's SDKs, browsers, faults of daemon and engine
	@scripts/setup test
	@$(MAKE) --no-print-directory build
	scripts/test slow $(value TESTFLAGS)

test-all: ## make test, then make test-slow, with one summary of both: what CI runs
	@scripts/setup test
	@$(MAKE) --no-print-directory build
	scripts/test all $(value TESTFLAGS)

build: bin/sandboxd $(guests) ## build bin/sandboxd and the guests for both architectures
	@scripts/check-guest $(guests)

bin/sandboxd:
	$(GO) build $(build_flags) -ldflags="$(ldflags) -X main.version=$(VERSION)" -o $@ ./cmd/sandboxd

$(guests): bin/sandboxd-guest-linux-%:
	GOOS=linux GOARCH=$* $(GO) build $(build_flags) -ldflags="$(ldflags)" -o $@ ./cmd/sandboxd-guest

check: ## gofmt, vet, lint and the short tests: run it before each commit
	@scripts/check-format
	$(GO) vet ./...
	@$(MAKE) --no-print-directory lint
	$(GO) test -short ./...

lint: ## golangci-lint with the rules and reasons of .golangci.yml
	$(lint_tool) golangci-lint run ./...

fuzz: ## every fuzz target for FUZZTIME (10s)
	@scripts/fuzz $(FUZZTIME)

bench: ## measure sandboxd beside docker and OpenSSH, in one run
	@scripts/setup test
	@$(MAKE) --no-print-directory build
	$(GO) run ./scripts/bench $(value BENCHFLAGS)

soak: ## ten minutes of work of all kinds that asks nothing, in many sessions: none of them may be told as waiting
	@scripts/setup test
	@$(MAKE) --no-print-directory build
	$(GO) run ./scripts/soak $(value SOAKFLAGS) load

soak-asks: ## a thousand questions of many programs, answered: what their caller is told, and how late
	@scripts/setup test
	@$(MAKE) --no-print-directory build
	$(GO) run ./scripts/soak $(value SOAKFLAGS) asks

soak-churn: ## ten minutes (SOAKFLAGS='-minutes 60') of sandboxes made, forked, frozen, killed and removed: nothing may grow
	@scripts/setup test
	@$(MAKE) --no-print-directory build
	$(GO) run ./scripts/soak $(value SOAKFLAGS) churn

soak-many: ## 200 sandboxes at once (SOAKFLAGS='-sandboxes 50'): what they cost, and how soon all are back after kill -9 of the daemon
	@scripts/setup test
	@$(MAKE) --no-print-directory build
	$(GO) run ./scripts/soak $(value SOAKFLAGS) many

soak-files: ## a file of 1 GiB in and out, by HTTP and by sftp: the same bytes come back, and the daemon's memory stays
	@scripts/setup test
	@$(MAKE) --no-print-directory build
	$(GO) run ./scripts/soak $(value SOAKFLAGS) files

faults: ## the promises R1 to R10 at length: the daemon killed 200 times (KILLS), 100 sandboxes (MANY) back after a restart, 1000 calls with a fault (FAULTS)
	@scripts/setup test
	@$(MAKE) --no-print-directory build
	SANDBOXD_TEST_REQUIRE=1 SANDBOXD_TEST_KILLS=$(KILLS) SANDBOXD_TEST_MANY=$(MANY) SANDBOXD_TEST_TEARS=20 SANDBOXD_TEST_REVOKED=100 SANDBOXD_TEST_FAULTS=$(FAULTS) \
		$(GO) test -timeout 90m -v -run '^TestR[0-9]+|^TestDescriptors|^TestAccessEnds|^TestFaultMatrix' ./cmd/sandboxd ./gateway ./gateway/store ./gateway/record ./sandbox/docker

soak-idle: ## what idle sessions cost the guest and the daemon, in processor time
	@scripts/setup test
	@$(MAKE) --no-print-directory build
	$(GO) run ./scripts/soak $(value SOAKFLAGS) idle

soak-bombs: ## what the neighbour of a sandbox notices of fork bombs, full disks and the like in it, and what the machine loses
	@scripts/setup test
	@$(MAKE) --no-print-directory build
	$(GO) run ./scripts/soak $(value SOAKFLAGS) bombs

conformance-peers: ## play the conformance cases with other products, too, and put both scores into docs/conformance.md
	@scripts/setup test
	@$(MAKE) --no-print-directory build
	scripts/peers/run --docs

mcp-conformance: build ## run the public MCP conformance suite against the daemon
	@scripts/setup test
	scripts/mcp-conformance

mcp-agents: build ## have real coding agents do a task through MCP, with a model that answers by a script
	@scripts/setup test
	scripts/mcp-agents

tasks: build ## do the tasks of botsh's documentation in real sandboxes, with a model that answers by a script
	@scripts/setup test
	scripts/tasks

conformance: ## run every conformance case on every tier, and rewrite the table of docs/conformance.md
	@scripts/setup test
	@$(MAKE) --no-print-directory build
	scripts/conformance $(value CONFORMANCEFLAGS)

interop: ## OpenSSH's suite, real clients, editors and attacks against the gateway: nothing that passed may fail
	@scripts/setup interop
	@$(MAKE) --no-print-directory build
	$(GO) run ./scripts/interop $(value INTEROPFLAGS)

agentrun: ## the same Python programs by AgentRun itself and by POST /v1/run/, side by side, into docs/agentrun.md
	@scripts/setup test
	@$(MAKE) --no-print-directory build
	scripts/agentrun/run --docs

runsc: ## build gVisor's runsc into bin, for --isolation runsc; docs/isolation.md says how an engine gets it
	$(GO) build -C scripts/tools/runsc $(build_flags) -ldflags="-s -w" -o $(CURDIR)/bin/runsc .

engines: ## the contract of the Docker backend on other engines and runtimes than this machine's: ENGINES (docker26 podman runsc), each an engine of its own
	@scripts/setup test
	@scripts/engines $(ENGINES)

network-table: build ## try real programs in each network mode, and put the table into docs/network.md
	$(GO) run ./scripts/reach -update docs/network.md

page-vendor: ## take what the page has of others (xterm.js) from its locked npm packages anew
	@scripts/page-vendor

bench-loops: ## the Go benchmarks of the inner loops that match BENCH (.)
	$(GO) test -run '^$$' -bench '$(value BENCH)' -benchmem ./...

reproducible: ## build the guest twice, in two places and without a cache: same bytes
	@scripts/check-reproducible

image-python-full: ## build the image sandboxd/python-full: sandboxd/python with tools for documents, media and data (about 2 GB)
	images/python-full/build

setup: ## install, start and build what the demo needs, nothing else
	@scripts/setup demo

install: build ## install under PREFIX (/usr/local), below DESTDIR if set; asks for sudo where that takes it
	@scripts/install $(DESTDIR)$(PREFIX)

uninstall: ## remove what install put there
	@scripts/install --remove $(DESTDIR)$(PREFIX)

clean: ## remove what was built; images and the engine stay
	rm -rf bin
