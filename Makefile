# make demo: see packing leak, then be exact, on real text.   make test: run the tests.
# Both create .venv on first use. Another interpreter: make demo PYTHON=python3.12
PYTHON ?= python3
VENV := .venv
STAMP := $(VENV)/.installed
BIN := $(VENV)/bin

.PHONY: help venv demo test lint types format matrix compat torchless families census clean

help:
	@echo "make demo       train a tiny Qwen3.5 on packed text: the leak before and after, speed, picture"
	@echo "make test       all tests, on the releases of constraints.txt"
	@echo "make lint       ruff: rules and format"
	@echo "make types      mypy --strict"
	@echo "make matrix     every patch on every listed upstream release, from its wheel, without installing it"
	@echo "make compat     the tests of tests/compat in every cell of compat_matrix.yaml"
	@echo "make torchless  the parts that need no torch, on every Python"
	@echo "make families   docs/families.md: every recurrent family, measured on three releases each"
	@echo "make census     docs/census.md: every causal model type of three releases, stock and with patchwork"
	@echo "make format     rewrite the sources as ruff formats them"
	@echo "make clean      remove .venv, .nox and build output"

venv: $(STAMP)

# Some systems ship python3 and pip without ensurepip; the second line builds the same environment there.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "make demo and make test need Python 3.11 or later (TRL 1.16.0 does); this is $$($(PYTHON) --version)."; \
		echo "Name another one: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 2; }
	@$(PYTHON) -m venv --clear $(VENV) >/dev/null || { $(PYTHON) -m venv --clear --without-pip $(VENV) && \
		$(PYTHON) -m pip --python $(BIN)/python install --quiet pip; }
	@echo "Installing into $(VENV) (torch and what it needs: a few minutes the first time) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test,dev]'
	@touch $@

demo: $(STAMP)
	@$(BIN)/patchwork demo --out patchwork-demo

test: $(STAMP)
	@$(BIN)/python -m pytest --numprocesses=auto --maxprocesses=4 --dist=loadfile

lint: $(STAMP)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(STAMP)
	@$(BIN)/mypy

format: $(STAMP)
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

matrix: $(STAMP)
	@$(BIN)/patchwork matrix

compat: $(STAMP)
	@$(BIN)/nox --session compat

torchless: $(STAMP)
	@$(BIN)/nox --session torchless

families: $(STAMP)
	@$(BIN)/nox --session families

census: $(STAMP)
	@$(BIN)/nox --session census

clean:
	rm -rf $(VENV) .nox build dist *.egg-info patchwork-demo
