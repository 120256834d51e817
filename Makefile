# Every target makes .venv itself. Another interpreter: make test PYTHON=python3.12

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# --no-compile halves the time: Python compiles the few modules that get imported, instead of pip all of them.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt
# Spelled out, so that accelerate neither asks for a config file nor warns that it has none.
LAUNCH := $(BIN)/accelerate launch --num_processes 1 --num_machines 1 --mixed_precision no --dynamo_backend no --quiet

# pip compiles nothing, see PIP: where Python may not either, every process would compile torch anew, for ten seconds.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-device test-oldest test-newest fuzz check format docs docs-serve bench paper clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.installed ## distil the embedded corpus and interactions: tables, plots, loadable data sets, no network needed
	$(LAUNCH) recipes/ptb.py --config recipes/configs/demo.yaml
	$(LAUNCH) recipes/recsys.py --config recipes/configs/demo_recsys.yaml

test: $(VENV)/.installed ## the test suite, without the tests marked slow or gpu
	$(BIN)/python -m pytest -n logical --dist loadfile --no-loadscope-reorder -m "not slow and not gpu"

test-slow: $(VENV)/.installed ## the tests marked slow; those of the fake device too, where a compiler is
	-PYTHONPATH=tests/device $(BIN)/python -c "import fake_cuda; fake_cuda.is_needed() and not fake_cuda.is_built() and fake_cuda.build()"
	$(BIN)/python -m pytest -n logical --dist worksteal -m "slow and not gpu"

test-device: $(VENV)/.installed ## the tests of a CUDA device: on the GPU, or on a fake one that takes half a minute to compile
	PYTHONPATH=tests/device $(BIN)/python -m pytest -q -p fake_cuda -m gpu tests

# What every range of versions in pyproject.toml has to hold for: reading, training, saving, pushing, plotting.
CORE := tests/test_imports.py $(addprefix tests/,engine data models tasks report summary/test_collator.py summary/test_farzi_data.py \
	summary/forms summary/test_initialization.py summary/test_soft_training.py summary/test_inner_settings.py \
	summary/test_vocabulary_sums.py summary/store/test_writing.py summary/store/test_hub.py distillation/test_learner.py \
	distillation/test_trajectories.py distillation/test_config.py distillation/test_trainer.py distillation/test_run.py)

# Old releases call what newer releases of others call deprecated: warnings are no errors here. The deselected test asks a
# server that an old huggingface_hub looks for on the internet.
test-oldest: .venv-oldest/.installed ## the core tests with the oldest releases that pyproject.toml allows
test-newest: .venv-newest/.installed ## the core tests with the newest releases that it allows
test-oldest test-newest: test-%:
	.venv-$*/bin/python -m pytest -n logical -q -m "not slow and not gpu" -o filterwarnings=default \
		--deselect tests/summary/store/test_hub.py::test_the_card_on_the_hub_parses_and_names_its_repository $(CORE)

FUZZ_SECONDS := 600

fuzz: $(VENV)/.installed ## random artefacts, configs, interaction and text files for ten minutes; FUZZ_SECONDS=60 for one
	end=$$(( $$(date +%s) + $(FUZZ_SECONDS) )); while [ $$(date +%s) -lt $$end ]; do \
		FUZZ_EXAMPLES=300 $(BIN)/python -m pytest -q -n logical -m fuzz -o timeout=0 || exit 1; \
	done

check: $(VENV)/.installed ## lint and format check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/.installed ## format, and mend what the linter can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.docs ## the site, in site/; a link that leads nowhere ends it
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build
docs-serve: $(VENV)/.docs ## the site at http://localhost:8000, built anew whenever a page changes
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve --no-strict

bench: $(VENV)/.bench ## time and memory of the engine and of its peers
	$(BIN)/python recipes/benchmark/benchmark.py

# recipe:data set, each at quick scale; `make paper PAPER=cold_start:magazine` runs one of them
PAPER := sample_efficiency:ml-100k sample_efficiency:magazine sample_efficiency:ptb cross_architecture:ml-100k cross_architecture:ptb \
	cold_start:ml-100k cold_start:magazine inner_optimizers:ml-100k inner_optimizers:ptb regularization:ml-100k regularization:ptb \
	objectives:ml-100k objectives:ptb trajectory_count:ml-100k trajectory_count:ptb inputs:ml-100k inputs:magazine inputs:ptb privacy:ptb

paper: $(VENV)/.bench ## every table and figure of the paper at quick scale, hours; DATA=FOLDER has a folder per data set, else they are downloaded
	set -e; for run in $(PAPER); do \
		$(BIN)/python recipes/paper/$${run%%:*}.py --dataset $${run##*:} $(if $(DATA),--data_dir $(DATA)/$${run##*:}); \
	done

clean: ## remove the environment and the caches
	rm -rf $(VENV) .venv-oldest .venv-newest site .pytest_cache .ruff_cache .hypothesis

# torch goes first: its build (CPU or CUDA) is then settled before anything else asks for it.
# The last line compiles what is imported: each process of the tests would do so by itself, for ten seconds.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("farzi-hf needs Python 3.10 or newer: make PYTHON=python3.x" if sys.version_info < (3, 10) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch==2.13.0
	$(PIP) --editable '.[test]'
	$(BIN)/python -c 'import matplotlib.pyplot, transformers.trainer, farzi_hf.cli.distil'
	touch $@

RESOLUTION_oldest := lowest-direct
RESOLUTION_newest := highest

# torch stays at one release: of any other, the index may have no CPU build, and a CUDA build takes gigabytes.
.venv-%/.installed: pyproject.toml
	$(PYTHON) -m venv .venv-$*
	.venv-$*/bin/python -m pip install --quiet --disable-pip-version-check uv
	echo torch==2.13.0 > .venv-$*/torch.txt
	.venv-$*/bin/uv pip compile --quiet --python .venv-$*/bin/python --resolution $(RESOLUTION_$*) --only-binary :all: \
		--extra test --constraint .venv-$*/torch.txt --output-file .venv-$*/constraints.txt pyproject.toml
	.venv-$*/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint .venv-$*/constraints.txt torch
	.venv-$*/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint .venv-$*/constraints.txt \
		--editable '.[test]'
	touch $@

$(VENV)/.docs $(VENV)/.bench: $(VENV)/.%: $(VENV)/.installed
	$(PIP) --editable '.[test,$*]'
	touch $@
