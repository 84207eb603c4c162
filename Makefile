# make test [K=expression] [ARGS="pytest arguments"]    make check    make bench [ARGS=--markdown]    make clean
# make sites: write the shell's half of cluster/sites.toml into bin/utils.sh
# PY names the Python that .test/venv is made from. TORCH_ARGS adds pip arguments for torch, such as
# an --index-url of CPU builds where no CUDA is wanted.
# EZPZ_REQUIRE=hosts,slurm,… turns the skip of a missing part into a failure (names: tests/lab/require.py).
PY ?= python3
K ?=
ARGS ?=
export PY TORCH_ARGS EZPZ_REQUIRE

BIN := .test/venv/bin
SHELL_FILES := .ci/run tests/lab/setup $(wildcard src/ezpz/bin/* tests/*/*.sh bench/*.sh)

.PHONY: help test check bench sites clean
help:
	@sed -n '1,5s/^# //p' Makefile

test:
	@tests/lab/setup venv mpi
	@$(BIN)/python -m pytest $(if $(K),-k "$(K)") $(ARGS)

check:
	@tests/lab/setup venv
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	shellcheck --shell=bash $(SHELL_FILES)

bench:
	@tests/lab/setup venv mpi bench
	@$(BIN)/python bench/run.py $(ARGS)

sites:
	@tests/lab/setup venv
	@$(BIN)/python -m ezpz.cluster.site_shell src/ezpz/bin/utils.sh

clean:
	rm -rf .test build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
