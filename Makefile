# Two commands on a fresh machine with Python 3.11 or newer and make:
#   make demo   a Transformer learns to translate; open demo/report.html
#   make test   proves that it is right
PYTHON ?= python3
VENV   ?= .venv
PIP     = $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test lint clean

demo: $(VENV)/.demo
	$(VENV)/bin/allformer demo --out demo

test: $(VENV)/.test lint
	$(VENV)/bin/python -m pytest

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
	@touch $@ $(VENV)/.demo

clean:
	rm -rf $(VENV) demo .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
