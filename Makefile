# Every target makes the environment that it needs, in .venv-<interpreter>[-django-<version>]/.
#
#   PYTHON=python3.12      the interpreter; by default the first of the usual names that is 3.11+
#   DJANGO=6.0             the Django release; by default the newest that fits the interpreter
#   ARGS="..."             for `make test`: arguments for pytest; for `make demo`: for the demo
#   WORKERS=4              test processes at a time
#   COVERAGE=1             `make test` measures branches, over all databases, and demands 95 %
#   AGAIN=1                `make test` leaves out what is slow and the same on every pair
#   VEGA_DATABASES=sqlite  the databases to test on (sqlite,postgres,mariadb)
#   VEGA_REQUIRE=postgres  services whose absence is a failure (postgres,mariadb,redis,browser)

ifndef PYTHON
PYTHON := $(shell for python in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	$$python -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& { echo $$python; break; }; done)
endif

VENVS ?= .
TAG := $(shell $(PYTHON) -c 'import sys; print(sys.implementation.cache_tag)' 2>/dev/null)
VENV := $(VENVS)/.venv-$(TAG)$(if $(DJANGO),-django-$(DJANGO))
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq
REQUIREMENT := $(if $(DJANGO),"Django==$(DJANGO).*")

WORKERS ?= auto
COVERAGE_TOOL := $(BIN)/python -m coverage
PYTEST := $(if $(COVERAGE),$(COVERAGE_TOOL) run,$(BIN)/python) -m pytest -n $(WORKERS)
MATRIX := 3.11+5.2 3.12+6.0 3.13+6.1

.DEFAULT_GOAL := help
.PHONY: help env test test-matrix lint types imports demo bench build clean mysqlclient

help: ## show this
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' Makefile | while IFS='|' read -r target text; do \
		printf '  make %-12s %s\n' "$$target" "$$text"; done
	@echo
	@sed -n 's/^#   /  /p' Makefile

env: $(VENV)/.test mysqlclient ## make the environment of the tests

test: env ## run the tests: SQLite, then those that need a database on PostgreSQL and MariaDB
	@databases=$$($(BIN)/python -m tests.services) || exit 1; status=0; \
	$(if $(COVERAGE),$(COVERAGE_TOOL) erase;) \
	for database in $$databases; do \
		echo "== tests on $$database"; \
		if [ $$database = sqlite ]; then chosen="$(if $(AGAIN),not once)"; \
		else chosen="databases$(if $(AGAIN), and not once)"; fi; \
		VEGA_DB=$$database $(PYTEST) -m "$$chosen" $(ARGS) || status=1; \
	done; \
	$(if $(COVERAGE),$(COVERAGE_TOOL) combine --quiet && $(COVERAGE_TOOL) report || status=1;) \
	exit $$status

test-matrix: ## run the tests on each supported pair of Python and Django that is here
	@status=0; for pair in $(MATRIX); do \
		if python=$$(.ci/interpreter $${pair%+*}); then \
			echo "== Python $${pair%+*}, Django $${pair#*+}"; \
			$(MAKE) --no-print-directory test PYTHON=$$python DJANGO=$${pair#*+} || status=1; \
		else \
			echo "skipped: Python $${pair%+*} (neither under pyenv nor on PATH)"; \
		fi; \
	done; exit $$status

lint: $(VENV)/.lint ## check style and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.lint ## check types: mypy on the code, mypy and pyright on tests/typing
	$(BIN)/mypy $(wildcard django_vega example_project tests/typing)
ifneq ($(wildcard tests/typing),)
	$(BIN)/pyright --pythonpath $(BIN)/python
endif

imports: $(VENV)/.lint ## check that imports only point down
	$(BIN)/lint-imports --no-logo

demo: $(VENV)/.base ## see it work: ARGS="--scenario stampede --json --no-serve"
	@$(BIN)/python -m example_project.demo $(ARGS)

bench: env ## measure speed, as ratios against a reference within one run
	$(BIN)/python -m tests.benchmarks.fan_out $(ARGS)
	$(BIN)/python -m tests.benchmarks.hand_over

build: $(VENV)/.build ## build the wheel and the source distribution, and check them
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/twine check --strict dist/*
	$(BIN)/python .ci/check_distribution.py dist

clean: ## remove environments, builds and caches
	rm -rf .venv-* dist build htmlcov .coverage .coverage.* .mypy_cache .ruff_cache \
		.pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Each stamp says that one set of packages is in the environment; it is made again when
# pyproject.toml changes.

$(VENV)/.base: pyproject.toml
	@test -n "$(TAG)" || { \
		echo "no Python 3.11+ with venv and pip: PYTHON is $(or $(PYTHON),not found)"; exit 1; }
	@echo "making $(VENV)" >&2
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install --upgrade "pip>=25.1"
	@$(PIP) install --editable . $(REQUIREMENT)
	@touch $@

$(VENV)/.test $(VENV)/.lint $(VENV)/.build: $(VENV)/.%: $(VENV)/.base
	@echo "adding the packages of group $*"
	@$(PIP) install --group $* $(REQUIREMENT)
	@touch $@

# Asked again at each run: a library may have come since.
mysqlclient: $(VENV)/.test
	@if test -e $(VENV)/.mysqlclient; then exit 0; fi; \
	if ! pkg-config --exists libmariadb 2>/dev/null \
		&& ! pkg-config --exists mysqlclient 2>/dev/null; then \
		why="pkg-config finds neither libmariadb nor mysqlclient"; \
	elif $(PIP) install --editable '.[mysql]' $(REQUIREMENT); then \
		touch $(VENV)/.mysqlclient; \
	else \
		why="mysqlclient could not be built, see above"; \
	fi; \
	test -z "$$why" || echo "MariaDB tests will be skipped: $$why"
