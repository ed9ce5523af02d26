# Every verb does all the set-up it needs from a clean checkout; `make` alone lists them.
#   PYTHON=python3.12     the interpreter to build .venv from
#   DEVICE=cpu            where the quickstart runs, instead of the choice described there
#   PYTEST_ARGS="-k ..."  more arguments for pytest

PYTHON ?= python3
DEVICE ?=
PYTEST_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DOCS := .venv-docs
PEERS := .venv-peers
HAS_GPU := timeout 20 nvidia-smi -L 2>/dev/null | grep -q '^GPU '
SOAK_S ?= 600
# The long files first: with one of them at the end, a single core would work on it while the others wait. Four at once
# also on two cores, since half of the time a test waits for its processes.
MAKE_TEST := tests/soak/test_crossings.py tests/simulator tests/process tests/unit
RAY_TESTS := $(addprefix tests/process/test_,crash_matrix.py resume.py poison_rows.py stop.py gpus.py warm.py kept_batches.py grace.py)

# A run is made of many short processes; without its cache, Python would compile us in each of them.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help quickstart test test-gpu test-ray test-remote test-clients test-nullgpu test-nullgpu-newer test-lowest soak coverage cluster-demo lint format bench bench-peers bench-scale docs release-check clean

help: ## list the verbs
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-18s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

quickstart: $(READY) ## embed 1,500 docstrings with a real model, crash-proof, and show nearest neighbors
	$(BIN)/python quickstart/harvest.py
	$(BIN)/python quickstart/model.py
	@device='$(DEVICE)'; \
	if [ -n "$$device" ]; then echo "running on $$device: DEVICE says so"; \
	elif $(HAS_GPU); then device=cuda; echo "running on cuda: nvidia-smi lists a GPU (DEVICE=cpu overrides)"; \
	else device=cpu; echo "running on cpu: nvidia-smi lists no GPU, and configs/quickstart.yaml asks for the CPU"; fi; \
	set -x; $(BIN)/chunkvisor run configs/quickstart.yaml --set device="$$device"
	$(BIN)/python quickstart/neighbors.py

# A process of xdist that dies ends the tests, which name the one that it ran: a new one in its place would let them hang
# at their end (pytest-xdist 3.8, issue 1378).
test: $(READY) ## run the tests of tests/unit, process and simulator, and some crossings; where nvidia-smi lists a GPU, those of test-gpu as well
	$(BIN)/pytest $(MAKE_TEST) -n 4 --dist loadfile --no-loadscope-reorder --max-worker-restart 0 $(PYTEST_ARGS)
	@if [ -n "$$PYTEST_ARGS" ]; then echo "tests/gpu is left out: PYTEST_ARGS chooses the tests (make test-gpu)"; \
	elif $(HAS_GPU); then set -x; $(BIN)/pytest tests/gpu; \
	else echo "tests/gpu is left out: nvidia-smi lists no GPU"; fi

test-gpu: $(READY) ## run the tests on one GPU (ten minutes, all of its memory)
	$(BIN)/pytest tests/gpu $(PYTEST_ARGS)

soak: $(READY) ## ten minutes of tests with fresh seeds; SOAK_S=3600 for longer, SOAK_ARGS="--only kill" for some
	$(BIN)/python tests/soak/run.py --seconds $(SOAK_S) $(SOAK_ARGS)

test-ray: $(READY) ## run the tests of recovery on a Ray cluster with one working node, instead of the local engine
	CHUNKVISOR_TEST_ENGINE=ray $(BIN)/pytest $(RAY_TESTS) $(PYTEST_ARGS)

test-remote: $(READY) ## run the tests of object storage against an S3 server on this machine; installs 130 MB more into .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt --editable '.[remote]' --group remote
	$(BIN)/pytest tests/process/test_remote.py tests/unit/sources/test_resolve.py $(PYTEST_ARGS)

test-clients: $(READY) ## run the tests with BERTopic, MTEB, faiss and LanceDB, which it installs into .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt --group clients
	$(BIN)/pytest tests/process/test_sentence_transformers_class.py tests/process/test_use.py $(PYTEST_ARGS)

# $(1): a torch, $(2): what to test; its environment lies outside the checkout, which is reached by PYTHONPATH.
define ON_NULLGPU
@set -e; python="$$($(PYTHON) tests/nullgpu/environment.py $(1))"; \
export PYTHONPATH='$(CURDIR)/supervisor:$(CURDIR)/worker'; set -x; \
"$$python" -m pytest $(2) -n 2 --dist loadfile --max-worker-restart 0 $(PYTEST_ARGS)
endef

test-nullgpu: ## run the tests against torch's CUDA build, on a simulated GPU; the first call installs 5 GB outside the checkout
	$(call ON_NULLGPU,2.13.0,tests/nullgpu)
	@if [ -z "$$PYTEST_ARGS" ] && $(PYTHON) tests/nullgpu/environment.py --if-there 2.14.1 >/dev/null; then set -x; $(MAKE) test-nullgpu-newer; fi

test-nullgpu-newer: ## the same, of those for which it matters, with torch 2.14.1, another 5 GB; test-nullgpu ends with them where that is there
	$(call ON_NULLGPU,2.14.1,tests/nullgpu -m newer)

test-lowest: $(READY) ## run a part of the tests with the lowest versions of everything that pyproject.toml allows
	$(BIN)/python tests/lowest.py

coverage: $(READY) ## tell which lines `make test` runs; no number is asked for
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest $(MAKE_TEST) $(PYTEST_ARGS)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

cluster-demo: $(READY) ## run a real model on a Ray cluster of three local nodes, and kill one of them half-way
	$(BIN)/python examples/cluster/demo.py

lint: $(READY) ## check style, formatting and types, changing nothing
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(READY) ## format the code, and fix what ruff can fix
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(READY) ## measure against plain sentence-transformers; COMMITS=file.jsonl.gz for commit messages
	$(BIN)/python benchmarks/bench.py $(if $(COMMITS),--commits $(COMMITS)) $(BENCH_ARGS)
	@if [ -z "$(BENCH_ARGS)" ]; then set -x; $(BIN)/python benchmarks/reuse.py $(if $(COMMITS),--commits $(COMMITS)); \
	$(BIN)/python benchmarks/forms.py; fi

bench-peers: $(READY) ## measure against other programs, the pool and bare loops, on the same texts in turn (half an hour); COMMITS=file.jsonl.gz
	@$(MAKE) --silent $(PEERS)/.ready || echo "some peers cannot be installed here: they are left out"
	$(BIN)/python benchmarks/peers.py $(if $(COMMITS),--commits $(COMMITS)) $(PEERS_ARGS)

bench-scale: $(READY) ## measure how time, memory and files grow; SCALE_ARGS="chunks=5000" for one bench, smaller
	$(BIN)/python benchmarks/scale.py $(SCALE_ARGS)
	$(BIN)/python benchmarks/cluster.py $(CLUSTER_ARGS)

docs: $(DOCS)/.ready ## build the pages as a site with search, build/site/index.html; a wrong link fails
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict

release-check: $(READY) ## build wheel and sdist into dist/, check both, install the wheel in fresh environments: with each extra, and for the quickstart with the lowest versions
	rm -rf dist
	$(BIN)/python -m pip install --quiet -c constraints.txt --group package
	$(BIN)/python -m build --quiet --outdir dist .
	$(BIN)/twine check --strict dist/*
	$(BIN)/python tools/checkpackage.py dist

clean: ## remove everything that these verbs made, .venv included
	rm -rf $(VENV) $(DOCS) $(PEERS) dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage* .lowest quickstart/data quickstart/cache examples/cluster/cache
	find supervisor worker tests quickstart benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# Some seconds, and nothing of what chunkvisor itself needs.
$(DOCS)/.ready: pyproject.toml
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(DOCS)/bin/python -m pip install --quiet --group docs
	@touch $@

# 300 MB: all that is not of the peers' own comes from .venv, which pip leaves alone.
$(PEERS)/.ready: pyproject.toml
	rm -rf $(PEERS)
	$(BIN)/python -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(PEERS)/bin/python -m pip install --quiet --no-deps --group peers
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > "$$($(PEERS)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/base.pth"
	@touch $@

# pip 25.1 is the first that knows --group; the pip that comes with Python 3.11 to 3.13 may be older.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo >&2; \
	echo "chunkvisor needs Python 3.11 or later, and '$(PYTHON)' is $$($(PYTHON) -V 2>&1 || true). Name another one: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet -c constraints.txt --editable '.[worker,minilm,notify,ray,parquet]' --group dev
	@touch $@
