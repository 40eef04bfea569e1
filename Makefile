# One command each. Every target sets up what it needs; `make help` lists them.
PYTHON ?= python3
VENV   := .venv
BIN    := $(CURDIR)/$(VENV)/bin
READY  := $(VENV)/.ready
SAMPLE := data/sample
POINTS := 30
DATA_POINTS := 20

.DEFAULT_GOAL := help
.PHONY: help setup pretrain lab test test-slow test-slurm soak compat docs lint format constraints clean

help:  ## List the targets.
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 22

setup: $(READY)  ## Create .venv with everything installed, under constraints.txt.

$(READY): setup.py constraints.txt pyproject.toml $(wildcard nemo_sr/kernels/cpu/*)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "nemo_sr needs Python 3.10 or newer, this is %s: set PYTHON=" % sys.version.split()[0])'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[megatron,nemo,data,docs,dev]'
	@touch $@

pretrain: $(READY) $(SAMPLE)/pydocs.xml.bz2  ## Train a small GPT with adamw_sr on two processes of this CPU; run it again to resume.
	$(BIN)/python scripts/preprocess_wikipedia.py --input $(SAMPLE)/pydocs.xml.bz2 --output $(SAMPLE)/sample --train-tokenizer 4096 --workers 2
	$(BIN)/python scripts/pretrain_gpt.py --config-name=gpt_tiny_cpu

$(SAMPLE)/pydocs.xml.bz2: | $(READY)
	$(BIN)/python scripts/make_sample_corpus.py --output $@

lab: $(READY)  ## Compute the experiments' tables and figures into reports/ (ONLY="NAME ..." for some, QUICK=1 for the quick form).
	$(BIN)/python -m nemo_sr.experiments $(ONLY) $(if $(QUICK),--quick)

test: $(READY)  ## Run the tests (under 15 minutes on two cores).
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m 'not slow' -n 2 --dist loadfile

test-slow: $(READY)  ## Run the tests that take minutes each.
	$(BIN)/python -m pytest -m slow

test-slurm: $(READY)  ## Interrupt jobs on a real SLURM: the chief of the slow tests of tests/slurm.
	$(BIN)/python -m pytest -m slow tests/slurm/test_interruptions.py tests/slurm/test_preprocess_script.py \
	  -k 'signal_saves or scontrol_requeue or node_that_fails or time_limit or array_gives'

soak: $(READY)  ## Kill runs at POINTS (30) and preprocessing at DATA_POINTS (20) random points; they must end as if not killed.
	$(BIN)/python tests/training/kill_points.py --points $(POINTS)
	$(BIN)/python tests/data/kill_points.py --points $(DATA_POINTS)

compat:  ## Run the suites against every supported version and write the README's table (ONLY="ROW ..." for some).
	$(PYTHON) tests/compatibility.py $(ONLY)

docs: $(READY)  ## Build the documentation as a site, site/index.html; every warning is an error.
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

lint: $(READY)  ## Check style, types and shell scripts.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	git ls-files '*.sh' '.ci/run' '*.slurm' | xargs -r $(BIN)/shellcheck

format: $(READY)  ## Rewrite the code in the house format.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

constraints:  ## Resolve constraints.txt anew, for every supported Python; what is pinned stays where it can (UPGRADE=--upgrade: nothing does).
	$(PYTHON) -m pip install --quiet uv
	printf 'torch==2.13.0\nnemo_toolkit[core]==3.0.0\nmegatron-core==0.16.1\nlightning==2.4.0\n' | \
	  $(PYTHON) -m uv pip compile --quiet --universal --python-version 3.10 --all-extras --no-header --no-annotate $(UPGRADE) \
	    --output-file constraints.txt setup.py -
	sed -i '1i # Versions that nemo_sr is tested with, for every Python from 3.10 on. Made by `make constraints`; do not edit.' constraints.txt

clean:  ## Remove what make created (.venv, data, runs, reports, site, caches).
	rm -rf $(VENV) .venvs data runs reports site build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
