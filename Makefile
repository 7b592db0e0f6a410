# Everything starts here: `make demo` and `make test` need Python 3.11 or newer, make and the package registries.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
export FLEETCTL_STATE_DIR ?= $(CURDIR)/.fleetctl
# Bytecode is kept, whatever an image says: else each worker, and each process that a test starts, compiles all sources.
unexport PYTHONDONTWRITEBYTECODE
PYTEST_ARGS ?=
TAG ?= 0.1.0
PYTEST = $(BIN)/python -m pytest
# In the order of tests/conftest.py, longest first, so that no stage ends with one worker.
BY_FILE = -n 3 --dist loadfile --no-loadscope-reorder
# 5: no test at all, which is right for a stage of which PYTEST_ARGS asks for nothing.
PYTEST_END = $(PYTEST_ARGS) $(if $(PYTEST_ARGS),|| test $$? -eq 5)
# The files of a marker, as reading all to run a few costs every worker seconds; what PYTEST_ARGS names may lie elsewhere.
marked = $(if $(PYTEST_ARGS),,$$(grep -rlw --include='test_*.py' 'mark.$(1)' tests))
# What fails runs once more with nothing beside it, and is named: the neighbours, or the code? (docs/decisions/0079)
stage = @cache=".pytest_cache/$@"; run() { $(PYTEST) -o cache_dir="$$cache" "$$@" -m $(1) $(2) $(PYTEST_ARGS); }; \
  run --cache-clear $(3) || case $$? in \
    1) echo "== once more, with nothing beside it: what passes now is unsteady, what fails again is broken"; \
       run --last-failed --last-failed-no-failures none --maxfail 3 --verbose ;; \
    5) $(if $(PYTEST_ARGS),true,false) ;; \
    *) false ;; esac

.PHONY: help kubernetes test-kubernetes crash-points bench-predictions bench-diagnosis bench-diagnosis-real bench-routing bench-engine bench-signals first-night long-night soak-node soak-gateway soak-drain storm-gateway demo up down top test test-most test-waits test-serial test-gpu test-wheel wheel mutants images kube-tools manifests bench-kernels bench-controller bench-targets bench-tui bench-pods pictures cockpit-screens bench-gateway compile-gateway test-compiled check format setup setup-dev debs clean

help: ## Show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## */  \1\t/' | expand -t 18

demo: setup ## Install, start a fleet here, break a node, watch it recover
	@$(BIN)/fleetctl demo $(DEMO_ARGS)

up: setup ## Start a fleet on this machine (then: make top, make down)
	@$(BIN)/fleetctl up

down: setup ## Stop this machine's fleet
	@$(BIN)/fleetctl down

top: setup ## Open the cockpit
	@$(BIN)/fleetctl top

test: setup-dev debs kube-tools kubernetes check ## Install, then run all checks and tests (what CI runs)
	@$(MAKE) --no-print-directory --keep-going test-most test-waits test-serial

test-most:
	$(call stage,"not gpu and not bench and not serial and not waits",,$(BY_FILE))

test-waits:
	$(call stage,"waits and not gpu and not bench",$(call marked,waits),$(BY_FILE))

test-serial:
	$(call stage,"serial and not gpu and not bench",$(call marked,serial))

test-gpu: setup-dev ## Run the tests that need a CUDA GPU
	$(BIN)/python -m pytest -m gpu tests/kernels tests/engine/model $(PYTEST_ARGS)

wheel: setup-dev ## Build sdist and wheel into dist/
	$(BIN)/python -m build --outdir dist .

mutants: setup-dev ## Change the code and see whether tests notice (TARGET= BASE=main~5 SAMPLE=200 SEED=7 AGAIN=1)
	@$(BIN)/python scripts/mutants.py $(if $(TARGET),--target $(TARGET)) $(if $(BASE),--base $(BASE)) \
	  $(if $(SAMPLE),--sample $(SAMPLE)) $(if $(SEED),--seed $(SEED)) $(if $(AGAIN),--again)

test-wheel: setup-dev ## Install the wheel into a fresh environment and use it there (part of make test)
	$(BIN)/python -m pytest tests/e2e/test_wheel.py $(PYTEST_ARGS)

bench-kernels: setup ## Kernels against this GPU's measured roofline
	$(BIN)/python -m kernels.bench $(BENCH_ARGS)

bench-engine: setup-dev ## Measure our node and installed peers beside this machine's roofline (BENCH_ARGS=--quick)
	$(BIN)/python -m engine.bench $(BENCH_ARGS)

bench-signals: setup-dev debs ## CPU, memory and rule time of our signals beside a real Prometheus (BENCH_ARGS="--nodes 100")
	$(BIN)/python -m fleetctl.bench $(BENCH_ARGS)

bench-routing: setup-dev ## What the gateway's choice of a node is worth and costs, on traces (BENCH_ARGS="--nodes 16")
	$(BIN)/python -m tests.fleetctl.gateway.bench_routing $(BENCH_ARGS)

bench-predictions: setup-dev ## Predicted beside measured p95 TTFT of a drain, a scaling in and a reroute on real nodes
	$(BIN)/python -m pytest -s -m bench tests/e2e/test_predictions.py

bench-diagnosis: setup-dev ## Right causes, false pages and calibration over all cases, into docs/diagnosis-benchmark.md (BENCH_ARGS="--only overload")
	$(BIN)/python -m diagnostics.bench --write $(BENCH_ARGS)

bench-controller: setup-dev ## A whole controller over 1,000 and 5,000 nodes (BENCH_ARGS="--nodes 1000")
	$(BIN)/python -m fleetctl.bench.controller_bench $(BENCH_ARGS)

bench-targets: setup-dev ## A whole controller over 1,000 targets that come and go (BENCH_ARGS="--targets 200")
	$(BIN)/python -m fleetctl.bench.targets_bench $(BENCH_ARGS)

bench-tui: setup ## The cockpit over 100 and 1,000 nodes: how soon a key is answered, CPU while idle (BENCH_ARGS="--nodes 1000")
	$(BIN)/python -m fleetctl.bench.cockpit_bench $(BENCH_ARGS)

cockpit-screens: setup-dev ## Write anew the pictures that tests hold the cockpit's screens against: look at the difference
	FLEETCTL_WRITE_SCREENS=1 $(BIN)/python -m pytest -q tests/fleetctl/tui/test_screens.py

pictures: setup-dev ## docs/pictures anew: every screen of the cockpit, from one real night (four minutes)
	$(BIN)/python scripts/cockpit-pictures

bench-pods: setup-dev kubernetes ## A whole controller over 1,000 pods of a real Kubernetes API (BENCH_ARGS="--pods 200")
	$(BIN)/python -m tests.fixtures.kubernetes.pods_bench $(BENCH_ARGS)

PEERS ?= $(HOME)/.cache/fleetctl/gateway-peers
bench-gateway: setup-dev ## CPU and added TTFT of our gateway beside HAProxy, vllm-router, sglang-router and LiteLLM (BENCH_ARGS="--only fleetctl")
	@scripts/install-debs haproxy
	@test -x $(PEERS)/bin/python || python3 -m venv $(PEERS)
	@for peer in vllm-router sglang-router "litellm[proxy]"; do $(PEERS)/bin/pip install -q "$$peer" || echo "note: $$peer could not be installed"; done
	$(BIN)/python tests/fleetctl/gateway/bench_gateway.py --peers $(PEERS) $(BENCH_ARGS)

compile-gateway: setup-dev ## Compile the gateway's hot modules with mypyc: some minutes, 0.7 of the CPU a plain request
	FLEETCTL_COMPILE=1 $(BIN)/python setup.py -q build_ext --inplace

test-compiled: compile-gateway ## The gateway's tests on the compiled modules (make test runs them on the source where nothing is compiled)
	FLEETCTL_COMPILED=1 $(BIN)/python -m pytest -q tests/fleetctl/gateway

soak-node: setup ## Mixed traffic and disturbances against a real node for 30 minutes (SOAK_ARGS="--minutes 1")
	@$(BIN)/python -m engine.soak $(SOAK_ARGS)

soak-gateway: setup ## Kill, stop, drain, add and slow a fleet's processes under its users for ten minutes (SOAK_ARGS="--minutes 1")
	@$(BIN)/python -m fleetctl.gateway_soak $(SOAK_ARGS)

soak-drain: setup ## 1,000 drains under users while nodes, gateways and the controller are killed: receipts add up (SOAK_ARGS="--drains 50")
	@$(BIN)/python -m fleetctl.gateway_soak --drains 1000 --gateways 2 --runner fake $(SOAK_ARGS)

crash-points: setup-dev ## Kill the controller before every commit and around every effect of rollouts, scalings, replacements
	FLEETCTL_TEST_ALL_CRASH_POINTS=1 $(BIN)/python -m pytest -q tests/fleetctl/controller/test_killed_anywhere.py tests/runbooks/test_crash.py

storm-gateway: setup ## What short prompts wait while long ones storm in, without and with a reroute (SOAK_ARGS="--minutes 0.5")
	@$(BIN)/python -m fleetctl.gateway_soak --storm $(SOAK_ARGS)

bench-diagnosis-real: setup ## Each cause that is made on local nodes, made and named, into docs/first-night.md (FAULT=limit-lowered)
	@$(BIN)/python -m fleetctl.first_night --runner fake --write docs/first-night.md $(if $(FAULT),--fault $(FAULT)) $(FIRST_NIGHT_ARGS)

first-night: setup ## Break a real fleet in many ways under traffic and judge what comes of it (FAULT=sigstop-api)
	@$(BIN)/python -m fleetctl.first_night $(if $(FAULT),--fault $(FAULT)) $(FIRST_NIGHT_ARGS)

long-night: setup ## Fault after fault on one fleet for half an hour, two at once, answered by a tired person (LONG_NIGHT_ARGS="--scene killed")
	@$(BIN)/python -m fleetctl.first_night --long-night $(LONG_NIGHT_ARGS)

check: setup-dev ## Format, lint, types, imports
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup-dev ## Rewrite the code in the one format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

setup: $(VENV)/.installed ## Install what running needs into .venv
setup-dev: $(VENV)/.installed-dev ## Install what developing and testing need as well

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "error: no python3.11 found; set PYTHON=/path/to/python" >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "error: $(PYTHON) is older than 3.11; set PYTHON=/path/to/python3.11" >&2; exit 2; }
	@echo "creating $(VENV) with $(PYTHON)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml setup.py constraints.txt | $(VENV)/bin/python
	@echo "installing (torch is the large one)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[engine]'
	@echo "compiling kernels for this CPU, once"
	@$(BIN)/fleetctl-node compile >/dev/null || echo "note: kernels are compiled at the first start then"
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[engine,dev]'
	@touch $@

debs: ## Install the Debian packages that tests talk to, where that is allowed
	@scripts/install-debs prometheus prometheus-alertmanager postgresql tmux chromium

kube-tools: setup-dev ## Put helm and kubectl beside the environment's Python, where that is allowed
	@$(BIN)/python scripts/install-kube-tools $(VENV)/kube

manifests: setup ## Write the rules and dashboards of this release into the chart (fleetctl/deploy)
	@rm -f fleetctl/deploy/helm/fleetctl/monitoring/fleetctl-*.yaml
	@$(BIN)/fleetctl alerts export --kubernetes --dashboards --to fleetctl/deploy/helm/fleetctl/monitoring

images: setup-dev ## Lint the Dockerfiles, and build both images where a Docker daemon runs (TAG=0.1.0)
	@$(BIN)/hadolint fleetctl/deploy/images/*.Dockerfile
	@if docker info >/dev/null 2>&1; then \
	  for image in control-plane engine; do \
	    docker build --tag fleetctl/$$image:$(TAG) --file fleetctl/deploy/images/$$image.Dockerfile . || exit 1; done; \
	else echo "note: no Docker daemon here; the Dockerfiles were linted only"; fi

kubernetes: ## Build the Kubernetes API server that tests talk to, once: five minutes, cached under ~/.cache/fleetctl
	@scripts/build-kubernetes

test-kubernetes: setup-dev kubernetes ## The Kubernetes provider on a real API server with its controllers (part of make test)
	$(PYTEST) -m "not gpu and not bench" $$(grep -rl --include='test_*.py' 'fixtures.kubernetes' tests) $(PYTEST_END)

clean: ## Remove the environment and the local state
	-@$(BIN)/fleetctl down 2>/dev/null
	find fleetctl -name '*.so' -delete
	rm -rf $(VENV) fleetctl/gateway/compiled.txt fleetctl_gateway__mypyc.*.so .fleetctl build dist .mutants *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
