# `make` lists the targets. PYTHON: the interpreter of .venv; RECIPE: a file in configs/;
# CORPUS: a corpus of docs/lab/records.md; BASE: a commit to compare with;
# BIN: folder of another Python for `gpu` and `gpu-train`, which then install nothing;
# TORCH_INDEX: URL of a package index to install torch from; cpu: PyTorch's index of CPU builds.
PYTHON ?= python3
RECIPE ?= quickstart
CORPUS ?= multi30k-en-de
BASE ?= main
MINUTES ?= 20
TORCH_INDEX ?=
INDEX := $(if $(filter cpu,$(TORCH_INDEX)),$(shell sed -n 's/^ARG TORCH_INDEX=//p' examples/container/Dockerfile),$(TORCH_INDEX))
BIN := .venv/bin
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help setup reproduce best ablation record bench compare-commits gpu gpu-train test-fast test test-slow test-oldest check format reference docs clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /  make \1#/p' $(firstword $(MAKEFILE_LIST)) | tr '#' '\t' | expand -t 24

setup: .venv/.dev ## install mt and the tools of developers into .venv (TORCH_INDEX=cpu)

reproduce: .venv/.installed ## train a recipe, score it, compare with its expected score (RECIPE=quickstart)
	$(BIN)/mt reproduce configs/$(RECIPE).yaml

best: .venv/.installed ## train the best Multi30k model, with two teachers and their translations: hours
	$(BIN)/mt train configs/multi30k-en-de-lc-norm-tok.yaml --run runs/multi30k-teacher --set seed=2
	$(BIN)/mt reproduce configs/multi30k-de-en-lc-norm-tok.yaml
	$(BACK) --out runs/multi30k-pairs/back
	$(BACK) --out runs/multi30k-pairs/drawn-1 $(DRAW)=1
	$(BACK) --out runs/multi30k-pairs/drawn-2 $(DRAW)=2
	$(BIN)/mt reproduce configs/multi30k-augmented-en-de-lc-norm-tok.yaml
	$(TEACHERS) configs/multi30k-en-de-lc-norm-tok.yaml --out runs/multi30k-pairs/forward --n-best 5
	$(TEACHERS) runs/multi30k-pairs/drawn-1/train.en --out runs/multi30k-pairs/drawn
	$(BIN)/mt reproduce configs/multi30k-best-en-de-lc-norm-tok.yaml
best: BACK := $(BIN)/mt distill runs/multi30k-de-en-lc-norm-tok configs/multi30k-de-en-lc-norm-tok.yaml
best: DRAW := --set decoding.search=sample --set decoding.temperature=0.7 --set decoding.seed
best: TEACHERS := $(BIN)/mt distill runs/multi30k-teacher --set 'decoding.ensemble=[runs/multi30k-augmented-en-de-lc-norm-tok]'

ablation: .venv/.installed ## train a small model with one change at a time and compare: hours
	$(BIN)/python examples/ablation.py configs/ablation/multi30k.yaml

record: .venv/.installed ## train with automatic settings for 5, 15 and 60 minutes and score it: 4 hours (CORPUS=multi30k-en-de)
	$(BIN)/python bench/record.py $(CORPUS)

bench: .venv/.installed ## compare the training speed with a plain PyTorch loop on this machine
	$(BIN)/python -m bench.training

compare-commits: .venv/.installed ## train 50 updates by a commit and by this checkout, compare to the digit (BASE=main)
	$(BIN)/python bench/compare_commits.py $(BASE)

gpu: $(if $(filter .venv/bin,$(BIN)),.venv/.dev) ## check and measure one GPU in 10 minutes; the report is build/gpu.md
	PYTHONPATH=. $(BIN)/python -m bench.gpu

gpu-train: $(if $(filter .venv/bin,$(BIN)),.venv/.installed) ## train a recipe on a GPU and score it (RECIPE=quickstart MINUTES=20)
	PYTHONPATH=. $(BIN)/python -m bench.gpu.train $(RECIPE) --minutes $(MINUTES)

test-fast: setup ## run the tests of model, data, loss, search and config: use it while you code
	$(BIN)/pytest -n auto --dist loadfile $(FAST)
test-fast: FAST := tests/model tests/config --ignore tests/config/test_round_trip.py tests/data tests/training/test_loss.py tests/decoding/test_search.py tests/test_one_sentence.py

test: setup ## run the tests that need no network, no GPU and only minutes
	$(BIN)/pytest -n auto --dist loadfile --hypothesis-profile ci # the same examples in each run

test-slow: setup ## run the long tests: killed trainings, real corpora, memory
	$(BIN)/pytest -m slow

test-oldest: BIN := build/oldest/bin
test-oldest: ## run the tests with the oldest versions that pyproject.toml allows (TORCH_INDEX=cpu)
	$(PYTHON) -m venv build/oldest
	sed '/^requires = /d' pyproject.toml | grep -oE '"[a-z0-9.-]+(\[[a-z]+\])?>=[0-9.]+' | sed -E 's/"|\[.*\]//g; s/>=/==/' > build/oldest/floors.txt
	$(if $(INDEX),$(BIN)/pip install --index-url $(INDEX) -c build/oldest/floors.txt torch)
	$(BIN)/pip install --quiet -c build/oldest/floors.txt -e ".[dev]"
	$(BIN)/pytest -n auto --dist loadfile --hypothesis-profile ci

check: setup ## lint, formatting, types, import rules
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup ## format the code and apply the fixes of the linter
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

reference: setup ## write docs/cli.md, docs/keys.md and docs/config.schema.json from the code
	$(BIN)/python -m typer mt.cli.app utils docs --name mt --title "Command line" --output docs/cli.md
	$(BIN)/python -m mt.config.loading > docs/config.schema.json
	PYTHONPATH=. $(BIN)/python docs/keys.py > docs/keys.md

docs: setup ## build the documentation site in build/site
	$(INSTALL) -e ".[docs]"
	$(BIN)/python docs/site.py
	$(BIN)/mkdocs build --strict --quiet

clean: ## remove .venv, caches and build output; runs stay
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -prune -exec rm -rf {} +

# The stamps are written last, so that an interrupted installation is repeated. The first one has what
# the recipes and `mt plot` need.
.venv/.installed: pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo 'error: $(PYTHON) not found; choose an interpreter: make setup PYTHON=python3.12' >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.version_info < (3, 11) and sys.exit("error: mt needs Python 3.11 or newer, $(PYTHON) is %d.%d; choose another one: make setup PYTHON=python3.12" % sys.version_info[:2])'
	@$(PYTHON) -c 'import sys, venv, importlib.util as i; i.find_spec("ensurepip") or sys.exit("error: $(PYTHON) cannot make environments; on Debian and Ubuntu: sudo apt install python%d.%d-venv" % sys.version_info[:2])'
	$(PYTHON) -m venv .venv
	$(if $(INDEX),$(INSTALL) --no-deps --index-url $(INDEX) torch)
	$(INSTALL) -e ".[ja,plot]"
	@touch $@

.venv/.dev: .venv/.installed
	$(INSTALL) -e ".[dev]"
	@touch $@
