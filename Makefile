# Every target works in a fresh clone with Python 3.11+ and make: it sets up .venv first.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
PYTEST := $(BIN)/python scripts/run-tests

.PHONY: help setup system demo test coverage attack lint format bench docs soak kill powerloss truth fuzz clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

setup: $(READY) ## create .venv and install what is locked in requirements.lock

$(READY): requirements.lock pyproject.toml scripts/setup
	@PYTHON=$(PYTHON) scripts/setup

system: ## install the servers and tools that tests and benchmarks run against, where that is allowed
	@scripts/system-packages

demo: $(READY) ## hub, pipeline, real traffic, a crash in the middle, and the tables (KEEP=1 leaves it running)
	@$(BIN)/python -m examples.demo $(if $(KEEP),--keep)

test: $(READY) system ## everything that must hold
	$(PYTEST) -m "not slow" -n 2 --dist loadfile

lint: $(READY) ## ruff, strict mypy, the import contract
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY) ## put the source in order
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

coverage: $(READY) ## branch coverage of each module by the test of its name (ONLY=hub for some)
	$(BIN)/python scripts/own-coverage $(ONLY)

attack: $(READY) ## every attack on a running hub, and what another client felt meanwhile (ONLY=http for some)
	$(BIN)/python -m tests.attack $(ONLY)

bench: $(READY) system ## measure against peers, side by side, as ratios
	$(BIN)/python -m benchmarks

docs: $(READY) ## build the documentation; warnings are errors
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --site-dir .build/site
	@echo "documentation in .build/site/index.html"

soak: $(READY) system ## the slow tests: many kills, long runs
	$(PYTEST) -m slow

kill: $(READY) ## kill -9 of a loaded hub, 500 times (KILLS=20 for fewer): the ledger balances
	$(PYTEST) -m slow -s -o faulthandler_timeout=0 tests/hub/test_crash.py

powerloss: $(READY) system ## power cuts: 10,000 simulated disk states and, as root, 50 cuts of a real ext4 (STATES=500 CUTS=10 for fewer)
	$(PYTEST) -s -rs -o faulthandler_timeout=0 tests/powerloss

truth: $(READY) ## a million messages in generated captures, every row of every table checked (MESSAGES=100000 for fewer)
	$(PYTEST) -m slow -s -o faulthandler_timeout=0 tests/captures/test_truth.py

fuzz: $(READY) ## a million random and mutated inputs per protocol
	$(BIN)/python -m tests.fuzzing all 1000000
	$(BIN)/python -m tests.protocols.mesh.fuzz 1000000
	$(BIN)/python -m tests.protocols.wolpertinger.fuzz 1000000

clean: ## remove everything that was built
	rm -rf .venv .build demo-data demo-report.html .mypy_cache .ruff_cache .hypothesis .import_linter_cache
