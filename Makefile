# make book, make test: each sets up all it needs in .venv on first use. Only Python 3.11+ and make are required.
PYTHON  ?= python3
PROFILE ?= laptop
JOBS    ?= 0
VENV    := .venv
BIN     := $(VENV)/bin
READY   := $(VENV)/.ready
export JUPYTER_PLATFORM_DIRS = 1
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: help book run test check lab bench clean
.DEFAULT_GOAL := help

help:  ## show this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10
	@echo 'PROFILE=smoke|laptop|desktop|paper (now $(PROFILE)), JOBS=N cores at most (0: all)'

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "repalign needs Python 3.11 or newer; $(PYTHON) is `$(PYTHON) --version`. Use: make PYTHON=python3.12 ..."; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "setting up $(VENV) (once; a few minutes)"
	@$(BIN)/python -m pip install -qq -c constraints.txt -e '.[bench,book,dev,dist,features]'
	@touch $@

run: $(READY)  ## execute the notebooks at PROFILE
	@$(BIN)/repalign run --profile $(PROFILE) --jobs $(JOBS)

book: $(READY)  ## run what has changed and render _build/html
	@$(BIN)/repalign run --profile $(PROFILE) --jobs $(JOBS)
	@$(BIN)/repalign book --profile $(PROFILE)

test: check  ## check, unit and property tests, every notebook at smoke, the built book in a browser
	@$(BIN)/python -m pytest -n auto

check: $(READY)  ## ruff, mypy --strict, import-linter, notebooks free of outputs, criteria as fixed
	@$(BIN)/ruff check -q src tests benchmarks notebooks
	@$(BIN)/ruff format -q --check src tests benchmarks notebooks
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/python tests/clean_notebooks.py
	@$(BIN)/repalign claims --check

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
