# Everything a fresh machine needs is Python 3.11 (or newer, see pyproject.toml) and make.
#   make demo   environment, install, service and dashboard with recorded traffic; prints the address; Ctrl-C stops all
#   make test   environment, linters, type checks, tests
#   make bench  environment, benchmarks

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEMO_DB ?= demo-data/demo.duckdb
PYTEST_ARGS ?=

.PHONY: help install browser demo test lint bench clean

help:
	@sed -n 's/^#   //p' Makefile

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v < (3, 14) else "pdtrace needs Python 3.11 to 3.13; %s is %d.%d. Say which: make PYTHON=/path/to/python3.11 ..." % ((sys.executable,) + v))'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[all,dev]'
	@touch $(STAMP)

# The browser tests want a Chromium. Debian's is taken where we may install it; elsewhere those tests skip and say so.
browser:
	@if command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "installing chromium for the browser tests"; \
		(apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core) >/dev/null 2>&1 \
		|| echo "chromium could not be installed: the browser tests will skip"; \
	else echo "no chromium here: the browser tests will skip (install Debian's chromium to run them)"; fi

demo: install
	@mkdir -p $(dir $(DEMO_DB))
	@$(BIN)/python -m pdtrace.demo --up --db $(DEMO_DB) --backfill 60

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: install browser lint
	$(BIN)/python -m pytest $(PYTEST_ARGS)

bench: install
	$(BIN)/python benchmarks/run.py

clean:
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
