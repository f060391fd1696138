# Every target sets up what it needs in .venv/ and costs nothing when that is done.
PYTHON ?= python3
BIN := .venv/bin
RUNS := .venv/.ready-to-run
TESTS := .venv/.ready-to-test
SET_UP_FROM := pyproject.toml .setup/install.py .setup/constraints.txt

.DEFAULT_GOAL := help
.PHONY: help setup bench test report check typecheck audit gpu runner baseline study

help: ## this list
	@sed -n 's/^\([a-z]*\):[^#]*## */\1|/p' Makefile | awk -F'|' '{ printf "  make %-10s %s\n", $$1, $$2 }'

setup: $(RUNS) ## install membound and what it needs into .venv/

bench: $(RUNS) ## measure the quick preset on the GPU, or on the CPU, and print the table
	@$(BIN)/membound run --preset quick

# Where a machine's image says not to keep bytecode, hundreds of processes would compile the same
# files.
test check audit: export PYTHONDONTWRITEBYTECODE =

test: $(TESTS) ## run the tests; no GPU needed
	@$(BIN)/python -P -m pytest -n auto --dist loadfile --no-loadscope-reorder

report: $(RUNS) ## print the table of the newest run
	@$(BIN)/membound report

check: $(TESTS) ## ruff, ruff format, mypy --strict
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(MAKE) -s typecheck

# The package is the repository root, whatever its folder is called: the link gives it its name.
typecheck: $(TESTS) .link/membound ## mypy --strict alone
	@cd .link && ../$(BIN)/mypy --strict -p membound
	@$(BIN)/mypy --strict .setup/*.py

.link/membound:
	@mkdir -p .link && ln -sfn .. $@

# -k sees marks too: the tests marked audit, the machine code of all ten architectures, and what
# `make test` leaves out of emulator, simulator, interpreter, `cpu` kernels and PyTorch.
audit: $(TESTS) ## every architecture's machine code, and the oldest versions admitted
	@MEMBOUND_AUDIT=all $(BIN)/python -P -m pytest -m 'not gpu' -k 'test_cubins or test_emulated or test_ladder or test_cpu or test_cupy or test_numba or test_torch or test_triton or audit'

# SYSTEM=1 installs nothing and uses PYTHON as it is.
gpu: $(if $(SYSTEM),,$(TESTS)) ## GPU tests, a standard run, its report; SYSTEM=1 installs nothing
	@$(if $(SYSTEM),$(PYTHON),$(BIN)/python) .setup/gpu.py $(GPU)

runner: $(if $(SYSTEM),,$(RUNS)) ## doctor, run, report and gate, as a CI job on a GPU runner does them
	@$(if $(SYSTEM),$(PYTHON),$(BIN)/python) .setup/runner.py $(RUNNER)

baseline: ## commit the run that make runner made as its device's baseline, and push it
	@.ci/baseline

study: $(RUNS) ## how often comparisons are wrong, measured on this machine; takes long
	@$(BIN)/python -P -m membound.bench.study $(STUDY)

$(RUNS): $(SET_UP_FROM)
	@$(PYTHON) .setup/install.py

$(TESTS): $(SET_UP_FROM)
	@$(PYTHON) .setup/install.py --test
