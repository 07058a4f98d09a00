# make book, make test: each sets up all it needs in .venv on first use. Only Python and make are required.
PYTHON  ?= python3
PROFILE ?= laptop
JOBS    ?= 0
BUDGET  ?= 10m
VENV    := .venv
BIN     := $(VENV)/bin
READY   := $(VENV)/.ready
# What takes a minute on two cores: examples in docstrings, the measures against their mathematics, verdicts.
QUICK   := src $(patsubst %,tests/test_%.py,alignment covariance kernels linear probes propagation) \
           $(patsubst %,tests/press/test_%.py,cards claims effects settings style tables)
export JUPYTER_PLATFORM_DIRS = 1
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: help read book run quick test check verify lab bench clean
.DEFAULT_GOAL := help

help:  ## show this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10
	@echo 'PROFILE=smoke|laptop|desktop|paper (now $(PROFILE)), JOBS=N cores at most (0: all), BUDGET=10m'

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11, 5))' \
	  || { echo "repalign's pins need Python 3.11.5 or newer; $(PYTHON) is `$(PYTHON) --version`. Use: make PYTHON=python3.12 ..."; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "setting up $(VENV) (once; a few minutes)"
	@$(BIN)/python -m pip install -qq -c constraints.txt -e '.[bench,book,dev,dist,features]'
	@touch $@

read: $(READY)  ## render _build/html from the records alone: nothing is trained
	@$(BIN)/repalign book --records --jobs $(JOBS)

book: $(READY)  ## run what has changed at PROFILE and render _build/html
	@$(BIN)/repalign run --profile $(PROFILE) --jobs $(JOBS)
	@$(BIN)/repalign book --profile $(PROFILE)

run: $(READY)  ## execute the pages at PROFILE, without rendering
	@$(BIN)/repalign run --profile $(PROFILE) --jobs $(JOBS)

quick: check  ## for every commit: check, examples in docstrings, tests of measures and verdicts
	@$(BIN)/python -m pytest -q -n auto $(QUICK)

test: check  ## what CI runs: check, all tests, every page at smoke, the built book in a browser
	@$(BIN)/python -m pytest -n auto

check: $(READY)  ## ruff, mypy --strict, import-linter, clean pages; claims, criteria, records agree
	@$(BIN)/ruff check -q src tests benchmarks notebooks
	@$(BIN)/ruff format -q --check src tests benchmarks notebooks
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/python tests/clean_notebooks.py
	@$(BIN)/repalign claims --check

verify: $(READY)  ## compute some recorded cells again within BUDGET and compare
	@$(BIN)/repalign verify --budget $(BUDGET) --jobs $(JOBS)

lab: $(READY)  ## JupyterLab on the notebooks; a double-click opens a .py page as a notebook
	@JUPYTER_CONFIG_PATH=$(CURDIR)/.jupyter $(BIN)/jupyter lab notebooks

bench: $(READY)  ## speed against what a user would pick instead, as ratios; kept in records/bench
	@test -x $(VENV)/neural-tangents/bin/python || { $(PYTHON) -m venv $(VENV)/neural-tangents && \
	  $(VENV)/neural-tangents/bin/python -m pip install -qq neural-tangents==0.6.5 jax==0.4.25 jaxlib==0.4.25 'numpy<2' 'scipy<1.13'; } \
	  || echo "neural-tangents does not install here; its rows will say so"
	@$(BIN)/repalign bench

clean:  ## remove what was built; the environment and the cache stay
	rm -rf build _build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
