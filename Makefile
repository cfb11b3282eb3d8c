# Every target sets up what it needs by itself: a virtual environment in .venv, with Python 3.11 or newer.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo simulate picture test test-all quick lint docs bench soak reproduce-themis reproduce-pollux reproduce-tuning reproduce-gavel reproduce-testbed reproduce-fidelity reproduce-forecast reproduce-curves \
	reproduce-shockwave reproduce-fair-finish clean

VENV := .venv
BIN := $(VENV)/bin
PIP := @echo 'Installing into $(VENV) (once)'; $(BIN)/python -m pip install -qq --disable-pip-version-check
# A worker that dies ends the run, which names the test; xdist's replacement for it would wait without limit.
# More workers than two cores: those with processes wait most of the time, those with the Ray cluster and the networks longest.
WORKERS ?= $(if $(filter test-all,$(MAKECMDGOALS)),4,3)
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup --max-worker-restart 0
# Tests start hundreds of processes; without byte code each would compile the package again.
export PYTHONDONTWRITEBYTECODE :=
SOURCES := src tests benchmarks reproduction examples website hatch_build.py

help: ## Print this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.installed ## Three users' real training on eight virtual GPUs, live: a table, and out/live/report.html
	$(BIN)/themis demo --out out/live

simulate: $(VENV)/.installed ## Simulate ten days under four policies: a table, and out/demo/report.html
	$(BIN)/themis simulate --workload demo --cluster demo-32 --policy fair_finish,themis,drf,gandiva --seeds 0-9 --set step_s=60 --out out/demo

picture: simulate ## Draw the README's picture of out/demo/report.html (Chromium)
	chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --window-size=1180,1345 --screenshot=out/demo/report.png file://$(CURDIR)/out/demo/report.html
	$(BIN)/python tests/web/photographs.py out/demo/report.png docs/img/demo.png

test: TIERS := not bench and not long
test-all: TIERS := not bench
test: $(VENV)/.dev $(VENV)/.torch ## Lint, and the tests of all tiers but the long one
test-all: $(VENV)/.dev $(VENV)/.torch ## Lint and all tests
test test-all:
	@# `lint` runs at the same time as the tests and prints its findings when it ends. `make`, not the variable: a line with that runs in a dry run too.
	@# A failed test fails the run, unless tests/unsteady.txt names it: then it runs a second time, alone.
	@( out=$$(make --no-print-directory lint 2>&1) || { printf '%s\n' "$$out" '`make lint` failed'; exit 1; } ) & lint=$$!; \
	  THEMIS_TEST_COSTS=.pytest_cache/costs $(PYTEST) -m "$(TIERS)"; code=$$?; \
	  if [ $$code -eq 1 ] && [ -s .pytest_cache/unsteady ]; then \
	    echo 'Running the tests that are known as unsteady again'; \
	    $(BIN)/python -m pytest -m "$(TIERS)" @.pytest_cache/unsteady; code=$$?; \
	  fi; \
	  wait $$lint || { echo '`make lint` failed; its output is above'; exit 1; }; exit $$code

quick: $(VENV)/.dev ## The tests that take less than a second each
	$(PYTEST) -m "not slow and not bench"

lint: $(VENV)/.dev ## Style, types, directions of imports, links and words
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check --quiet $(SOURCES)
	$(BIN)/mypy --strict
	$(BIN)/lint-imports --no-logo
	$(BIN)/python tests/house/lint.py
	$(BIN)/python website/rooms.py --check

docs: $(VENV)/.docs ## The documentation as a site in out/site, built strictly: a link that leads nowhere is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet

bench: $(VENV)/.bench ## Measurements, as ratios against references in the same run; writes docs/benchmarks.md (long)
	$(BIN)/python -m pytest -m bench || [ $$? -eq 5 ]
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 RAYON_NUM_THREADS=1 $(BIN)/python benchmarks/write_tables.py

KILLS ?= 200
RAY_KILLS ?= $(KILLS)
HOME_KILLS ?= 300
HOME_APPS ?= 2000
SIMULATED ?= 10000
soak: $(VENV)/.torch ## SIMULATED=10000 histories of the service, then kill arbiter, agents, jobs at KILLS=200 moments, one data directory 300 times, damage 200 journals, fail 10,000 machines (hours)
	THEMIS_SIMULATED_SEEDS=$(SIMULATED) THEMIS_SIMULATED_MUTATIONS=300 $(PYTEST) tests/simulation
	THEMIS_SIMULATED_FAULTS=10000 $(PYTEST) tests/sim/test_simulated_faults.py
	THEMIS_RAY_FORMS=all $(PYTEST) tests/client/test_tune_cluster.py tests/service/test_ray_life.py tests/machines/test_executor_kit.py
	THEMIS_SEEDS=all $(PYTEST) tests/fairness tests/optimize tests/service/test_fault_places.py
	THEMIS_LOOKS=all $(PYTEST) tests/web/test_console.py tests/web/test_console_pages.py
	THEMIS_PAGE_PHASES=all $(PYTEST) tests/service/test_pages.py
	THEMIS_CONFORMANCE_SEEDS=3 $(PYTEST) tests/policies/test_conformance.py tests/policies/test_conformance_kit.py tests/policies/test_gavel_policies.py
	THEMIS_DELIVERY_SEEDS=100 $(PYTEST) tests/policies/test_delivery.py
	THEMIS_FAULT_TRIALS=$(KILLS) THEMIS_RAY_FAULT_TRIALS=$(RAY_KILLS) $(PYTEST) tests/service/test_faults.py
	$(VENV)/bin/python benchmarks/bench_consoles.py --seconds 600
	THEMIS_FOLDS=20 THEMIS_DAMAGES=200 $(PYTEST) tests/service/test_fold.py tests/service/test_damage.py
	THEMIS_HOME_KILLS=$(HOME_KILLS) THEMIS_HOME_APPS=$(HOME_APPS) $(PYTEST) -k acknowledged tests/service/test_one_home.py

reproduce-themis: $(VENV)/.installed ## The Themis paper's claims, measured: docs/reproduction/themis.md (hours)
	$(BIN)/python reproduction/themis_nsdi20.py

reproduce-tuning: $(VENV)/.torch ## An Optuna and a Ray Tune sweep on one Ray cluster: what each held and found (minutes)
	$(BIN)/python reproduction/tuning.py

reproduce-gavel: $(VENV)/.installed ## The Gavel paper's claims and traces, measured: docs/reproduction/gavel.md (an hour)
	$(BIN)/python reproduction/gavel_osdi20.py

reproduce-forecast: $(VENV)/.installed ## Forecasts of ends and of dynamic jobs against what happened: docs/reproduction/declared-speeds.md, forecast.md (two minutes)
	$(BIN)/python reproduction/declared_speeds.py
	$(BIN)/python reproduction/forecast.py

reproduce-curves: $(VENV)/.installed ## Curve stopping on seven families of curves: docs/reproduction/curves.md (four minutes)
	$(BIN)/python reproduction/curve_stopping.py

reproduce-shockwave: $(VENV)/.installed ## Shockwave's trace compared with its published results: docs/reproduction/shockwave.md (minutes)
	$(BIN)/python reproduction/shockwave_nsdi23.py

reproduce-pollux: $(VENV)/.installed ## Pollux' workloads, rigid and with jobs that scale, compared with the artifact's: docs/reproduction/pollux.md (a quarter of an hour)
	OMP_NUM_THREADS=1 $(BIN)/python reproduction/pollux_osdi21.py

reproduce-fair-finish: $(VENV)/.installed ## fair_finish compared with its rivals on the papers' grounds: docs/reproduction/fair-finish.md (an hour)
	OMP_NUM_THREADS=1 $(BIN)/python reproduction/fair_finish.py

reproduce-testbed: $(VENV)/.installed ## Jobs of each paper as real processes, next to their simulations: docs/reproduction/testbed.md (an hour)
	$(BIN)/python reproduction/testbed.py

reproduce-fidelity: $(VENV)/.installed ## One workload live and simulated, what-ifs and what then happened: docs/reproduction/fidelity.md (an hour)
	$(BIN)/python reproduction/fidelity.py
	$(BIN)/python reproduction/fidelity_forward.py

clean: ## Remove the virtual environment, caches and results
	rm -rf $(VENV) out build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests benchmarks reproduction examples -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@for candidate in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	  if $$candidate -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
	    echo "Setting up $(VENV) with $$($$candidate --version)"; exec $$candidate -m venv $(VENV); fi; done; \
	echo "No Python 3.11 or newer with the venv module was found; install one (Debian: apt install python3-venv)." >&2; exit 1

$(VENV)/.installed: pyproject.toml | $(BIN)/python
	$(PIP) -e .
	@touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	$(PIP) -e '.[dev]'
	@touch $@ $(VENV)/.installed

# For the tests with real training jobs, Ray and Optuna. `make test TORCH=no` skips PyTorch's tests, for a disk that has no room for it.
$(VENV)/.torch: pyproject.toml | $(VENV)/.dev
	$(PIP) -e '.[dev,docs,tune,optuna]'
	$(if $(filter no,$(TORCH)),@echo 'Without PyTorch',$(PIP) -e '.[dev,torch,frameworks]')
	@$(if $(filter no,$(TORCH)),true,touch $@ $(VENV)/.installed)

$(VENV)/.docs: pyproject.toml | $(BIN)/python
	$(PIP) -e '.[docs]'
	@touch $@ $(VENV)/.installed

$(VENV)/.bench: pyproject.toml | $(BIN)/python
	$(PIP) -e '.[dev,bench,ray]'
	@touch $@ $(VENV)/.dev $(VENV)/.installed
