# Needs Go and make; everything else is found, started or installed on demand.

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
TOOLS   := $(CURDIR)/.dev/bin
GOLANGCI_VERSION := v2.15.0
DEV     := go run ./e2e/dev

# RACE=1 switches the race detector on, RUN=regexp picks tests. One package at a time:
# the tests that kill servers share them, and all share the machine.
TEST_FLAGS := -count=1 -p=1 -timeout=20m $(if $(RACE),-race) $(if $(RUN),-run '$(RUN)')

.DEFAULT_GOAL := help
.PHONY: help demo test bench bench-full up down build lint fmt image clean

help: ## list what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## start everything, play the story of four orders and end (under 60 s)
	@$(DEV) exec go run ./e2e/demo

test: ## start what is needed and run all tests (RACE=1, RUN=regexp)
	$(DEV) exec go test $(TEST_FLAGS) ./...

bench: ## measure against other ways, in under 3 minutes (CHECK=1: fail when a target is missed)
	go run -C e2e/bench . $(if $(CHECK),-check)

bench-full: ## the same with 40,000 orders, three runs each, and up to a million timers pending
	go run -C e2e/bench . -full $(if $(CHECK),-check)

up: ## start everything, leave it running and print the URLs
	@$(DEV) up

down: ## stop what was started for this checkout, and nothing else
	@$(DEV) down

build: ## build the binary, bin/ordertimeout
	CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X main.version=$(VERSION)" -o bin/ordertimeout ./services

lint: $(TOOLS)/golangci-lint-$(GOLANGCI_VERSION) ## check formatting, suspicious code, style and the direction of imports
	@test -z "$$(gofmt -l .)" || { echo "not gofmt'ed:"; gofmt -l .; exit 1; }
	go vet ./...
	$< run
	cd e2e/bench && go vet . && $< run
	go test -count=1 -run TestImportDirections ./e2e

fmt: ## format the code
	gofmt -w .

image: ## build the container image
	docker build -f infra/image/Dockerfile --build-arg VERSION=$(VERSION) -t ordertimeout:$(VERSION) .

clean: down ## stop everything and remove what was built, private servers' data included
	for link in .dev/postgres .dev/rabbitmq; do test ! -L $$link || rm -rf "$$(readlink $$link)"; done
	rm -rf bin .dev

# Built once, outside of this module, so that go.mod stays the application's own.
$(TOOLS)/golangci-lint-$(GOLANGCI_VERSION):
	mkdir -p $(TOOLS)
	cd / && GOBIN=$(TOOLS) GOFLAGS=-mod=mod go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_VERSION)
	mv $(TOOLS)/golangci-lint $@
