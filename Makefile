# Everything a developer types. `make` alone prints the list.
.DEFAULT_GOAL := help
.PHONY: help setup demo test all-tests engine oldest constraints upgrade fuzz day simulate faults mutants lint types format bench bench-peers bench-check clients docs dist clean

BIN := .venv/bin
READY := .venv/.ready
READY_FOR_DEMO := .venv/.ready-for-demo
READY_FOR_DOCS := .venv/.ready-for-docs
READY_FOR_RELEASE := .venv/.ready-for-release
READY_OLDEST := .venv-oldest/.ready
PINNED := pyproject.toml VERSION constraints.txt clients/typescript/package-lock.json scripts/setup
DEMO_ARGS ?=
TEST_ARGS ?=
# Three workers a core: about half of a run waits, for servers, leases and time-outs.
WORKERS ?= $(shell expr 3 '*' $$(nproc))
SHARED := -n $(WORKERS) --maxprocesses 6 --dist loadgroup --no-loadscope-reorder --durations 20
# A run starts hundreds of processes that import EMQ, so bytecode is kept even where the environment forbids it.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/pytest
BENCH_ARGS ?=
FAULTS_ARGS ?=
SEEDS ?= 1000
SECONDS ?= 60
TIMES ?= 1
# What differs without the packages that are built on the engine is no store, so the stores without a server do.
ENGINE_TESTS := tests/unit tests/contract -m "not long" -k "unit or memory or sqlite"
# Old libraries warn beside newer ones. Contract tests: those of the stores whose libraries differ most.
OLDEST_TESTS := tests/unit tests/contract -m "not long" -k "unit or sqlite or redis and not redis_cluster"

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## create or reuse .venv and install everything into it (PYTHON=... chooses the interpreter)

$(READY): $(PINNED)
	@scripts/setup
	@touch $(READY_FOR_DEMO) $(READY_FOR_DOCS) $(READY_FOR_RELEASE) $@

$(READY_FOR_DEMO): $(PINNED)
	@scripts/setup demo
	@touch $@

$(READY_FOR_DOCS): $(PINNED)
	@scripts/setup docs
	@touch $@

$(READY_FOR_RELEASE): $(PINNED)
	@scripts/setup release
	@touch $@

$(READY_OLDEST): $(PINNED) constraints-oldest.txt
	@scripts/setup oldest
	@touch $@

demo: $(READY_FOR_DEMO) ## see EMQ work; installs only what the demonstration needs (DEMO_ARGS=...)
	@rm -rf .demo
	@$(BIN)/emq demo --keep .demo $(DEMO_ARGS)

test: setup ## prove every promise on every store, three workers a core, at most 6 (TEST_ARGS="tests/unit -x"; WORKERS=0 for one process)
	@$(PYTEST) $(SHARED) -m "not long" $(TEST_ARGS)

all-tests: setup ## run what takes longer: thousands of faults, days, clusters, Spark's audits, every page (after make test)
	@$(PYTEST) $(SHARED) -m long $(TEST_ARGS)

engine: setup ## run the engine's unit tests, and its stores' without a server, without the packages that are built on it
	@EMQ_ENGINE_ALONE=1 $(PYTEST) $(SHARED) $(ENGINE_TESTS) $(TEST_ARGS)

oldest: $(READY_OLDEST) ## run unit tests, and those of SQLite and Redis, with the oldest versions that pyproject.toml allows
	@PYTHONDONTWRITEBYTECODE= .venv-oldest/bin/pytest $(SHARED) -W ignore::DeprecationWarning $(OLDEST_TESTS) $(TEST_ARGS)

constraints: ## pin what pyproject.toml has come to need; all other versions stay
	@scripts/setup uv
	@$(BIN)/python scripts/constraints.py

upgrade: ## pin the newest version of everything; then run the tests, and commit the constraints files
	@scripts/setup uv
	@$(BIN)/python scripts/constraints.py --upgrade

fuzz: setup ## run the property tests with new random inputs: make fuzz TIMES=20
	@for i in $$(seq $(TIMES)); do EMQ_FUZZ=1 $(BIN)/pytest -q $$(grep -rl "^from hypothesis" tests --include="test_*.py") $(TEST_ARGS) || exit; done

day: setup ## run a realistic day, in a minute, on every store: make day STORE=postgresql SECONDS=300; repeat one with SEED=123
	@EMQ_DAY_S=$(SECONDS) EMQ_DAY_SEED=$(or $(SEED),0) $(BIN)/pytest tests/day $(if $(STORE),-k "[$(STORE)]") $(TEST_ARGS)

simulate: setup ## simulate clusters with faults of every kind: make simulate SEEDS=5000; a single one: SEED=123; STORE=redis or sqlite
	@cd tests && ../$(BIN)/python -m support.simulation $(if $(STORE),--store $(STORE)) $(if $(SEED),--seed $(SEED),--seeds $(SEEDS))

faults: setup ## break everything on purpose, for hours; a stopped run goes on (FAULTS_ARGS=--short; --write: docs/faults.md)
	@cd tests && PYTHONDONTWRITEBYTECODE= ../$(BIN)/python -m faults $(FAULTS_ARGS)

mutants: setup ## plant mistakes in a copy of the code, and check that a test catches each: make mutants NAMES="offsets redis-*"
	@cd tests && ../$(BIN)/python -m mutants $(NAMES) $(if $(BY),--by $(BY)) $(if $(FILES),--files $(FILES)) $(if $(ALL),--all) $(if $(JSON),--json) $(if $(WRITE),--write)

lint: setup ## check format, style and the direction of imports
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/lint-imports

types: setup ## check types
	@$(BIN)/mypy

format: setup ## format the code, and correct what ruff can correct by itself
	@$(BIN)/ruff check --fix-only .
	@$(BIN)/ruff format .

bench: setup ## run one benchmark: make bench NAME=host (BENCH_ARGS="--queues 60000"); without NAME, list them
	@$(BIN)/python -m bench $(or $(NAME),--help) $(BENCH_ARGS)

bench-peers: setup ## install what python -m bench peers compares EMQ with, into .peers/ (EMQ_PEERS=... chooses another folder)
	@$(BIN)/python -m bench.peers.install

bench-check: setup ## compare the core benchmarks with those of the commit in bench/baseline: make bench-check BENCH_ARGS=--short
	@$(BIN)/python -m bench.check $(BENCH_ARGS)

clients: setup ## write clients of the HTTP API from its OpenAPI document: clients/typescript/emq.d.ts and clients/go/emqapi/
	@$(BIN)/python scripts/clients.py

docs: $(READY_FOR_DOCS) ## build the documentation site into site/; then open site/index.html
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build
	@echo "docs: site/index.html is ready"

dist: $(READY_FOR_RELEASE) ## build what a release consists of into dist/: wheel, sdist, SBOM; installs only what this needs
	@rm -rf dist
	@$(BIN)/python scripts/release.py build dist
	@echo "dist: dist/ has wheel, sdist and SBOM"

clean: ## remove .venv, caches and build products
	rm -rf clients/typescript/node_modules clients/typescript/emq.d.ts clients/go/emqapi
	rm -rf .venv .venv-oldest .peers .demo .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist site
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
