# What a newcomer needs is Python 3.11 or later and make; every target builds the rest in .venv first.

PYTHON     ?= python3
VENV       := .venv
PY         := $(VENV)/bin/python
PIP        := $(PY) -m pip --disable-pip-version-check -qq --no-input
CODE       := $(wildcard src tests tools benchmarks examples)

# The tests start hundreds of interpreters: without compiled files, which some machines ask for, each compiles everything.
export PYTHONDONTWRITEBYTECODE :=

# Settings of `make test`, `make torture` and `make bench`.
ARGS       ?=
DURATION_S ?= 120
SEED       ?=
SEEDS      ?= 20000
# One more than there are cores: many tests wait for clocks and servers.
WORKERS    ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)

.DEFAULT_GOAL := help
.PHONY: help demo test coverage again check rules bench torture simulate mutate docs pins clean

help:
	@echo "make demo      watch a worker survive 25 kills without sending anything twice"
	@echo "make test      run the tests                         (ARGS='-k name', WORKERS=0 for one process)"
	@echo "make coverage  the same, failing where a branch of the pure core is not covered"
	@echo "make again     what failed in the last run, by itself"
	@echo "make check     format, lint, types, imports, dependencies, rules, generated docs"
	@echo "make rules     which rule of the specification is proved by how many tests"
	@echo "make bench     measure, beside other libraries"
	@echo "make torture   crash and kill at random              (DURATION_S=$(DURATION_S), SEED=...)"
	@echo "make simulate  many seeded simulations of the flows  (SEEDS=$(SEEDS))"
	@echo "make mutate    break the pure core one line at a time: does a test notice?"
	@echo "make docs      write the generated pages of the documentation again"
	@echo "make pins      resolve requirements/*.in again       (needs uv)"
	@echo "make clean     remove everything that the targets above made, .venv included"

demo: $(VENV)/.run
	@$(VENV)/bin/counterfoil demo $(ARGS)

test: $(VENV)/.dev
	$(PY) -m pytest -n $(WORKERS) --dist worksteal $(COVER) $(ARGS)

coverage again: COVER := --cov=src/counterfoil/protocol --cov=src/counterfoil/effects --cov-branch --cov-report=term-missing:skip-covered --cov-fail-under=100
coverage: test

again: $(VENV)/.dev
	$(PY) tools/again.py --cov-append $(COVER)

check: $(VENV)/.dev
	$(PY) -m ruff format --check --quiet $(CODE)
	$(PY) -m ruff check --quiet $(CODE)
	$(PY) -m mypy
	$(VENV)/bin/basedpyright
	$(VENV)/bin/lint-imports --no-logo
	$(VENV)/bin/deptry src
	$(PY) tools/rules.py --quiet
	$(PY) tools/docs.py --check

rules: $(VENV)/.run
	@$(PY) tools/rules.py

bench: $(VENV)/.bench
	$(PY) -m benchmarks --plot build/bench.png $(ARGS)

torture: $(VENV)/.dev
	$(PY) -m tests.torture --duration-s $(DURATION_S) $(if $(SEED),--seed $(SEED)) $(ARGS)

simulate: $(VENV)/.dev
	$(PY) -m tests.explore.campaign $(SEEDS)

mutate: $(VENV)/.mutate
	$(PY) tools/mutants.py $(ARGS)

docs: $(VENV)/.run
	$(PY) tools/docs.py

pins:
	cd requirements && for set in run dev bench mutate; do \
	    uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --quiet \
	        --upgrade $$set.in -o $$set.txt || exit 1; \
	done

clean:
	rm -rf $(VENV) build dist mutants htmlcov .coverage .coverage.* .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# One environment; each stamp says which set of pins is in it.

$(VENV)/.made:
	@command -v $(PYTHON) >/dev/null || { echo "There is no '$(PYTHON)' here: install Python 3.11 or later, or say PYTHON=/path/to/python." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or later is needed, and '$(PYTHON)' is $$($(PYTHON) --version 2>&1): say PYTHON=/path/to/python." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "'$(PYTHON)' cannot make a virtual environment: install its venv module (python3-venv on Debian)." >&2; exit 1; }
	@echo "Making $(VENV) ..." >&2
	@$(PYTHON) -m venv --clear $(VENV)
	@touch $@

$(VENV)/.run: $(VENV)/.made requirements/run.txt pyproject.toml
	@echo "Installing what counterfoil needs ..." >&2
	@$(PIP) install --require-hashes -r requirements/run.txt
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.run requirements/dev.txt
	@echo "Installing what the tests and checks need ..." >&2
	@$(PIP) install --require-hashes -r requirements/dev.txt
	@touch $@

$(VENV)/.bench: $(VENV)/.dev requirements/bench.txt
	@echo "Installing what is measured beside counterfoil ..." >&2
	@$(PIP) install --require-hashes -r requirements/bench.txt
	@touch $@

$(VENV)/.mutate: $(VENV)/.dev requirements/mutate.txt
	@echo "Installing what makes mutants ..." >&2
	@$(PIP) install --require-hashes -r requirements/mutate.txt
	@touch $@
