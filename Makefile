# Two commands do everything on a fresh Linux machine: `make demo` and `make test`.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
# Both distributions of this tree: the code, and its weights and OCR models.
PACKAGES := -e ./assets -e '.[dev]'
# One thread per process: processes share the cores, and threads that spin at barriers starve one another.
export OMP_NUM_THREADS ?= 1
# Some virtual machines advertise AMX without providing it; bf16 matmuls then die with an illegal instruction.
export ONEDNN_MAX_CPU_ISA ?= AVX512_CORE_BF16
# Without bytecode every interpreter compiles torch anew, which takes 7 s.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup demo test test-full test-gpus lint clean storm docs dist dist-check

setup: $(VENV)/.installed $(VENV)/.browser

# uv ignores pip's find-links, so hand them on; where uv cannot be had, plain pip does the same, slower.
$(VENV)/.installed: pyproject.toml assets/pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14) and "Spotlight needs Python 3.11, 3.12 or 3.13; run make with PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet uv && UV_FIND_LINKS="$${UV_FIND_LINKS:-$$PIP_FIND_LINKS}" \
	  $(BIN)/python -m uv pip install --python $(BIN)/python $(PACKAGES) || $(BIN)/python -m pip install $(PACKAGES)
	touch $@

# The browser tests need a Chromium. Where this may not install one, they are skipped, or fail under CI=true.
$(VENV)/.browser: $(VENV)/.installed
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || \
	  { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	    { export DEBIAN_FRONTEND=noninteractive; apt-get install -yq --no-install-recommends chromium || { apt-get update -q && apt-get install -yq --no-install-recommends chromium; }; } \
	    >$(VENV)/browser.log 2>&1; } || echo "no Chromium: the browser tests are skipped; install it with your packages"
	@touch $@

demo: setup
	@echo "the command spotlight in another shell: . $(BIN)/activate"
	$(BIN)/spotlight train

test: setup lint
	$(BIN)/python -m pytest -m "not slow" -n 2 --dist loadfile

test-full: setup lint
	$(BIN)/python -m pytest -n 2 --dist loadfile

# Training ranks and crews over NCCL; skipped below two GPUs.
test-gpus: setup
	$(BIN)/python -m pytest -n 0 tests/gpus

# Fault storms over the real control plane: any range of seeds, in virtual time; a failing seed reproduces itself.
SEEDS ?= 300
START ?= 0
storm: setup
	$(BIN)/python -m spotlight.sim.storm --seeds $(SEEDS) --start $(START)

lint: setup
	$(BIN)/ruff check src tests benchmarks docs/tools
	$(BIN)/ruff format --check src tests benchmarks docs/tools
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tests/dead_code.py

# The documentation as a site that needs no network: site/index.html. A broken link fails the build.
docs: setup
	$(BIN)/python docs/tools/settings_page.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "site/index.html"

# Both wheels.
dist: setup
	rm -rf dist
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist ./assets .
	@ls -l dist

# Installs them into a fresh environment outside of the checkout, with $(PYTHON), and runs a shortened demo there.
dist-check: dist
	$(BIN)/python tests/dist_check.py --python $(PYTHON)

clean:
	rm -rf $(VENV) runs dist site
