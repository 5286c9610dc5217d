# make run    the main job: one job file through the whole loop, ending in report.html
# make test   the tests, in minutes; without those that take long or need more than a Python environment
# make test-extra  the others: slow ones, and those of each part that is installed
# make test-all  both
# make check  format, lint, types, layers, docs, the report on the house, words
# make words  sentences over 30 words, docstrings that begin with a clause, words that have a plainer one
# make docs   the documentation site, in build/site: links are checked, code blocks run; EXTERNAL=1 checks links to other sites, too
# make house  lines by room; fails at long functions, names used twice, imports against the layers, circles
# make onnx serve  what exports, and what serves and its client (Triton's), into .venv: their tests run then, too
# make transformers  the library Transformers into .venv: the tests of models without a reader run then, too
# make atari  gymnasium and Atari games into .venv: the tests of agents run then, too
# make backends  TensorFlow and Ray into .venv, and Horovod built once: their tests run then, too
# make handoff  Accelerate and torchtitan into .venv: their loaders read the configurations of `plan --write`
# make vendors  the clouds' own software, built once in the user cache, before which rendered jobs are tested
PYTHON ?= python3
BIN := .venv/bin
# Test processes; 0 tests in one.
WORKERS ?= 2
# Of all tests: runs on Ray and SLURM wait for most of their time.
ALL_WORKERS ?= 3
# Compiled modules are kept, whatever the shell says: tests start many interpreters, and pytest rewrites each assertion.
export PYTHONDONTWRITEBYTECODE =

.PHONY: run test test-extra test-all check house words docs format install backends tensorflow ray onnx transformers horovod serve atari handoff vendors clean
.DEFAULT_GOAL := run

install:
	@$(PYTHON) tools/install.py

run: install
	@$(BIN)/chronograd run examples/digits.yaml

test: install
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal -m "not (slow or extra)"

test-extra: install
	$(BIN)/python -m pytest --numprocesses $(ALL_WORKERS) --dist worksteal --durations=40 --durations-min=5 -m "slow or extra"

test-all: install
	$(BIN)/python -m pytest --numprocesses $(ALL_WORKERS) --dist worksteal --durations=40 --durations-min=5

check: install
	$(BIN)/ruff format --check src tests benchmarks tools
	$(BIN)/ruff check src tests benchmarks tools
	$(BIN)/mypy
	$(BIN)/python -m pytest -m "not (slow or extra)" tests/test_layers.py tests/test_docs.py
	$(BIN)/python tools/house.py
	$(BIN)/python tools/words.py

house: install
	@$(BIN)/python tools/house.py

words: install
	@$(BIN)/python tools/words.py

docs: install
	$(BIN)/python -m pip install -qq --constraint constraints.txt --editable ".[docs]"
	$(BIN)/python -m pytest tests/test_docs.py
	$(BIN)/python tools/site/build.py $(if $(EXTERNAL),--external)

backends: tensorflow ray horovod

tensorflow ray onnx atari transformers handoff: install
	$(BIN)/python -m pip install -qq --constraint constraints.txt --editable ".[$@]"

serve: install
	$(BIN)/python -m pip install -qq --constraint constraints.txt --editable ".[serve]" "tritonclient[http]"

horovod: install
	$(BIN)/python -m chronograd.backends.horovod

vendors: install
	$(BIN)/python tools/vendors.py

format: install
	$(BIN)/ruff format src tests benchmarks tools
	$(BIN)/ruff check --fix src tests benchmarks tools

clean:
	rm -rf .venv runs report.html report.ipynb report.json .pytest_cache .mypy_cache .ruff_cache
