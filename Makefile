# `make help` lists the targets. Most use $(VENV), which is created on first use; test-gpu and the tests of integrations do not.

PYTHON ?= python3
VENV ?= .venv
PIP_ARGS ?=
PYTEST_ARGS ?=
WORKERS ?= 2
SEED ?=
COUNT ?= 10000

BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DOCS_STAMP := $(VENV)/.installed-docs

.DEFAULT_GOAL := help
.PHONY: help install demo test fuzz test-slow test-gpu test-integrations test-rllib lint type bench docs build check-build clean

help:  ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{ printf "  make %-18s %s\n", $$1, $$2 }'
	@echo
	@echo "  variables: PYTHON=$(PYTHON) VENV=$(VENV) WORKERS=$(WORKERS) COUNT=$(COUNT) SEED PYTEST_ARGS PIP_ARGS"
	@echo "  PIP_ARGS goes to pip; e.g. on Linux, for torch without its CUDA packages:"
	@echo "    make install PIP_ARGS='--extra-index-url https://download.pytorch.org/whl/cpu'"

install: $(STAMP)  ## Create the virtual environment with everything needed here; nothing to do when up to date

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install $(PIP_ARGS) -c constraints.txt -e '.[dev]'
	touch $@

demo: $(STAMP)  ## Train an agent with memory and one without on the CPU, compare them, draw their curves: about two minutes
	$(BIN)/python -m hadamem.cli.demo

test: lint type  ## Lint, check types, and run the tests that need neither minutes nor a GPU
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m 'not slow and not gpu' --durations=10 $(PYTEST_ARGS)

fuzz: $(STAMP)  ## Run 10,000 random inputs to kernels, memories, settings and commands: four minutes; SEED= and COUNT= choose others
	$(BIN)/python -m tests.fuzz $(if $(SEED),--seed $(SEED)) --count $(COUNT) --workers $(WORKERS)

test-slow: $(STAMP)  ## Run the slow tests
	$(BIN)/python -m pytest -m 'slow and not gpu' --durations=10 $(PYTEST_ARGS)

# For a GPU machine on which nothing can be installed: uses $(PYTHON) with its torch and triton, and this source tree.
test-gpu:  ## Run the GPU tests and the kernel tests with $(PYTHON) as it is, without a virtual environment
	PYTHONPATH=src$${PYTHONPATH:+:$$PYTHONPATH} $(PYTHON) -m pytest -m gpu -p no:cacheprovider --durations=10 $(PYTEST_ARGS)
	PYTHONPATH=src$${PYTHONPATH:+:$$PYTHONPATH} $(PYTHON) -m pytest -m 'not gpu and not slow' -p no:cacheprovider $(PYTEST_ARGS) \
		$(wildcard tests/kernels tests/test_kernels*.py)

# Other frameworks pin versions that differ from constraints.txt and from each other's: a virtual environment each. torch comes first, so
# that none of them brings another one.
INTEGRATIONS := .venv-integrations
RLLIB := .venv-rllib
TORCH := $(shell grep -o '^torch==[^ ]*' constraints.txt)

$(INTEGRATIONS)/.installed: pyproject.toml constraints.txt
	test -x $(INTEGRATIONS)/bin/python || $(PYTHON) -m venv $(INTEGRATIONS)
	$(INTEGRATIONS)/bin/python -m pip install $(PIP_ARGS) $(TORCH)
	$(INTEGRATIONS)/bin/python -m pip install $(PIP_ARGS) $(TORCH) sb3-contrib==2.9.2 torchrl==0.14.1 'pytest>=8' -e '.[envs,sb3,torchrl]'
	touch $@

$(RLLIB)/.installed: pyproject.toml constraints.txt
	test -x $(RLLIB)/bin/python || $(PYTHON) -m venv $(RLLIB)
	$(RLLIB)/bin/python -m pip install $(PIP_ARGS) $(TORCH)
	$(RLLIB)/bin/python -m pip install $(PIP_ARGS) $(TORCH) 'ray[rllib]==2.60.0' 'pytest>=8' -e '.[envs,rllib]'
	touch $@

test-integrations: $(INTEGRATIONS)/.installed  ## Test the memories in sb3-contrib and TorchRL, in a virtual environment of their own; trains for a minute
	$(INTEGRATIONS)/bin/python -m pytest tests/integrations tests/envs/test_gymnasium.py::test_torchrl_takes_every_task $(PYTEST_ARGS)

test-rllib: $(RLLIB)/.installed  ## Test the memories in RLlib, in a virtual environment of their own; trains for two minutes
	$(RLLIB)/bin/python -m pytest tests/integrations/test_rllib.py $(PYTEST_ARGS)

lint: $(STAMP)  ## Check style with ruff
	$(BIN)/ruff check .

type: $(STAMP)  ## Check types with mypy
	$(BIN)/mypy

bench: $(STAMP)  ## Time the memories on this machine, quickly; results go to bench/
	$(BIN)/hadamem bench memory --quick

$(DOCS_STAMP): $(STAMP)
	$(BIN)/python -m pip install $(PIP_ARGS) -c constraints.txt -e '.[docs]'
	touch $@

docs: $(DOCS_STAMP)  ## Build the documentation site in build/docs and check its links; warnings are errors
	$(BIN)/python docs/website/stage.py build/docs-source
	rm -rf build/docs
	$(BIN)/python -m sphinx -q -E -W --keep-going -c docs/website -d build/docs-doctrees build/docs-source build/docs
	$(BIN)/python docs/website/check_links.py build/docs
	@echo "open build/docs/index.html"

# The tools that build lie in a virtual environment of their own; so does what check-build installs.
build: build/tools/.installed  ## Build sdist and wheel in dist/ and check what PyPI will show
	rm -rf dist
	build/tools/bin/python -m build --outdir dist .
	build/tools/bin/python -m twine check --strict dist/*

build/tools/.installed: constraints.txt
	test -x build/tools/bin/python || $(PYTHON) -m venv build/tools
	build/tools/bin/python -m pip install -q -c constraints.txt build twine 'readme_renderer[md]'
	touch $@

check-build: build  ## Install the wheel with its core dependencies only, and try what users will try
	test -x build/bare/bin/python || $(PYTHON) -m venv build/bare
	build/bare/bin/python -m pip install -q $(PIP_ARGS) -c constraints.txt torch numpy numba
	build/bare/bin/python -m pip install -q --no-deps --force-reinstall dist/*.whl
	build/bare/bin/python -m pip check
	build/bare/bin/python tests/bare_install.py dist/*.whl

clean:  ## Remove the virtual environments, caches and build results
	rm -rf $(VENV) $(INTEGRATIONS) $(RLLIB) build dist .pytest_cache .mypy_cache .ruff_cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
