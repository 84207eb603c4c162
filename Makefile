# make test [K=expression] [JOBS=12] [SEED=s] [ARGS="pytest arguments"]: set up all that is needed, run every test but the
# trainings, each fault case on one flavour, which the seed draws (the day's, if none is given)
# make learn [SEED=s]: the tests that train whole networks, 60 random kills of a training, and all tests marked `dear`, of
# which `make test` draws a third: up to two hours
# plain `pytest` in a venv: the quick tests alone    make plain: the same as an ordinary user, in a venv without torch
# make caught [ONLY=text]: take mends of the history back one by one, and ask the tests whether they notice
# make check    make bench [ARGS="--markdown --strict"] (--strict: ends with an error where a budget was missed)    make clean
# make gpu [PEERS=DIR] [PY=python3] [ARGS="--minutes 3"]: on a GPU, the tests that need one and the trainers' speed beside
# plain torch and beside checkouts of nanoGPT, torchtitan and pytorch-image-models in DIR (docs/gpu.md); PY has torch
# make fuzz [SECONDS=300] [K=reader] [SEED=s]: damaged input for every reader of foreign bytes, so many seconds each
# make matrix [K=expression] [REPEATS=20] [KILLS=200] [PROBES=300]: every fault case on every flavour, kills and cuts
# at many moments, and jobs of Slurm, and of OpenPBS where /opt/pbs holds one, that end before their training, planted
# troubles (ours, and 98 that no rule was written for) and 300 healthy launches, into the tables of
# docs/reliability.md; pairs of runs for `ezpz compare`; set-up and ends of ranks under every launcher; what a run
# leaves when its job's time is over; random kills of a chain of jobs, a training in jobs of one minute, and probes of
# hosts after as many failures
# make distros [K=expression]: the first hour and the core faults on distributions with their own Python and MPIs: this
# machine's, and those that debootstrap can fetch, into the same page; root, some 20 minutes; then `make pythons`
# make pythons [PYTHONS="3.10 3.12 3.13"] [K=expression]: the quick tests and all trainers under each Python that is on
# PATH or in pyenv, with torch of its own, into the same page
# make soak [N=3000] [HEALTHY=300] [MINUTES=m] [SEED=s]: random kills for an hour or two, into the same page
# make older SOURCES=DIR [ARGS="--only wordplay"]: run public programs of the older package, from checkouts in DIR, into
# docs/older-scripts.md
# make sites: write the shell's half of cluster/sites.toml into bin/utils.sh
# make examples: write the job files in examples/, as `ezpz submit --dry-run` prints them
# make docs: build the pages of docs/ into .test/site, ready to be opened as files
# make gallery: record the terminals and pictures of docs/gallery.md from real runs
# make verbs: write docs/verbs.md, what every verb says of every kind of run
# make loaders: write the table of docs/data.md: every kind of loader on 1, 2 and 3 ranks, and what a resumed run does
# make completion: write the completions of bash and zsh from the parsers of all verbs
# PY names the Python that .test/venv is made from. TORCH_ARGS adds pip arguments for torch, such as
# an --index-url of CPU builds where no CUDA is wanted.
# EZPZ_REQUIRE=hosts,slurm,… turns the skip of a missing part into a failure (names: tests/lab/require.py).
PY ?= python3
K ?=
ARGS ?=
JOBS ?= 12
N ?= 3000
HEALTHY ?= 300
SECONDS ?= 300
REPEATS ?= 20
KILLS ?= 200
PROBES ?= 300
PYTHONS ?= 3.10 3.12 3.13
export PY PYTHONS TORCH_ARGS EZPZ_REQUIRE

BIN := .test/venv/bin
SHELL_FILES := .ci/run tests/lab/setup tests/lab/plain tests/reliability/enter tests/reliability/roots $(filter-out %.zsh,$(wildcard src/ezpz/bin/*)) $(wildcard tests/*/*.sh bench/*.sh examples/*.sh examples/*.pbs examples/*.slurm)

.PHONY: help test plain caught learn check bench fuzz matrix distros pythons soak older sites examples completion verbs loaders docs gallery gpu clean
help:
	@sed -n '/^PY ?=/q;s/^# //p' Makefile

test:
	@tests/lab/setup venv mpi trackers hugging_face docs uv
	@$(if $(SEED),EZPZ_TEST_SEED="$(SEED)") $(BIN)/python tests/lab/tries.py $(JOBS) tests $(if $(K),-k "$(K)") $(ARGS)

plain:
	@tests/lab/plain $(ARGS)

caught:
	@tests/lab/setup venv
	@$(BIN)/python tests/lab/caught.py $(if $(ONLY),--only "$(ONLY)") $(ARGS)

learn:
	@tests/lab/setup venv
	@EZPZ_SEED=$(SEED) $(BIN)/python -m pytest -m 'learn or dear' $(if $(K),-k "$(K)") $(ARGS)

check:
	@tests/lab/setup venv
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/shellcheck --shell=bash $(SHELL_FILES)
	$(BIN)/mypy

bench:
	@tests/lab/setup venv mpi bench
	@$(BIN)/python bench/run.py $(ARGS)
	@$(if $(findstring --only,$(ARGS)),:,$(BIN)/python bench/steady_step.py $(findstring --markdown,$(ARGS)))
	@$(if $(findstring --only,$(ARGS)),:,$(BIN)/python bench/steady_data.py $(findstring --markdown,$(ARGS)))
	@$(if $(findstring --only,$(ARGS)),:,$(BIN)/python bench/seen.py $(findstring --markdown,$(ARGS)))
	@$(if $(findstring --only,$(ARGS)),:,$(BIN)/python bench/hosts.py $(findstring --markdown,$(ARGS)))
	@$(if $(findstring --only,$(ARGS)),:,$(BIN)/python bench/hosts.py --look --hosts 1,3,64 $(findstring --markdown,$(ARGS)))
	@$(if $(findstring --only,$(ARGS)),:,$(BIN)/python bench/attempts.py $(findstring --markdown,$(ARGS)))

# With the Python that is there: its torch fits the card, and nothing is installed.
gpu:
	@PYTHONPATH=src$${PYTHONPATH:+:$$PYTHONPATH} $(PY) bench/gpu.py $(if $(PEERS),--peers "$(PEERS)") $(ARGS)

fuzz:
	@tests/lab/setup venv
	@$(BIN)/python tests/security/fuzz.py --seconds $(SECONDS) $(if $(K),--only "$(K)") $(if $(SEED),--seed $(SEED))

# A failed case is a cell of a table, so the tables are written in any case.
matrix:
	@tests/lab/setup venv mpi
	@EZPZ_TEST_ATTEMPTS=$(REPEATS) EZPZ_TEST_KILLS=$(KILLS) EZPZ_TEST_PROBES=$(PROBES) \
	  EZPZ_MATRIX=$(CURDIR)/.test/matrix.json $(BIN)/python -m pytest tests/jobs/test_faults.py \
	  tests/jobs/test_host_probe.py tests/jobs/test_training.py tests/reliability/test_cases.py \
	  tests/reliability/test_moments.py tests/view/test_pairs.py::test_every_pair_is_named_or_silent \
	  tests/reliability/test_slurm_endings.py tests/reliability/test_openpbs_endings.py tests/dist/test_endings.py \
	  tests/dist/test_ranks_agree.py tests/track/test_end_of_job.py tests/watch/test_preflight.py \
	  tests/jobs/test_chain.py::test_random_kills_make_no_second_writer_and_lose_no_checkpoint \
	  tests/reliability/test_submitted_chain.py $(if $(K),-k "$(K)") $(ARGS); code=$$?; \
	  for table in matrix early cuts shims endings openpbs; do \
	    $(BIN)/python tests/reliability/tables.py $$table .test/matrix.json docs/reliability.md || exit; done; \
	  $(BIN)/python tests/reliability/tables.py attempts .test/matrix.json docs/attempts.md || exit; \
	  EZPZ_WHY_SCORE=$(CURDIR)/.test/why.json $(BIN)/python -m pytest tests/why $(if $(K),-k "$(K)") $(ARGS) \
	    || { own=$$?; [ $$own = 5 ] || code=$$own; }; \
	  $(if $(K),,EZPZ_COMMIT=$$(git describe --always --dirty) $(BIN)/python tests/why/healthy.py --score .test/why.json || code=$$?;) \
	  [ ! -f .test/why.json ] || $(BIN)/python tests/reliability/tables.py why .test/why.json docs/reliability.md || exit; \
	  $(if $(K),,EZPZ_COMMIT=$$(git describe --always --dirty) $(BIN)/python tests/why/strangers.py --score .test/strangers.json || code=$$?;) \
	  [ ! -f .test/strangers.json ] || $(BIN)/python tests/reliability/tables.py strangers .test/strangers.json docs/reliability.md || exit; \
	  exit $$code

# `make` and not its variable, for whose sake `make -n` would run the whole line.
distros:
	@tests/lab/setup venv distribution
	@tests/reliability/roots .test/distros debian-12 debian-13 ubuntu-22.04 ubuntu-24.04
	@$(if $(K),,rm -f .test/distros.json) # with K, the other cells stay as they were found
	@EZPZ_MATRIX=$(CURDIR)/.test/distros.json $(BIN)/python -m pytest tests/reliability/test_distributions.py \
	  $(if $(K),-k "$(K)") $(ARGS); code=$$?; \
	  $(BIN)/python tests/reliability/tables.py distributions .test/distros.json docs/reliability.md || exit; \
	  $(if $(K),,make --no-print-directory pythons || code=$$?;) exit $$code

pythons:
	@tests/lab/setup venv pythons
	@$(if $(K),,rm -f .test/pythons.json) # with K, the other cells stay as they were found
	@EZPZ_MATRIX=$(CURDIR)/.test/pythons.json $(BIN)/python -m pytest tests/reliability/test_pythons.py \
	  $(if $(K),-k "$(K)") $(ARGS); code=$$?; \
	  $(BIN)/python tests/reliability/tables.py pythons .test/pythons.json docs/reliability.md && exit $$code

soak:
	@tests/lab/setup venv mpi
	@$(BIN)/python tests/reliability/soak.py --killed $(N) --healthy $(HEALTHY) $(if $(MINUTES),--minutes $(MINUTES)) \
	  $(if $(SEED),--seed $(SEED)) $(ARGS) --table docs/reliability.md

older:
	@[ -n "$(SOURCES)" ] || { echo 'make older: SOURCES=DIR names the folder of the checkouts (docs/older-scripts.md)' >&2; exit 2; }
	@tests/lab/setup venv trackers hugging_face older
	@EZPZ_OLDER=1 $(BIN)/python -m pytest tests/older
	@$(BIN)/python tests/older/run.py "$(SOURCES)" --table docs/older-scripts.md $(ARGS)

sites:
	@tests/lab/setup venv
	@$(BIN)/python -m ezpz.cluster.site_shell src/ezpz/bin/utils.sh

examples:
	@tests/lab/setup venv
	@$(BIN)/python tests/lab/job_files.py

gallery:
	@tests/lab/setup venv
	@$(BIN)/python tests/lab/gallery.py

docs:
	@EZPZ_REQUIRE=docs tests/lab/setup docs
	@.test/docs/bin/python -m sphinx -q -W --keep-going -b html -d .test/site-doctrees docs .test/site
	@echo "open .test/site/index.html"

completion:
	@tests/lab/setup venv
	@$(BIN)/python tests/lab/completion.py

verbs:
	@tests/lab/setup venv
	@EZPZ_VERBS=$(CURDIR)/docs/verbs.md $(BIN)/python -m pytest -q tests/cli/test_every_verb.py

loaders:
	@tests/lab/setup venv hugging_face
	@EZPZ_LOADERS=$(CURDIR)/docs/data.md $(BIN)/python -m pytest -q -m 'slow or not slow' tests/train/test_every_kind.py

clean:
	rm -rf .test build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
