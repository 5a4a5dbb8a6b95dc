# Everything a developer types. `make` alone prints the list.
.DEFAULT_GOAL := help
.PHONY: help setup demo test fuzz day simulate mutants lint types format bench clean

BIN := .venv/bin
READY := .venv/.ready
DEMO_ARGS ?=
TEST_ARGS ?=
WORKERS ?= auto
SHARED := -n $(WORKERS) --maxprocesses 4 --dist loadgroup --no-loadscope-reorder --durations 20
BENCH_ARGS ?=
SEEDS ?= 1000
SECONDS ?= 60
TIMES ?= 1

help: ## print this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## create or reuse .venv and install everything into it (PYTHON=... chooses the interpreter)

$(READY): pyproject.toml scripts/setup
	@scripts/setup
	@touch $@

demo: setup ## see EMQ work (DEMO_ARGS=...)
	@$(BIN)/emq demo $(DEMO_ARGS)

test: setup ## run every test on all cores, at most 4 (TEST_ARGS=..., such as "tests/unit -x"; WORKERS=0 for one process)
	@$(BIN)/pytest $(SHARED) $(TEST_ARGS)

fuzz: setup ## run the property tests with new random inputs: make fuzz TIMES=20
	@for i in $$(seq $(TIMES)); do EMQ_FUZZ=1 $(BIN)/pytest -q $$(grep -rl "^from hypothesis" tests --include="test_*.py") $(TEST_ARGS) || exit; done

day: setup ## run a realistic day, in a minute, on every store: make day STORE=postgresql SECONDS=300; repeat one with SEED=123
	@EMQ_DAY_S=$(SECONDS) EMQ_DAY_SEED=$(or $(SEED),0) $(BIN)/pytest tests/day $(if $(STORE),-k "[$(STORE)]") $(TEST_ARGS)

simulate: setup ## simulate clusters with faults of every kind: make simulate SEEDS=5000; a single one: SEED=123; STORE=redis or sqlite
	@cd tests && ../$(BIN)/python -m support.simulation $(if $(STORE),--store $(STORE)) $(if $(SEED),--seed $(SEED),--seeds $(SEEDS))

mutants: setup ## plant mistakes in a copy of the code, and check that a test catches each: make mutants NAMES="offsets redis-*"
	@cd tests && ../$(BIN)/python -m mutants $(NAMES) $(if $(BY),--by $(BY)) $(if $(JSON),--json) $(if $(WRITE),--write)

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

clean: ## remove .venv, caches and build products
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
