# Two commands for newcomers: `make demo` and `make test`. Everything lives in .venv; nothing else is touched.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help demo test test-fast check sweep storm hostile reproduce-cheap bench mutants docs badges dist lock sbom vulnerabilities matrix clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /make \1\t/'

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# A build of torch for the CPU, in a folder that pip is given (PIP_FIND_LINKS), saves gigabytes of CUDA.
$(VENV)/torch.stamp: requirements/torch.lock requirements/cuda.lock | $(BIN)/python
	@$(PIP) --no-index --no-deps --require-hashes -r requirements/torch.lock 2>/dev/null \
	|| $(PIP) --no-deps --require-hashes -r requirements/torch.lock -r requirements/cuda.lock
	@touch $@

# A stamp is newer than the lock file that it stands for: the second call installs nothing.
$(VENV)/demo.stamp: requirements/demo.lock pyproject.toml $(VENV)/torch.stamp | $(BIN)/python
	$(PIP) --require-hashes -r requirements/demo.lock
	$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/dev.stamp: requirements/dev.lock pyproject.toml $(VENV)/torch.stamp | $(BIN)/python
	$(PIP) --require-hashes -r requirements/dev.lock
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
	OMP_NUM_THREADS=1 HEEDFUL_SWEEP=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 2 --dist worksteal tests/models/test_tiny_networks.py tests/models/test_network_anatomy.py tests/trials/test_adversary_climb.py
	OMP_NUM_THREADS=1 $(BIN)/heedful models --all --quiet --out docs/models.md

storm: $(VENV)/dev.stamp ## disturb the commands at 1000 random moments (signals, full disks, damage): nothing may be lost (half an hour)
	OMP_NUM_THREADS=1 PYTHONPATH=src:. $(BIN)/python -m tests.storm --moments 1000
	OMP_NUM_THREADS=1 PYTHONPATH=src:. $(BIN)/python -m tests.object_storm --moments 300

hostile: $(VENV)/dev.stamp ## some 5000 hostile inputs to every command and the Python API: no traceback, no call without end (a quarter of an hour)
	OMP_NUM_THREADS=1 PYTHONPATH=src:. $(BIN)/python -m tests.hostile_campaign

reproduce-cheap: $(VENV)/dev.stamp ## run the cells of the ledger that took less than a minute again, and compare
	OMP_NUM_THREADS=1 $(BIN)/heedful reproduce --cheap --workspace "$$(mktemp -d)"

bench: $(VENV)/dev.stamp ## speed against named peers, into benchmarks/results.json
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks

$(VENV)/mutants.stamp: requirements/mutants.lock $(VENV)/dev.stamp
	$(PIP) --require-hashes -r requirements/mutants.lock
	@touch $@

mutants: $(VENV)/mutants.stamp ## which changes of operators and numbers do the tests notice? (two hours; a table at the end)
	OMP_NUM_THREADS=1 $(BIN)/python tests/mutants.py --minutes 120

# Tools that are never imported by heedful, in an environment of their own.
TOOLS := .venv-tools
$(TOOLS)/stamp: requirements/tools.lock
	$(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/tools.lock
	@touch $@

lock: $(TOOLS)/stamp ## write the lock files anew, with hashes; UPGRADE=--upgrade takes the newest versions
	$(TOOLS)/bin/python requirements/locks.py $(UPGRADE)

$(VENV)/docs.stamp: requirements/docs.lock $(VENV)/dev.stamp
	$(PIP) --require-hashes -r requirements/docs.lock
	@touch $@

docs: $(VENV)/docs.stamp ## the site, into site/index.html: pages, examples and checks (a few minutes; later calls reuse the example audits)
	OMP_NUM_THREADS=1 PYTHONPATH=src:. $(BIN)/python -m docs.builder site

badges: $(VENV)/dev.stamp ## docs/badges/*.svg: version, license, Python, and the number of tests that pytest collects
	PYTHONPATH=src:. $(BIN)/python -m docs.builder.badges

dist: $(VENV)/dev.stamp ## wheel and source distribution, checked, installed in a new environment and used
	$(BIN)/python tests/distribution.py dist

sbom: $(TOOLS)/stamp ## the bill of materials of what `pip install heedful` brings (CycloneDX), into dist/sbom.json
	mkdir -p dist
	$(TOOLS)/bin/cyclonedx-py requirements requirements/base.lock --pyproject pyproject.toml --mc-type library --output-reproducible --output-file dist/sbom.json

vulnerabilities: $(TOOLS)/stamp ## known vulnerabilities of every locked package (asks a service on the internet)
	$(TOOLS)/bin/python requirements/vulnerabilities.py

matrix: $(TOOLS)/stamp ## the core tests with Python 3.11 to 3.14 and the lowest and highest dependencies (an hour; gigabytes)
	$(TOOLS)/bin/python requirements/matrix.py $(ONLY)

clean: ## remove .venv and caches
	rm -rf $(VENV) $(TOOLS) .matrix dist site .mypy_cache .ruff_cache .hypothesis build src/*.egg-info
