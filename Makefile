# make run            builds an environment of its own and runs the tour: one instance, real jobs, every message shown
# make test           builds it and runs ruff, mypy and all tests that are not slow, of generated cases an eighth (CONTRIBUTING.md)
# make test-slow      runs the others: most tests of whole systems, of a browser, of disasters and of sabotages
# make compiled       builds the package with mypyc, which needs a C compiler, in a second environment beside the first
# make test-compiled  runs the tests of what is compiled, disasters, kept fuzz inputs, the system tests and the KTH proof there,
#                     with all generated cases
# make test-hosts     runs tests on hosts in namespaces, under a real Slurm, Flux and ssh (Linux, root); skips what is not there
# make fuzz           fuzzes all parsers, guided by coverage, TIME=10 seconds or RUNS= inputs each, then both sockets of an
#                     instance (Linux on x86-64)
# make docs           builds the site in build/site, in a third environment: guides, pages, every option, public names, search
# make check          runs ruff and mypy alone: format, rules, types
# make wheel          puts into dist/ a plain wheel, a compiled one for each of PYTHONS="python3.11 ..." and an sdist
# make check-wheel    tries each of dist/ in an empty environment, with and without extras (some minutes each)
PYTHON   ?= python3
PYTHONS  ?= $(PYTHON)
VENV     ?= .venv
COMPILED ?= .venv-compiled
BIN      := $(VENV)/bin
READY    := $(VENV)/.ready
# RERUNS=1 tries a test that fails once more, and names it
AGAIN    := $(if $(RERUNS),--reruns=$(RERUNS) -raR)
PYTEST   := -m pytest -n auto --maxprocesses=4 --dist=worksteal $(AGAIN)
QUICK    := -m 'not namespaces and not slow'
SOURCES  := $(shell find fluxsched -type f -not -name '*.pyc') pyproject.toml hatch_build.py
# In the order in which they run; yunikorn is plain, but drives a compiled engine; test_layers, test_rooms and the like
# read sources, which are the same
COMPILED_TESTS := $(addprefix tests/,core protocol resource jobs sched sim store config messaging executor services history \
  scheduler instance client clusters flux chaos fuzz system yunikorn) \
  tests/cli/test_program.py tests/test_alone.py

# Where this is set, each of the many processes of the tour and of the tests would compile all sources again
unexport PYTHONDONTWRITEBYTECODE

# What jobs over many hosts may take; the tests take a fraction of it
HOSTS_TIME_S ?= 1200

.PHONY: run test test-slow test-hosts check docs bench fuzz clean compiled test-compiled wheel check-wheel

run: $(READY)
	@. $(BIN)/activate && python examples/tour.py

# mypy runs beside the tests; if it finds something, that comes after their summary
test: $(READY)
	$(BIN)/ruff check .
	@echo "Running the tests that are not slow, and mypy beside them: this takes three to four minutes on two cores ..."
	@mkdir -p .mypy_cache; $(BIN)/mypy >.mypy_cache/said 2>&1 & types=$$!; \
	  $(BIN)/python $(PYTEST) $(QUICK); tests=$$?; \
	  wait $$types || { cat .mypy_cache/said; exit 1; }; exit $$tests

test-slow: $(READY)
	$(BIN)/python $(PYTEST) -m 'not namespaces and slow'

# One lab after the other: each has many processes of its own
test-hosts: $(READY)
	timeout --signal=INT $(HOSTS_TIME_S) $(BIN)/python -m pytest $(AGAIN) -m namespaces tests/engine/lab

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

docs: $(VENV)-docs/.ready
	$(VENV)-docs/bin/python rfc/site.py
	NO_MKDOCS_2_WARNING=1 $(VENV)-docs/bin/mkdocs build --quiet --strict -f rfc/mkdocs.yml
	@! grep -rlE '<(script|link|img|iframe)[^>]*(src|href)="?https?:|class="mermaid"' --include=*.html build/site || { echo "these pages fetch from elsewhere"; exit 1; }
	@echo "Open build/site/index.html"

bench: $(READY)
	$(BIN)/python benchmarks/all.py

fuzz: $(VENV)/.fuzz-ready
	$(BIN)/python -m tests.fuzz $(if $(RUNS),--runs $(RUNS)) $(if $(TIME),--time $(TIME))
	$(BIN)/python -m tests.fuzz.live $(if $(RUNS),--runs $(RUNS))

$(VENV)/.fuzz-ready: $(READY)
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[fuzz]'
	@touch $@

compiled: $(COMPILED)/.ready

# Safe path: else Python would import the plain package of this directory
test-compiled: compiled
	PYTHONSAFEPATH=1 FLUXSCHED_EXPECT=compiled $(COMPILED)/bin/python $(PYTEST) $(COMPILED_TESTS)

wheel: $(READY)
	rm -rf dist
	$(BIN)/python -m hatchling build -d dist
	for python in $(PYTHONS); do \
	  FLUXSCHED_COMPILE=1 $$python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist . || exit 1; done

check-wheel:
	$(PYTHON) tests/check_wheel.py

clean:
	rm -rf $(VENV) $(VENV)-* .fuzz build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fluxsched needs Python >= 3.11, $(PYTHON) is " + sys.version.split()[0] + "; say make PYTHON=...")'
	@echo "Building the environment $(VENV), once: this takes half a minute ..."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-compile -e '.[dev]'
	@touch $@

$(VENV)-docs/.ready: pyproject.toml
	@echo "Building the environment $(VENV)-docs, once: this takes a minute ..."
	@$(PYTHON) -m venv $(VENV)-docs
	@$(VENV)-docs/bin/pip install --quiet --disable-pip-version-check -e '.[docs]'
	@touch $@

$(COMPILED)/.ready: $(SOURCES)
	@echo "Building the environment $(COMPILED) and compiling with mypyc: this takes some minutes ..."
	@$(PYTHON) -m venv $(COMPILED)
	@FLUXSCHED_COMPILE=1 $(COMPILED)/bin/pip install --quiet --disable-pip-version-check '.[dev]'
	@touch $@
