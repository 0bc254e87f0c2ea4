# Every target sets up what it needs in .venv, on a machine that has Python >= 3.10, make and a network, and
# does so again only when pyproject.toml or constraints.txt have changed.
#
# Choose another interpreter with PYTHON=..., another folder with VENV=..., for instance
# `make test PYTHON=python3.12 VENV=.venv-3.12`. pip's own configuration decides where packages come from; on
# Linux the torch of the default index carries CUDA and weighs gigabytes, and a configured index of CPU builds
# is used instead (PIP_EXTRA_INDEX_URL).

VENV ?= .venv
PYTHON ?=
PY := $(VENV)/bin/python
READY := $(VENV)/.ready
COMPILED := build/compiled
TYPED := lifecycle kvpool adapters examples benchmarks scripts

.DEFAULT_GOAL := help
.PHONY: help demo test test-long lint generate bench compiled test-compiled test-engines test-engines-vllm test-engines-sglang test-engines-gloo test-engines-mooncake bench-peers gallery clean

help: ## Say what there is.
	@echo 'make TARGET, where TARGET is one of:'
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "%-12s %s\n", $$1, $$2}'

demo: $(READY) ## Run a small disaggregated-prefill scheduler on 2,000 requests, under a minute.
	@$(PY) examples/prefill_scheduler.py

test: $(READY) ## Run the tests, but for the slow ones (5 minutes at most).
	$(PY) -m pytest -n 2 -m 'not slow'

test-long: $(READY) ## Run all tests, with many more generated examples.
	LIFECYCLE_PROFILE=nightly $(PY) -m pytest -n 2 --timeout 3600

lint: $(READY) ## Check style, format, types, and that generated files are up to date.
	$(PY) -m ruff check
	$(PY) -m ruff format --check
	$(PY) -m mypy $(TYPED)
	$(PY) scripts/drift.py --check

generate: $(READY) ## Write again what is generated from the tables (diagrams in the docs).
	$(PY) scripts/drift.py

bench: $(COMPILED)/.built ## Measure the hot paths against the same logic written by hand.
	@$(PY) benchmarks/run.py

compiled: $(COMPILED)/.built ## Build the hot path as an extension module (needs a C compiler).

test-compiled: $(COMPILED)/.built ## Run the core's tests on the compiled build.
	PYTHONPATH=$(COMPILED) $(VENV)/bin/pytest -n 2 -m 'not slow' $(wildcard tests/test_*.py) tests/testing/test_agreement.py

test-engines: test-engines-vllm test-engines-sglang test-engines-gloo test-engines-mooncake ## Run the adapters' contract suites against the real engines.

test-engines-vllm: ## The adapter of vLLM against vLLM's own scheduler, in a virtual environment of its own.
	bash scripts/engines_vllm.sh $(VENV)-vllm
	$(VENV)-vllm/bin/python -m pytest -W default tests/engines/vllm
	bash scripts/vllm_own_tests.sh $(VENV)-vllm

test-engines-gloo: $(READY) ## Ranks that agree over gloo, in 2 and 4 processes.
	LIFECYCLE_ENGINES=gloo $(PY) -m pytest tests/engines/torch_distributed

# The engine binds all interfaces, so it gets a network of its own.
test-engines-mooncake: ## The adapter of Mooncake over the real engine, in two processes.
	bash scripts/engines_transfer.sh $(VENV)-transfer
	LIFECYCLE_ENGINES=mooncake unshare -rn sh -c 'ip link set lo up; exec "$$0" -m pytest -W default tests/engines/mooncake' $(VENV)-transfer/bin/python

test-engines-sglang: ## SGLang's own scheduler, which no adapter governs yet, in a virtual environment of its own.
	bash scripts/engines_sglang.sh $(VENV)-sglang
	$(VENV)-sglang/bin/python -m pytest -W default tests/engines/sglang

bench-peers: ## Measure the pool against SGLang's and vLLM's allocators, in a virtual environment of their own.
	bash benchmarks/peers_pool.sh $(VENV)-peers
	$(VENV)-peers/bin/python benchmarks/bench_pool.py --out benchmarks/results/pool.md

gallery: $(READY) ## Point the harness at every faulty scheduler, with 15 seeds; write docs/gallery.md.
	$(PY) scripts/gallery.py --seeds 15 --out docs/gallery.md

# The wheel is what a user gets who builds with HATCH_BUILD_HOOKS_ENABLE=1 (pyproject.toml). It is built from a copy:
# the hook leaves its extension modules beside the sources, where they would be imported instead of them.
$(COMPILED)/.built: $(READY) lifecycle/compile.py lifecycle/request.py $(wildcard lifecycle/*.py lifecycle/*/*.py)
	@rm -rf $(COMPILED) build/wheel build/source
	@mkdir -p build/source && cp -R lifecycle kvpool adapters pyproject.toml README.md LICENSE build/source
	@HATCH_BUILD_HOOKS_ENABLE=1 $(PY) -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir build/wheel ./build/source
	@$(PY) -m pip install --quiet --disable-pip-version-check --no-deps --target $(COMPILED) build/wheel/*.whl
	@touch $@

clean: ## Remove what the other targets made, the virtual environment included.
	rm -rf $(VENV) $(VENV)-peers $(VENV)-vllm $(VENV)-sglang build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find $(TYPED) tests -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp comes last, and pip is what tells a usable environment, so a set-up that was interrupted is done
# again.
$(READY): pyproject.toml constraints.txt
	@$(PY) -m pip --version >/dev/null 2>&1 || { \
	    for python in $(or $(PYTHON),python3 python3.13 python3.12 python3.11 python3.10 python3.14); do \
	        "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null && break; \
	        python=; \
	    done; \
	    test -n "$$python" || { echo 'Python 3.10 or newer is needed; none found as $(or $(PYTHON),python3 or python3.10 to python3.14). Name one with PYTHON=...' >&2; exit 1; }; \
	    echo "Setting up $(VENV) with $$("$$python" --version), once; torch takes a while."; \
	    "$$python" -m venv $(VENV) || { echo "$$python cannot make a virtual environment (on Debian and Ubuntu: install the package python3-venv)." >&2; exit 1; }; \
	}
	@$(PY) -m pip install --quiet --disable-pip-version-check --upgrade --constraint constraints.txt pip
	@$(PY) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@
