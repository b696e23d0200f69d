# What this repository can do. `make` alone lists it.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check --no-input
# How long one pass of the tests may take before it is ended, in seconds.
TEST_SECONDS ?= 4200
PYTEST_ARGS  ?=
# How many processes run tests side by side (tests/workers.py); 0: all tests in one, one after the other.
PYTEST_WORKERS ?= 4
# `here`: the tests start no container engines of their own.
BELLJAR_TEST_ENGINES ?=
# What runs on every container engine takes an hour on all of them: `make test` runs a sample of it on each.
BELLJAR_CONTAINER_TESTS ?= sample
# Which tests `make test-containers` runs, and how long it may take.
CONTAINER_SECONDS ?= 5400
CONTAINER_TESTS ?= tests/conformance tests/attacks tests/containers tests/images
# Container engines of the tests' own, as root on Debian.
ENGINES      := $(BIN)/python tests/engines/run.py
# Which tests run once more as an ordinary user: those in which it matters who started a jar.
USER_TESTS   ?= $(addprefix tests/agents/inside/test_,agent_approval.py claude_in_a_jar.py) tests/attacks $(addprefix tests/audit/test_,ends_of_runs.py killed_in_phases.py quarantine.py records_of_runs.py runs_from_outside.py state.py stopping.py) tests/cli/test_cli_run.py tests/cli/test_cli_shell.py tests/conformance \
  tests/limits tests/sandbox tests/seccomp \
  $(addprefix tests/network/test_network_,guest.py denials.py programs.py publish.py without_veth.py)
# How long `make fuzz` works on each of its targets; by hand, an hour finds more.
FUZZ_SECONDS ?= 10
# How many runs `make soak` makes, twice.
SOAK_RUNS    ?= 10000
# Where `make bench-egress` has mitmproxy, whose dependencies are its own affair.
MITMPROXY    := .cache/mitmproxy
# Where the tests of `belljar mcp` look for the MCP inspector.
INSPECTOR    := .cache/inspector
# Which tests `make test-vm` runs in the virtual machine.
VM_TESTS     ?= tests/conformance

.DEFAULT_GOAL := help
MAKEFLAGS     += --no-print-directory
export BELLJAR_TEST_ENGINES BELLJAR_CONTAINER_TESTS
.PHONY: help demo test test-passes test-here test-user test-containers engines engines-stop test-vm check lint format types layers generated generate inspector bench bench-agents bench-peers bench-containers bench-egress bench-redaction fuzz soak install dev clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

demo: ## install belljar here and show what it does: four runs, what happened to each, by which rule
	@scripts/install-prerequisites.sh demo "$(PYTHON)"
	@$(MAKE) install
	@$(BIN)/python scripts/demo.py

test: ## install what the tests need and run them all: as you, and if you are root, as an ordinary user too
	@scripts/install-prerequisites.sh test "$(PYTHON)"
	@$(MAKE) dev
	@$(MAKE) inspector || echo "== the MCP inspector could not be installed: its test is skipped"
	@$(ENGINES) around -- $(MAKE) test-passes

test-passes:
	@scripts/test-passes.sh

# Programs that tests start find belljar compiled, even where nothing may write bytecode.
test-here:
	@$(BIN)/python -m compileall -q src
	@echo "== tests as $$(id -un), Python $$($(BIN)/python -c 'import platform; print(platform.python_version())')"
	@env -u PYTHONDONTWRITEBYTECODE timeout --foreground --kill-after=20 $(TEST_SECONDS) $(BIN)/python -m pytest -n $(PYTEST_WORKERS) $(PYTEST_ARGS)

test-user:
	@TEST_SECONDS=$(TEST_SECONDS) PYTEST_WORKERS=$(PYTEST_WORKERS) scripts/test-as-user.sh $(BIN)/python $(or $(PYTEST_ARGS),$(USER_TESTS))

test-containers: ## all conformance tests and attacks on docker, gVisor and podman (an hour)
	@scripts/install-prerequisites.sh test "$(PYTHON)"
	@$(MAKE) dev
	@$(ENGINES) around -- $(MAKE) test-here BELLJAR_CONTAINER_TESTS=all TEST_SECONDS=$(CONTAINER_SECONDS) \
	  PYTEST_ARGS="-k 'docker or gvisor or podman' $(CONTAINER_TESTS) $(PYTEST_ARGS)"

engines: ## start the container engines of the tests to stay (root on Debian): eval "$(make engines)"
	@scripts/install-prerequisites.sh test "$(PYTHON)" >&2
	@$(MAKE) dev >&2
	@$(ENGINES) start

engines-stop: dev ## stop them, and remove all but their images
	@$(ENGINES) stop

test-vm: dev ## run the conformance tests in a virtual machine with cgroup v2 and systemd (QEMU; slow)
	@$(BIN)/python tests/vm/run.py -- python3 -m pytest -q $(VM_TESTS)

check: ## what has to pass before a change goes in: lint, types, layers, generated files, tests
	@scripts/install-prerequisites.sh test "$(PYTHON)"
	@$(MAKE) dev
	@$(MAKE) lint types layers generated
	@$(MAKE) test

lint: dev ## style and common mistakes
	@$(BIN)/ruff check --quiet --output-format concise .
	@$(BIN)/ruff format --check --quiet . || { echo "some files are not formatted: make format"; exit 1; }
	@echo "lint: ok"

format: dev ## rewrite files the way lint wants them
	@$(BIN)/ruff check --fix --quiet . || true
	@$(BIN)/ruff format --quiet .

types: dev ## mypy, strict
	@$(BIN)/mypy --no-error-summary && echo "types: ok"

layers: dev ## imports point down only
	@$(BIN)/lint-imports >$(VENV)/layers.log 2>&1 || { cat $(VENV)/layers.log; exit 1; }
	@echo "layers: ok"

generated: dev ## whether the generated files are current
	@$(BIN)/python scripts/generate.py --check
	@$(BIN)/python scripts/generate_cli.py --check
	@echo "generated files: ok"

generate: dev ## write the compiled presets and the reference pages again
	@$(BIN)/python scripts/generate.py
	@$(BIN)/python scripts/generate_cli.py

soak: dev ## SOAK_RUNS=10000 runs in one pool, then as many of which a third crash, run out of time or are killed
	@BELLJAR_SOAK=$(SOAK_RUNS) timeout --foreground --kill-after=20 $(TEST_SECONDS) $(BIN)/python -m pytest -q -s tests/sandbox/test_pool_soak.py

fuzz: dev ## fuzz the egress proxy's parsers and decisions, FUZZ_SECONDS=10 each; FUZZ_ARGS="http1 socks" for some of them
	@$(BIN)/python tests/fuzz/run.py --seconds $(FUZZ_SECONDS) $(FUZZ_ARGS)

bench: dev ## measure what a jar costs, beside what others cost; BENCH_ARGS=--record writes benchmarks/results.md, .json and .svg
	@scripts/install-prerequisites.sh demo "$(PYTHON)"
	@$(ENGINES) around -- $(BIN)/python benchmarks/bench.py $(BENCH_ARGS)

bench-peers: dev ## install what bench compares with: srt, Codex, llm-sandbox, pandas, docker, gVisor
	@scripts/install-prerequisites.sh peers "$(PYTHON)"
	@$(BIN)/python benchmarks/install_peers.py

bench-containers: dev ## measure what containers cost; BENCH_ARGS=--record writes benchmarks/containers.md and .svg
	@scripts/install-prerequisites.sh test "$(PYTHON)"
	@$(ENGINES) around -- $(BIN)/python benchmarks/containers.py $(BENCH_ARGS)

bench-egress: dev $(MITMPROXY)/.installed ## measure the proxy beside squid and mitmproxy; BENCH_ARGS=--record writes benchmarks/egress.md and .svg
	@scripts/install-prerequisites.sh bench "$(PYTHON)"
	@$(BIN)/python benchmarks/egress.py $(BENCH_ARGS)

bench-agents: dev ## measure what a tool call and a whole run of Claude Code cost; BENCH_ARGS=--record writes both tables
	@$(BIN)/python benchmarks/agents.py $(BENCH_ARGS)
	@$(BIN)/python benchmarks/claude_runs.py $(BENCH_ARGS)

inspector: $(INSPECTOR)/.installed ## install the MCP inspector from npm, for its test
	@:

$(INSPECTOR)/.installed:
	@echo "== installing the MCP inspector from npm"
	@npm install --silent --no-audit --no-fund --ignore-scripts --prefix $(INSPECTOR) @modelcontextprotocol/inspector@0
	@touch $@

bench-redaction: dev ## measure redaction; BENCH_ARGS=--record writes benchmarks/redaction.md
	@$(BIN)/python benchmarks/redaction.py $(BENCH_ARGS)

clean: ## remove caches and built files; the virtual environment stays (rm -rf .venv)
	@rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	@find src tests scripts benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

# --- the virtual environment ------------------------------------------------------------------------------------------

install: $(VENV)/.installed ; @:
dev: $(VENV)/.installed-dev ; @:

$(VENV)/.installed: pyproject.toml
	@echo "== installing belljar into $(VENV)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) install --quiet --editable .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed pyproject.toml scripts/dependency_group.py
	@echo "== installing what development needs into $(VENV)"
	@$(BIN)/python scripts/dependency_group.py dev | tr '\n' '\0' | xargs -0 $(PIP) install --quiet
	@touch $@

# Where it can't be had the benchmark goes without, and says so.
$(MITMPROXY)/.installed:
	@echo "== installing mitmproxy into $(MITMPROXY)"
	@test -x $(MITMPROXY)/bin/python || $(PYTHON) -m venv $(MITMPROXY)
	@! $(MITMPROXY)/bin/python -m pip --disable-pip-version-check --no-input install --quiet mitmproxy || touch $@
