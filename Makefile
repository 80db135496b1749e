# `make install` once; every other target installs first if pyproject.toml or constraints.txt has changed.
PYTHON ?= python3
# An extra package index for torch, e.g. PyTorch's CPU wheels: see README.md.
TORCH_INDEX ?=
# Of the tests, each of which may start some processes more.
WORKERS ?= 2

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help install demo test prove lint bench collected docs first-five-minutes
.DELETE_ON_ERROR:

help:
	@echo "make install   create $(VENV) with the package, its extras and the tools"
	@echo "make demo      plan a real model for 64 GPUs, write its code, run the same plan of a small model on four processes, compare"
	@echo "make test      lint, then run the tests"
	@echo "make prove     run emitted scripts that are not as they are on record; record what is exact, and prices"
	@echo "make lint      format, lint, types, import rule"
	@echo "make docs      write the pages that are generated, and build the site, strictly, into site/"
	@echo "make first-five-minutes   type README.md's first five minutes into a new environment"
	@echo "make bench     run the registered benchmarks"

install: $(STAMP)

# The stamp is written last: an interrupted install is taken up again by the next one.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "make install: Python 3.11 or newer is needed, and $(PYTHON) is $$($(PYTHON) --version 2>&1); try 'make install PYTHON=python3.12'" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) -c constraints.txt -e '.[hf,jax,dev,docs]'
	@touch $@

demo: install
	$(BIN)/python -m examples.demo

test: install
	$(MAKE) -j 2 lint collected
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# Beside lint, which keeps one core: pytest rewrites the assertions of every file, and finds them rewritten later.
collected: install
	@$(BIN)/python -m pytest --collect-only -q >$(VENV)/.collected || { cat $(VENV)/.collected; exit 1; }

prove: install
	MESHWRIGHT_PROVE=$${MESHWRIGHT_PROVE:-1} $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile tests/backends/torch_ tests/backends/jax_ tests/planner/test_twin.py tests/benchmarks/test_prices_on_record.py

lint: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: install
	$(BIN)/python -m benchmarks

docs: install
	$(BIN)/python -m pages
	$(BIN)/mkdocs build --strict --quiet

# Nothing of ours is installed before: that is what it shows.
first-five-minutes:
	$(if $(TORCH_INDEX),PIP_EXTRA_INDEX_URL=$(TORCH_INDEX)) $(PYTHON) .ci/first_five_minutes
