# make help lists the targets.

# Compiles the BPF programs. This line is the only place that names a version: generated
# objects are committed, and CI compares them byte for byte. Headers of linux-libc-dev
# are in a directory of the architecture, which clang does not search for the target bpf.
CLANG        := clang-19
# mcpu=v3 has the atomic compare-and-swap that bpf/sockops/slots.bpf.h needs (Linux 5.12).
BPF_CFLAGS   := -O2 -mcpu=v3 -Wall -Werror -idirafter /usr/include/$(shell uname -m)-linux-gnu

# Kernels of the slow matrix (test/vm has more), and the one that CI uses.
KERNELS := 6.1 6.12 6.18 7
SMOKE   := 6.12
# Packages whose tests depend on the kernel.
VM_TESTS := ./internal/datapath ./internal/cc ./internal/host ./internal/daemon ./internal/poddevice ./internal/podlink ./internal/podnet ./lab/topology ./lab/link ./test/e2e

PREFIX  := /usr/local
DESTDIR :=
UNITDIR := /etc/systemd/system
CNI_BIN := /opt/cni/bin
CNI_CONF := /etc/cni/net.d

VERSION := $(shell git describe --tags --dirty 2>/dev/null)

# The build runs as the caller; only commands that use the kernel run as root.
SUDO := $(if $(filter 0,$(shell id -u)),,sudo)

.DEFAULT_GOAL := build

.PHONY: help
help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 16

.PHONY: build
build: ## binaries, in bin/, static and without debug information
	@CGO_ENABLED=0 go build -trimpath -ldflags '-s -w $(if $(VERSION),-X main.release=$(VERSION))' -o bin/ ./cmd/...

.PHONY: run
run: build ## start the daemon on this host until ^C; ARGS="--config FILE"
	@$(SUDO) bin/tcpilot run $(ARGS)

.PHONY: demo
demo: build ## show in a minute what tcpilot does for a lossy path, in namespaces of its own
	@tools/deps lab
	@$(SUDO) bin/tcpilot demo

.PHONY: test
test: ## all tests that this machine can run; root tests too if you are root
	@tools/deps test
	@tools/test $(ARGS)

.PHONY: samples
samples: ## record again the samples of real connections that tests replay (committed)
	@tools/deps test
	@TCPILOT_SAMPLES=$(CURDIR)/test/samples/kernel.tcpilot go test -count 1 -v -run '^TestRecordSamples$$' ./test/e2e
	@go test ./internal/cli ./internal/daemon -run '^TestReplay' -update
	@TCPILOT_LINK_SAMPLES=$(CURDIR)/internal/estimate/testdata/links.jsonl go test -count 1 -v -run '^TestRecordLinks$$' ./test/e2e

.PHONY: test-fresh
test-fresh: ## run, demo and test in an empty Debian root, where nothing is installed yet
	@tools/deps fresh
	@$(SUDO) tools/test-fresh

.PHONY: test-service
test-service: ## the unit under systemd itself, in a root and a cgroup of its own
	@tools/deps fresh
	@$(SUDO) tools/test-service

.PHONY: test-kubernetes
test-kubernetes: ## manifests, annotations, services and pods of a kubelet, with a real API server; first builds them
	@tools/deps test kubernetes containerd
	@$(SUDO) tools/test-kubernetes

.PHONY: test-containerd
test-containerd: ## pods of a real container runtime, while it and the daemon are killed; CONTAINERD=1 (Debian's), 2 (built the first time)
	@tools/deps test containerd
	@$(SUDO) tools/test-containerd $(CONTAINERD)

.PHONY: measure
measure: ## comparisons whose results depend on the machine, and how often each held; ROUNDS=5 MEASURE=regexp
	@tools/deps test
	@$(SUDO) tools/measure $(or $(ROUNDS),5) $(MEASURE)

.PHONY: test-vm
test-vm: ## the root tests under each kernel of KERNELS, emulated: slow
	@tools/deps vm
	@for kernel in $(KERNELS); do echo "== kernel $$kernel"; \
		test/vm/gotest -k $$kernel -t 3600 $(VM_TESTS) -- -test.run TestRoot || exit 1; done

# All of them take half an hour where the machine is slow; test-vm runs them.
SMOKE_TESTS = TestRoot.*(Adapted|Arm|Class|Limit|Live|Rules|Reused|Switch|Undo|UserObject|Sample|Ends|Yield)

.PHONY: test-vm-smoke
test-vm-smoke: ## a third of the datapath's root tests under one other kernel
	@tools/deps vm
	@TCPILOT_VM_TESTS=$(SMOKE) go test -count 1 ./test/vm
	@test/vm/gotest -k $(SMOKE) -t 1800 ./internal/datapath -- -test.run '$(SMOKE_TESTS)' -test.timeout 29m

.PHONY: generate
generate: ## compile the BPF programs and write what is generated (committed)
	@CLANG=$(CLANG) tools/deps generate
	@BPF2GO_CC=$(CLANG) BPF2GO_CFLAGS="$(BPF_CFLAGS)" go generate ./...

.PHONY: deps
deps: ## install what all targets need (Debian, Ubuntu; root)
	@CLANG=$(CLANG) tools/deps generate test vm fresh

.PHONY: fmt
fmt: ## format Go
	@gofmt -w cmd internal lab test

.PHONY: lint
lint: ## formatting, vet, staticcheck, functions that no program uses
	@unformatted=$$(gofmt -l cmd internal lab test); \
		if [ -n "$$unformatted" ]; then echo "gofmt: $$unformatted"; exit 1; fi
	@go vet ./...
	@go tool staticcheck ./...
	@tools/dead-code

.PHONY: bench
bench: build ## what tcpilot does for traffic: every lab scenario, reduced, some 15 minutes
	@tools/deps lab cni
	@$(SUDO) bin/tcpilot lab run --all --quick --overview

.PHONY: microbench
microbench: ## Go benchmarks; BENCH=regexp COUNT=n
	@$(if $(SUDO),,TCPILOT_ROOT_TESTS=1) go test -p 1 -run '^$$' -bench '$(or $(BENCH),.)' -count $(or $(COUNT),1) -benchmem ./...

.PHONY: install
install: build ## to DESTDIR and PREFIX, with the systemd unit, shell completion and the schema
	install -D -m 755 bin/tcpilot $(DESTDIR)$(PREFIX)/bin/tcpilot
	install -d $(DESTDIR)$(UNITDIR)
	sed 's|@bindir@|$(PREFIX)/bin|' deploy/tcpilot.service > $(DESTDIR)$(UNITDIR)/tcpilot.service
	install -d $(DESTDIR)$(PREFIX)/share/bash-completion/completions $(DESTDIR)$(PREFIX)/share/zsh/site-functions
	bin/tcpilot completion bash > $(DESTDIR)$(PREFIX)/share/bash-completion/completions/tcpilot
	bin/tcpilot completion zsh > $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_tcpilot
	install -D -m 644 docs/config.schema.json $(DESTDIR)$(PREFIX)/share/tcpilot/config.schema.json
	test -e $(DESTDIR)/etc/tcpilot/tcpilot.yaml || \
		install -D -m 644 deploy/tcpilot.yaml $(DESTDIR)/etc/tcpilot/tcpilot.yaml

.PHONY: install-lab
install-lab: build ## to DESTDIR and PREFIX, the lab: experiments and the demo
	install -D -m 755 bin/tcpilot-lab $(DESTDIR)$(PREFIX)/bin/tcpilot-lab

# A container runtime may run the plugin at any moment: it finds the old one or the new one.
.PHONY: install-cni
install-cni: build ## to DESTDIR and CNI_BIN, the CNI plugin; docs/pods.md has the configuration
	install -D -m 755 bin/tcpilot-cni $(DESTDIR)$(CNI_BIN)/.tcpilot-cni.new
	mv -f $(DESTDIR)$(CNI_BIN)/.tcpilot-cni.new $(DESTDIR)$(CNI_BIN)/tcpilot-cni
	@stat -c '%n: %s bytes' $(DESTDIR)$(CNI_BIN)/tcpilot-cni

# ARCH builds for another architecture than that of this machine: arm64.
ARCH  := $(shell go env GOARCH)
IMAGE := localhost/tcpilot:latest

.PHONY: image
image: ## bin/tcpilot-image.tar, a container image (OCI) of the daemon and the plugin; IMAGE=NAME ARCH=GOARCH
	@CGO_ENABLED=0 GOARCH=$(ARCH) go build -trimpath -ldflags '-s -w $(if $(VERSION),-X main.release=$(VERSION))' -o bin/image/$(ARCH)/ ./cmd/tcpilot ./cmd/tcpilot-cni
	@go run ./internal/ociimage -o bin/tcpilot-image.tar -name $(IMAGE) -version '$(VERSION)' -arch $(ARCH) \
		bin/image/$(ARCH)/tcpilot bin/image/$(ARCH)/tcpilot-cni LICENSE
	@stat -c '%n: %s bytes' bin/tcpilot-image.tar

.PHONY: uninstall
uninstall: ## remove what install, install-lab and install-cni installed; /etc/tcpilot, what was learned, and pods stay
	@for file in $(DESTDIR)/var/lib/tcpilot/pods/*.json $(DESTDIR)/var/lib/tcpilot/pods/.removal $(DESTDIR)$(CNI_CONF)/zz-tcpilot-uninstalled.conflist; do \
		if test -e $$file && test -e $(DESTDIR)$(CNI_BIN)/tcpilot-cni; then \
			echo "nothing is removed, because pods may need $(DESTDIR)$(CNI_BIN)/tcpilot-cni to end ($$file): run 'tcpilot cni uninstall' first (docs/pods.md#uninstall)" >&2; exit 1; \
		fi; \
	done
	rm -f $(DESTDIR)$(PREFIX)/bin/tcpilot $(DESTDIR)$(PREFIX)/bin/tcpilot-lab $(DESTDIR)$(UNITDIR)/tcpilot.service
	rm -f $(DESTDIR)$(CNI_BIN)/tcpilot-cni
	rm -f $(DESTDIR)$(PREFIX)/share/bash-completion/completions/tcpilot
	rm -f $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_tcpilot
	rm -rf $(DESTDIR)$(PREFIX)/share/tcpilot

.PHONY: clean
clean: ## remove what was built
	@rm -rf bin
