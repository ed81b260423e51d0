# Every target creates .venv first if there is none.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN := $(BIN)/python
CHECK_PYTHON = $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
  { echo "Hermes needs Python 3.11 or newer; try: make $(MAKECMDGOALS) PYTHON=python3.11"; exit 1; }
PIP := PIP_CACHE_DIR=$(CURDIR)/$(VENV)/cache PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/python -m pip

# Compiled modules are kept, whatever the environment says: the tests start Hermes a thousand times.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run test coverage processes-1 processes-2 runtime postgres http browser unit campaigns benchmarks lint bench prove clean
.DELETE_ON_ERROR:

# ARGS are options and commands of hermes, as in: make run ARGS="setup"
run: $(VENV)/bot
	@$(BIN)/hermes $(ARGS)

# Three groups at once, because each waits now and then; the longest first.
test: $(VENV)/ready
	$(MAKE) --no-print-directory --output-sync --keep-going --jobs 3 \
	  processes-1 postgres processes-2 campaigns runtime unit browser http benchmarks lint

processes-1:
	$(RUN) -m pytest tests/integration/[a-z]*/ \
	  $(filter-out $(wildcard tests/integration/test_bench*.py), \
	  $(wildcard tests/integration/test_[a-m]*.py))

processes-2:
	$(RUN) -m pytest tests/integration/test_[n-z]*.py

runtime:
	$(RUN) -m pytest tests/runtime -m "not postgres"

# Contracts of the store and a part of the runtime's tests; `--prove` runs all of them.
postgres:
	$(RUN) -m pytest tests/contracts tests/runtime -m postgres

http:
	$(RUN) -m pytest tests/http

# In Chromium: the one of the machine, or else one from npm in build/browser.
browser:
	$(RUN) -m pytest tests/browser

unit:
	$(RUN) -m pytest tests/contracts tests/unit --ignore=tests/unit/bench -m "not postgres"

campaigns:
	$(BIN)/python -m pytest tests/campaigns --scoreboard build

benchmarks:
	$(BIN)/python -m pytest tests/unit/bench tests/integration/test_bench*.py tests/test_*.py

# Measuring coverage takes as long again, so it is not part of `test`. Campaigns run what the others
# cover, and the benchmarks' tests run no hermes/.
coverage: $(VENV)/ready
	$(BIN)/coverage erase
	$(MAKE) --no-print-directory --output-sync --keep-going --jobs 4 RUN="$(BIN)/coverage run" \
	  processes-1 processes-2 runtime postgres http unit
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --fail-under=95

lint: $(VENV)/ready
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

bench: $(VENV)/ready
	$(BIN)/python -m bench all

prove: $(VENV)/ready
	$(BIN)/python -m pytest tests --prove -v --scoreboard build

# What `make run` needs; its packages come from the package cache of the user.
$(VENV)/bot: pyproject.toml constraints.txt
	@$(CHECK_PYTHON)
	@echo "Installing Hermes into $(VENV); this happens once."
	@$(PYTHON) -m venv $(VENV)
	@PIP_CONSTRAINT=$(CURDIR)/constraints.txt PIP_DISABLE_PIP_VERSION_CHECK=1 \
	  $(BIN)/python -m pip install --no-compile --editable '.[bot,http]'
	@touch $@

# What everything else needs, which includes the bot.
$(VENV)/ready: pyproject.toml constraints.txt
	@$(CHECK_PYTHON)
	$(PYTHON) -m venv $(VENV)
	PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(PIP) install --quiet --editable '.[dev]'
	touch $(VENV)/bot $@

clean:
	rm -rf $(VENV) .coverage .coverage.* .mypy_cache .pytest_cache .ruff_cache .hypothesis
