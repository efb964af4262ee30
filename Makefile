# Each target creates .venv when it is missing or older than the dependency files, then does its job.
# Give another interpreter with `make PYTHON=python3.12 ...` (3.11 or newer).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Kaldi's own code, which must not share an environment with newer versions of kaldifst.
ORACLE := build/kaldi-oracle
ORACLE_PACKAGES := kaldi-hmm-gmm==1.1.4 kaldifst==1.7.17
# The fuzzer, which brings a libFuzzer of its own and is needed by nothing else.
ATHERIS := build/atheris
ATHERIS_PACKAGE := atheris==3.0.0
PIP_FLAGS := --quiet --disable-pip-version-check --no-input
# CuPy and NVRTC, by which kernels are compiled even where there is no GPU: cuda12 for drivers older than those of CUDA 13.
CUDA ?= cuda13
# Lightning, accelerate and Hugging Face's Trainer, of which fsachain needs none.
TRAINERS := build/trainers
TRAINER_PACKAGES := torch==2.13.0 lightning==2.6.6 accelerate==1.15.0 transformers==5.24.0 HyperPyYAML==1.2.3 sentencepiece==0.2.3 typeguard==4.6.1
# Toolkits of which the tests use single modules: what they require as a whole would be gigabytes.
TOOLKITS := speechbrain==1.1.2 espnet==202511 nemo_toolkit==3.0.0
# Test workers and single-threaded kernels share the cores.
TEST_WORKERS ?= 2
CORPUS ?=
DIGITS ?=
FOLDER ?= exp/digits
PROMPTS ?=
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-library test-all size test-kaldi test-kills test-trainers test-versions release-check fuzz soak verify check bench bench-graphs digits prompts dialogue handwriting ctc-vs-lfmmi fine-tune cuda-report test-gpu gpu-pack gpu-report clean docs mini-librispeech

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 20

setup: $(STAMP)  ## create .venv and install the package with its pinned dependencies

$(STAMP): setup.cfg pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fsachain needs Python 3.11 or newer, this is " + sys.version)'
	@echo "creating $(VENV): the first time downloads PyTorch and OpenFst, which takes minutes"
	@$(PYTHON) -m venv $(VENV)
	@PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/python -m pip install $(PIP_FLAGS) -e '.[all,$(CUDA),dev,docs]'
	@touch $@

demo: $(STAMP)  ## synthetic connected digits: train, decode and score, without a download
	@$(BIN)/python -m recipes demo $(ARGS)

digits: $(STAMP)  ## recorded connected digits: make digits CORPUS=folder
	@$(BIN)/python -m recipes digits --corpus "$(CORPUS)" $(ARGS)

prompts: $(STAMP)  ## recorded telephone prompts, 606 words: make prompts CORPUS=folder
	@$(BIN)/python -m recipes prompts --corpus "$(CORPUS)" $(ARGS)

dialogue: $(STAMP)  ## an hour of acted Dutch dialogue, characters as units: make dialogue CORPUS=folder
	@$(BIN)/python -m recipes dialogue --corpus "$(CORPUS)" $(ARGS)

mini-librispeech: $(STAMP)  ## five hours of read English: make mini-librispeech CORPUS=folder; see its README for the download
	@$(BIN)/python -m recipes mini_librispeech --corpus "$(CORPUS)" $(ARGS)

handwriting: $(STAMP)  ## lines of handwritten digits, whose images come with scikit-learn
	@$(BIN)/python -m recipes handwriting $(ARGS)

ctc-vs-lfmmi: $(STAMP)  ## both objectives on the same data: make ctc-vs-lfmmi DIGITS=folder PROMPTS=folder
	@$(BIN)/python recipes/ctc_vs_lfmmi/run.py $(if $(DIGITS),--digits "$(DIGITS)") $(if $(PROMPTS),--prompts "$(PROMPTS)") $(ARGS)

fine-tune: $(STAMP)  ## a network of one's own, pretrained, then fine-tuned: make fine-tune DIGITS=folder PROMPTS=folder
	@$(BIN)/python recipes/fine_tune/run.py $(if $(DIGITS),--digits "$(DIGITS)") $(if $(PROMPTS),--prompts "$(PROMPTS)") $(ARGS)

docs: $(STAMP)  ## the documentation as a site, in build/site
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build $(ARGS)

test: $(STAMP)  ## the tests that every change has to pass: a few minutes
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(TEST_WORKERS) --dist worksteal -q --ignore tests/slow --ignore tests/gpu $(ARGS)

test-library: $(STAMP)  ## the library's tests in a copy without fsachain/asr, the recipes and their tests
	@$(BIN)/python -m tools.library -n $(TEST_WORKERS) --dist worksteal $(ARGS)

test-all: $(STAMP) $(TRAINERS)/.installed  ## everything else: sanitizers, emulated kernels, fuzz, kills, recipes, browsers, many processes
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(TEST_WORKERS) --dist worksteal -q tests/slow tests/gpu $(ARGS)

$(ORACLE)/.installed:
	@$(PYTHON) -m venv $(ORACLE)
	@$(ORACLE)/bin/python -m pip install $(PIP_FLAGS) $(ORACLE_PACKAGES)
	@touch $@

test-kaldi: $(STAMP) $(ORACLE)/.installed  ## compare graphs with Kaldi's own code, in an environment of its own
	@OMP_NUM_THREADS=1 FSACHAIN_KALDI_PYTHON=$(CURDIR)/$(ORACLE)/bin/python $(BIN)/python -m pytest -q tests/asr/test_kaldi_oracle.py $(ARGS)
	@$(BIN)/python -m tools.golden.graphs

test-kills: $(STAMP)  ## kill a training at every point where it touches a file, and at random times: two minutes
	@OMP_NUM_THREADS=1 FSACHAIN_KILLS=all $(BIN)/python -m pytest -q tests/slow/asr/test_kills.py $(ARGS)

$(ATHERIS)/.installed:
	@$(BIN)/python -m pip install $(PIP_FLAGS) --no-deps --target $(ATHERIS) $(ATHERIS_PACKAGE)
	@touch $@

$(TRAINERS)/.installed: constraints.txt setup.cfg
	@$(PYTHON) -m venv $(TRAINERS)
	@PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(TRAINERS)/bin/python -m pip install $(PIP_FLAGS) numpy scipy numba filelock $(TRAINER_PACKAGES)
	@$(TRAINERS)/bin/python -m pip install $(PIP_FLAGS) --no-deps $(TOOLKITS)
	@touch $@

test-trainers: $(STAMP) $(TRAINERS)/.installed  ## batches with graphs in trainers, losses in toolkits: Lightning, accelerate, Hugging Face, NeMo, ESPnet, SpeechBrain
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q tests/slow/test_trainers.py tests/slow/test_integrations.py tests/slow/test_two_processes.py $(ARGS)

test-versions: $(STAMP)  ## the library's tests with the oldest and the newest versions: ARGS="oldest --suite losses"; 5 GB a row
	@$(BIN)/python -m tools.versions $(ARGS)

release-check: $(STAMP)  ## what a release needs: versions, changelog, links, packages, docs, tests
	@$(BIN)/python -m tools.release --check $(ARGS)

fuzz: $(STAMP) $(ATHERIS)/.installed  ## feed every reader of files with damaged ones, guided by coverage: ten minutes and more
	@OMP_NUM_THREADS=1 PYTHONPATH=$(CURDIR)/$(ATHERIS) $(BIN)/python -m tools.fuzz.run $(ARGS)

soak: $(STAMP)  ## 2,000 steps: memory, open files and threads stay flat
	@OMP_NUM_THREADS=1 $(BIN)/python -m tools.soak $(ARGS)

verify: $(STAMP) test-all  ## overnight: all of test-all, golden values by both backends, ten times the examples
	@$(BIN)/python -m tools.golden.table --backend cpu
	@$(BIN)/python -m tools.golden.table --backend reference
	@$(BIN)/python -m tools.golden.graphs
	@OMP_NUM_THREADS=1 HYPOTHESIS_PROFILE=thorough $(BIN)/python -m pytest -n $(TEST_WORKERS) -q -m hypothesis tests $(ARGS)

check: $(STAMP)  ## format, lint, types and layers
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/python -m pytest -q tests/asr/test_layers.py

size:  ## lines, files and depth of imports by folder
	@$(PYTHON) -m tools.size

bench: $(STAMP)  ## time the recursion and print nanoseconds per arc-evaluation
	@$(BIN)/python -m tools.bench.report $(ARGS)

bench-graphs: $(STAMP) $(ORACLE)/.installed  ## time numerators beside Kaldi's own compiler, phone models, denominators
	@$(BIN)/python -m tools.bench.graphs --kaldi $(ORACLE)/bin/python $(ARGS)

cuda-report: $(STAMP)  ## compile every kernel for every generation of GPUs; print registers and spills
	@$(BIN)/python -m tools.cuda_compile $(ARGS)

test-gpu: $(STAMP)  ## run the tests that need a GPU; elsewhere they are skipped
	@$(BIN)/python -m pytest -q tests/gpu $(ARGS)

gpu-pack: $(STAMP)  ## put into build/gpu what gpu-report needs beside a checkout: graphs and float64 values
	@$(BIN)/python -m tools.gpu_pack $(ARGS)

# On a machine with nothing but a checkout and build/gpu: no environment is made.
gpu-report:  ## all that only a GPU can tell, in nine minutes; with the interpreter PYTHON as it is
	@$(PYTHON) tools/gpu_report.py $(ARGS)

clean:  ## remove build outputs and experiments; .venv stays
	@rm -rf build dist *.egg-info exp .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
