# Each goal sets up what it needs, once: a virtual environment in .venv, pinned by constraints.txt.
PYTHON ?= python3.11
BIN := .venv/bin
# A machine whose Python 3.11 is called python3 will do as well.
FOUND := $(shell command -v $(PYTHON) || command -v python3)

.PHONY: help setup demo test lint experiments docs clean
help:            ## this list
	@grep -hE '^[a-z]+:.*##' Makefile | sed -E 's/:[^#]*##/\t/' | expand -t 14

setup: .venv/.installed-dev   ## the virtual environment with everything the other goals need

.venv/.installed: pyproject.toml constraints.txt
	@$(FOUND) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fedsense needs Python 3.11 or newer, and $(FOUND) is " + sys.version.split()[0] + "; say make PYTHON=/path/to/python3.11")'
	test -x $(BIN)/python || $(FOUND) -m venv .venv
	$(BIN)/python -m pip install -q --disable-pip-version-check -e . -c constraints.txt
	@touch $@

.venv/.installed-dev: .venv/.installed
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[dev]' -c constraints.txt
	@touch $@

demo: .venv/.installed   ## a federation of very different clients learns, in about a minute
	@$(BIN)/fedsense demo

test: setup lint   ## linters, types and all tests but the long experiments
	$(BIN)/python -m pytest -m 'not experiment' -n auto --dist worksteal

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

experiments: setup   ## the long experiments; what they gave stands in docs/results
	$(BIN)/python -m pytest -m experiment -s

docs: setup      ## the pages of docs that the program writes, anew
	$(BIN)/python -m fedsense.cli.reference docs

clean:           ## the environment and caches
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis
