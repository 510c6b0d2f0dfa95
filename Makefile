# make run   builds an environment of its own and runs the tour: one instance, real jobs, every message shown
# make test  builds it and runs ruff, mypy and all tests
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: run test lint bench clean

run: $(READY)
	@$(BIN)/python examples/tour.py

test: $(READY) lint
	$(BIN)/python -m pytest -n auto --maxprocesses=4 --dist=worksteal

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: $(READY)
	$(BIN)/python benchmarks/all.py

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fluxsched needs Python >= 3.11, $(PYTHON) is " + sys.version.split()[0] + "; say make PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@
