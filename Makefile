# Everything runs in .venv, made by `make setup`; PYTHON= names another interpreter to make it from.
PYTHON ?= python3
BIN := .venv/bin
PYTEST_WORKERS ?= 2
GPU_PYTHON ?= $(or $(wildcard $(BIN)/python),python3)
GPU_OUT ?= results/speed

.DEFAULT_GOAL := help
.PHONY: help setup demo test slurm-test lint format tables report soak gpu audit clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: .venv/.ready  ## make .venv with the pinned packages of constraints.txt (about 3 GB on a CPU)

.venv/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev,slurm]"
	@touch $@

demo: setup  ## train RoPE and TAPE on addition at smoke scale and show both heatmaps (under 10 minutes on 2 cores)
	$(BIN)/python -m tape_exp.demo

test: setup  ## run the tests
	$(BIN)/python -m pytest -n $(PYTEST_WORKERS)

slurm-test: setup  ## run sweeps on a SLURM started for the test, and runs over two hosts (needs slurm-wlm, munge and root)
	$(BIN)/python -m pytest -m "slurm or hosts" tests/slurm tests/hosts tests/training/test_heartbeat.py

lint: setup  ## ruff, mypy and import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache --no-logo

format: setup  ## rewrite the sources in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

tables: setup  ## draw every table and figure from the committed records
	$(BIN)/python -m tape_exp.paper render

report: tables  ## write report/index.html: all tables, figures and runs on one page, which opens from disk
	$(BIN)/python -m tape_exp.report

soak: setup  ## kill small runs 50 times, compare them with undisturbed ones, write results/reliability.md (15 minutes)
	$(BIN)/python -m tape_exp.soak --kills 50

gpu:  ## kernel tests, speed and two small runs on a GPU (9 minutes); GPU_PYTHON= and GPU_OUT= choose python and folder
	@mkdir -p $(GPU_OUT)
	$(GPU_PYTHON) -m pytest -c /dev/null --rootdir . --noconftest -p no:cacheprovider -q tests/models/test_kernels.py \
		> $(GPU_OUT)/kernel-tests.txt 2>&1; tail -n 3 $(GPU_OUT)/kernel-tests.txt
	timeout 270 $(GPU_PYTHON) -m tape_exp.speed --out $(GPU_OUT)
	@if $(GPU_PYTHON) -c "import hydra, lightning, wandb, scipy" 2> /dev/null; then \
		timeout 150 $(GPU_PYTHON) train.py model=tape scale=small trainer=gpu logger=none runs=$(GPU_OUT)/runs; \
		timeout 90 $(GPU_PYTHON) train.py task=c4 model=tape scale=small scale.text=builtin task.optim.max_steps=400 \
			trainer=gpu logger=none runs=$(GPU_OUT)/runs; \
		timeout 60 $(GPU_PYTHON) -m tape_exp.data_speed --out $(GPU_OUT); \
	else echo "hydra, lightning, wandb or scipy is missing: the small run is left out"; fi

audit:  ## look for known vulnerabilities of the pinned packages with pip-audit (needs a network)
	@mkdir -p .audit
	@test -x .audit/bin/pip-audit || { $(PYTHON) -m venv .audit && .audit/bin/python -m pip install --quiet pip-audit; } > .audit/log 2>&1 || \
		{ echo "error: pip-audit cannot be installed (see .audit/log); run make audit where PyPI can be reached." >&2; exit 2; }
	.audit/bin/pip-audit --requirement constraints.txt --no-deps --disable-pip

clean:  ## remove the environment and caches, but not runs/ and results/
	rm -rf .venv .audit build *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
