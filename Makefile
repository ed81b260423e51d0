# Every target makes the virtual environment first where it is missing; nothing is installed elsewhere.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := PIP_CACHE_DIR=$(CURDIR)/$(VENV)/cache PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/python -m pip

.PHONY: run test campaigns processes the-rest lint bench prove clean
.DELETE_ON_ERROR:

run: $(VENV)/ready
	$(BIN)/python -m hermes.run

test: lint
	$(BIN)/coverage erase
	$(MAKE) --no-print-directory --output-sync --jobs 3 campaigns processes the-rest
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --fail-under=95

# Three at once: most of the time the disk is waited for. Campaigns try again what the others cover.
campaigns:
	$(BIN)/python -m pytest tests/campaigns
	$(BIN)/coverage run -m pytest tests/contracts

processes:
	$(BIN)/coverage run -m pytest tests/integration

the-rest:
	$(BIN)/coverage run -m pytest tests/runtime tests/unit tests/test_*.py

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
