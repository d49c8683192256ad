# make demo and make test are all that a fresh machine needs; make help lists the rest.
# Measurements and long checks have a Makefile of their own: make -C scripts help.

GO       := scripts/go
VERSION  ?= $(or $(patsubst v%,%,$(shell git describe --tags --match 'v[0-9]*' --dirty 2>/dev/null)),0.1.0-dev)
PREFIX   ?= /usr/local
FUZZTIME ?= 10s

# A build step prints one line; V=1 shows its command, too.
Q := $(if $(V),,@)

# Static, without paths or build ids: the same sources give the same bytes everywhere.
# The guest carries no version: it is known by its checksum, which changes with its code alone.
export CGO_ENABLED := 0
build_flags := -trimpath -buildvcs=false
ldflags     := -s -w -buildid=
# Of the commit, never of the time of building.
COMMIT ?= $(shell git describe --always --dirty --abbrev=40 --exclude '*' 2>/dev/null)
DATE   ?= $(shell TZ=UTC git log -1 --date=format-local:%Y-%m-%dT%H:%M:%SZ --format=%cd 2>/dev/null)
stamps  = -X main.version=$(VERSION) -X main.commit=$(COMMIT) -X main.date=$(DATE)
programs    := dist/build/amd64/sandboxd dist/build/arm64/sandboxd
clients     := $(addsuffix /sandboxd,$(addprefix dist/build/,darwin-amd64 darwin-arm64 windows-amd64 windows-arm64))
guests      := bin/sandboxd-guest-linux-amd64 bin/sandboxd-guest-linux-arm64

# go tool with the tools' own module: what lints and reports is no dependency of the product.
lint_tool := go tool -modfile=$(CURDIR)/scripts/tools/lint/go.mod golangci-lint

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-slow test-all build check lint fuzz bench install uninstall release
.PHONY: python-sdk clean bin/sandboxd $(guests) $(programs) $(clients)

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 12
	@echo 'More, for measurements and long checks: make -C scripts help'

demo: ## set up this machine, build, and watch an agent work in a real sandbox
	@scripts/setup demo
	@$(MAKE) --no-print-directory bin/sandboxd bin/sandboxd-guest-linux-$$($(GO) env GOARCH)
	bin/sandboxd demo

test: ## set up this machine, build, and run every test but the slow ones; TESTFLAGS=-race to find races
	@scripts/setup test
	@$(MAKE) --no-print-directory build
	scripts/test fast $(value TESTFLAGS)

test-slow: ## run the tests of scripts/slow-tests with the race detector: E2B's SDKs, browsers, faults of daemon and engine
	@scripts/setup test-slow
	@$(MAKE) --no-print-directory build
	scripts/test slow $(value TESTFLAGS)

test-all: ## run test and test-slow with the race detector, with one summary: what CI runs
	@scripts/setup test-slow
	@$(MAKE) --no-print-directory build
	scripts/test all $(value TESTFLAGS)

build: bin/sandboxd $(guests) ## build bin/sandboxd and the guests for both architectures
	@scripts/check-guest $(guests)

bin/sandboxd:
	@echo 'build $@'
	$(Q)$(GO) build $(build_flags) -ldflags="$(ldflags) $(stamps)" -o $@ ./cmd/sandboxd

$(guests): bin/sandboxd-guest-linux-%:
	@echo 'build $@'
	$(Q)GOOS=linux GOARCH=$* $(GO) build $(build_flags) -ldflags="$(ldflags)" -o $@ ./cmd/sandboxd-guest

# Packages whose tests take more than ten seconds, because they start shells, daemons or browsers.
slow := agent agent/conformance agent/conformance/programs agent/mcp agent/python agent/task \
	cmd/sandboxd cmd/sandboxd/clone gateway gateway/egress gateway/httpd gateway/httpd/kernels \
	gateway/lifecycle gateway/sshd gateway/view sandbox/connect sandbox/docker sandbox/guest \
	sandbox/host sandbox/session sandbox/session/marks sandbox/session/proc sandbox/session/screen

# scripts/ is a module of its own, which ./... leaves out. lint vets too, and compiles all tests,
# also for the systems of clients.
# Tests mostly wait: six packages and six tests of each run at once.
check: ## check format, vet, lint, and run the tests of quick packages: run it before each commit
	@scripts/check-format
	@$(MAKE) --no-print-directory lint
	$(GO) test -short -p 6 -parallel 6 $$($(GO) list ./... | grep -vxF \
		"$$(printf 'github.com/sandboxd/sandboxd/%s\n' $(slow))")
	@echo 'make test runs the slow packages, too: $(slow)'
	$(GO) test -C scripts -short ./...

lint: ## run golangci-lint with the rules and reasons of .golangci.yml
	scripts/$(lint_tool) run ./...
	cd scripts && ./$(lint_tool) run ./...
	GOOS=darwin CGO_ENABLED=0 $(GO) vet ./...
	GOOS=windows CGO_ENABLED=0 $(GO) vet ./...

fuzz: ## run every fuzz target for FUZZTIME (10s)
	@scripts/fuzz $(FUZZTIME)

bench: ## measure sandboxd beside docker and OpenSSH, in one run (BENCHFLAGS='-run exec')
	@$(MAKE) --no-print-directory -C scripts bench

install: build ## install under PREFIX (/usr/local), below DESTDIR if set; uses sudo where needed
	@scripts/install $(DESTDIR)$(PREFIX)

uninstall: ## remove what install put there
	@scripts/install --remove $(DESTDIR)$(PREFIX)

$(programs): dist/build/%/sandboxd:
	@echo 'build $@'
	$(Q)GOOS=linux GOARCH=$* $(GO) build $(build_flags) -ldflags="$(ldflags) $(stamps)" \
		-o $@ ./cmd/sandboxd

$(clients): dist/build/%/sandboxd:
	@echo 'build $@'
	$(Q)GOOS=$(firstword $(subst -, ,$*)) GOARCH=$(lastword $(subst -, ,$*)) $(GO) build $(build_flags) \
		-ldflags="$(ldflags) $(stamps)" -o $@ ./cmd/sandboxd

release: build $(programs) $(clients) ## write packages, archives, SBOMs and checksums to dist, and clients for macOS and Windows
	@scripts/release $(VERSION)

python-sdk: ## write the wheel of the Python client to dist
	@scripts/python-sdk wheel

clean: ## remove what was built; images and the engine stay
	rm -rf bin dist
