# make run    the main job: one job file through the whole loop, ending in report.html
# make test   the tests
# make check  format, lint, types, layers, docs
# make backends  TensorFlow and Ray into .venv, and Horovod built once: their tests run then, too
PYTHON ?= python3
BIN := .venv/bin
# Test processes; 0 tests in one.
WORKERS ?= auto

.PHONY: run test check format install backends tensorflow ray horovod clean
.DEFAULT_GOAL := run

install:
	@$(PYTHON) tools/install.py

run: install
	@$(BIN)/chronograd run examples/digits.yaml

test: install
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --maxprocesses 4 --dist loadfile

check: install
	$(BIN)/ruff format --check src tests benchmarks tools
	$(BIN)/ruff check src tests benchmarks tools
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_layers.py tests/test_docs.py

backends: tensorflow ray horovod

tensorflow ray: install
	$(BIN)/python -m pip install -qq --constraint constraints.txt --editable ".[$@]"

horovod: install
	$(BIN)/python -m chronograd.backends.horovod.build

format: install
	$(BIN)/ruff format src tests benchmarks tools
	$(BIN)/ruff check --fix src tests benchmarks tools

clean:
	rm -rf .venv runs report.html .pytest_cache .mypy_cache .ruff_cache
