# Each target makes what it needs, from nothing but Python and make. Nothing is installed outside this folder.

PYTHON ?= python3
VENV   := .venv
BENCH  := .venv-bench
RUN    := $(VENV)/bin/python -m
# Arguments for pytest: make test ARGS="-k order -x"
ARGS   ?=
# Processes that run the tests; torch gets one thread in each.
WORKERS ?= 2

PLUGINS := $(patsubst %/pyproject.toml,%,$(wildcard plugins/*/pyproject.toml))
PROJECT := pyproject.toml constraints.txt $(PLUGINS:%=%/pyproject.toml)

.DEFAULT_GOAL := help
.PHONY: help demo test lint types layers tests soak format bench peers clean

help:  ## this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/\1 \2/p' $(firstword $(MAKEFILE_LIST)) | while read -r name what; do printf 'make %-8s %s\n' $$name "$$what"; done

demo: $(VENV)/.demo  ## install hookbus and a plugin, list the plugins, train a small network on handwritten digits
	@echo; echo '$$ hookbus plugins'
	@$(VENV)/bin/hookbus plugins
	@echo; echo '$$ python examples/digits.py'
	@$(VENV)/bin/python examples/digits.py --out runs/demo

test: lint types layers tests  ## everything that must hold: lint, types, layers, tests

lint: $(VENV)/.dev  ## ruff: rules and format
	$(RUN) ruff check .
	$(RUN) ruff format --check .

types: $(VENV)/.dev  ## mypy, strict
	$(RUN) mypy
	$(RUN) mypy $(PLUGINS:%=%/src)

layers: $(VENV)/.dev  ## import-linter: imports point down only
	$(VENV)/bin/lint-imports

tests: $(VENV)/.dev  ## pytest: the tests of hookbus and of its plugins
	OMP_NUM_THREADS=1 $(RUN) pytest -n $(WORKERS) $(ARGS)

soak: $(VENV)/.dev  ## kill 300 trainings at random places, take them up again, and compare what comes out
	PYTHONPATH=. $(RUN) tests.checkpoint.faults --trials 300

format: $(VENV)/.dev  ## let ruff mend what it can
	$(RUN) ruff check --fix .
	$(RUN) ruff format .

bench: peers  ## run the benchmarks one after the other, beside other training loops
	@failed=; for script in benchmarks/*.py; do \
		echo; echo "== $$script"; $(BENCH)/bin/python $$script || failed="$$failed $$script"; \
	done; test -z "$$failed" || { echo "failed:$$failed"; exit 1; }

peers: $(BENCH)/.installed  ## install what the benchmarks compare with, in an environment of its own

clean:  ## remove environments, caches and runs
	rm -rf $(VENV) $(BENCH) build dist runs lightning_logs *_cache .*_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Environments. An empty file in each says what has been installed; it is older than pyproject.toml when that has changed.

%/.torch: constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("hookbus needs Python 3.10 or later, and $(PYTHON) is " + sys.version.split()[0] \
	  + "; name another one: make PYTHON=python3.11") if sys.version_info < (3, 10) else None'
	$(PYTHON) -m venv $*
	$*/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	$*/bin/python -m pip install --quiet -c constraints.txt torch
	@touch $@

$(VENV)/.dev: $(VENV)/.torch $(PROJECT)
	$(RUN) pip install --quiet -c constraints.txt --group dev -e . $(PLUGINS:%=-e %)
	# The weights for examples/gradcam_faces.py: only the files are used, and what the package asks for is long out of date.
	$(RUN) pip install --quiet --no-deps facenet-pytorch==2.6.0
	@touch $@

$(VENV)/.demo: $(VENV)/.torch $(PROJECT)
	$(RUN) pip install --quiet -c constraints.txt -e '.[examples]' $(PLUGINS:%=-e %)
	@touch $@

$(BENCH)/.installed: $(BENCH)/.torch $(PROJECT) benchmarks/requirements.txt
	$(BENCH)/bin/python -m pip install --quiet -c constraints.txt -r benchmarks/requirements.txt -e .
	@touch $@
