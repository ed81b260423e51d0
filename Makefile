# Every target makes the virtual environment first where it is missing; nothing is installed elsewhere.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := PIP_CACHE_DIR=$(CURDIR)/$(VENV)/cache PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/python -m pip

.PHONY: run test processes runtime campaigns unit lint bench prove clean
.DELETE_ON_ERROR:

run: $(VENV)/ready
	$(BIN)/python -m hermes.run

test: $(VENV)/ready
	$(BIN)/coverage erase
	$(MAKE) --no-print-directory --output-sync --jobs 3 lint processes runtime campaigns unit
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --fail-under=95

# Groups of about the same processor time. Three run at once, because each waits now and then.
# Coverage doubles the time of a test, so it measures only where it finds something new: campaigns
# run what the others cover, and the rest is not about hermes/.
processes:
	$(BIN)/coverage run -m pytest tests/integration

runtime:
	$(BIN)/coverage run -m pytest tests/runtime

campaigns:
	$(BIN)/python -m pytest tests/campaigns

unit:
	$(BIN)/coverage run -m pytest tests/contracts tests/unit --ignore=tests/unit/bench
	$(BIN)/python -m pytest tests/unit/bench tests/test_*.py

lint: $(VENV)/ready
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

bench: $(VENV)/ready
	$(BIN)/python -m bench all

prove: $(VENV)/ready
	$(BIN)/python -m pytest tests --prove -v

$(VENV)/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Hermes needs Python 3.11 or newer; try: make $(MAKECMDGOALS) PYTHON=python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(PIP) install --quiet --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) .coverage .coverage.* .mypy_cache .pytest_cache .ruff_cache .hypothesis
