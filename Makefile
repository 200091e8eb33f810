# Two commands for newcomers: `make demo` and `make test`. Everything lives in .venv; nothing else is touched.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help demo test test-fast check sweep storm bench mutants clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /make \1\t/'

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# A stamp is newer than the lock file that it stands for: the second call installs nothing.
$(VENV)/demo.stamp: requirements/demo.lock pyproject.toml | $(BIN)/python
	$(PIP) -r requirements/demo.lock
	$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/dev.stamp: requirements/dev.lock pyproject.toml | $(BIN)/python
	$(PIP) -r requirements/dev.lock
	$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

demo: $(VENV)/demo.stamp ## train a model, examine it, write a report (about three minutes after the install)
	$(BIN)/heedful demo

# Bytecode of rewritten tests is kept between runs even where PYTHONDONTWRITEBYTECODE is set: it halves the collection.
PYTEST := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 2 --dist worksteal

test: $(VENV)/dev.stamp ## the whole test suite
	$(PYTEST)

test-fast: $(VENV)/dev.stamp ## the tests without trainings, processes and the browser
	$(PYTEST) -m "not slow and not browser"

check: $(VENV)/dev.stamp ## formatting, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

sweep: $(VENV)/dev.stamp ## try every kind of network that transformers knows, and write docs/models.md (ten minutes)
	OMP_NUM_THREADS=1 HEEDFUL_SWEEP=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 2 --dist worksteal tests/models/test_tiny_networks.py tests/models/test_network_anatomy.py
	OMP_NUM_THREADS=1 $(BIN)/heedful models --all --quiet --out docs/models.md

storm: $(VENV)/dev.stamp ## disturb the commands at 1000 random moments (signals, full disks, damage): nothing may be lost (half an hour)
	OMP_NUM_THREADS=1 PYTHONPATH=src:. $(BIN)/python -m tests.storm --moments 1000

bench: $(VENV)/dev.stamp ## speed against named peers, into benchmarks/results.json
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks

$(VENV)/mutants.stamp: requirements/mutants.lock $(VENV)/dev.stamp
	$(PIP) -r requirements/mutants.lock
	@touch $@

mutants: $(VENV)/mutants.stamp ## which changes of operators and numbers do the tests notice? (two hours; a table at the end)
	OMP_NUM_THREADS=1 $(BIN)/python tests/mutants.py --minutes 120

clean: ## remove .venv and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .hypothesis build src/*.egg-info
