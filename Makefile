# Every target sets up what it needs, into .venv, and can be repeated.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: setup fmt check test run

setup: $(READY)

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "Pandal needs Python 3.11 or later with venv (Debian: apt install python3-venv), found: $$($(PYTHON) --version 2>&1)"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --disable-pip-version-check --progress-bar off -q -r requirements.lock
	$(BIN)/pip install --disable-pip-version-check -q --no-deps -e .
	@touch $@

fmt: $(READY)
	$(BIN)/ruff check --fix . && $(BIN)/ruff format .

check: $(READY)
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports

test: $(READY)
	$(BIN)/pytest -q -m 'not soak' $(ARGS)

run: $(READY)
	$(BIN)/pandal up $(ARGS)
