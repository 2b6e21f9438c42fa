# Everything a person or the CI does here. Needs Python 3.11+ and make; the rest arrives in .venv.
# `make` alone lists the targets: the texts after `##` are the list.

VENV := .venv
STAMP := $(VENV)/.stamp
RUN := $(VENV)/bin
# Bytecode is kept, also where the environment says otherwise: the tests start a thousand processes.
unexport PYTHONDONTWRITEBYTECODE
CODE := $(wildcard src tests scripts examples benchmarks prove)

.DEFAULT_GOAL := help
.PHONY: help setup demo test serve check format bench bench-full bench-lake bench-routing bench-folder bench-postgres bench-sink bench-replay bench-peers prove lock dist clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' Makefile

setup: $(STAMP) ## everything into .venv, once (another Python: make setup PYTHON=python3.12)

$(STAMP): pyproject.toml constraints.txt src/waypost/version.py scripts/make_venv.py
	@python=$$(sh scripts/find_python.sh) && "$$python" -m scripts.make_venv && touch $@

demo: $(STAMP) ## the broker at work, then Spark over its log; two minutes, ends by itself
	@$(RUN)/python examples/demo.py

test: $(STAMP) ## every test (ARGS=tests/unit for a part)
	@$(RUN)/python -m scripts.test_servers test
	$(RUN)/python -m pytest -n 2 --durations=25 $(ARGS)

serve: $(STAMP) ## a broker on port 8080, data in waypost-data (ARGS="--port 9000")
	@$(RUN)/waypost serve $(ARGS)

check: $(STAMP) ## format, lint, types, import contracts
	$(RUN)/ruff format --check .
	$(RUN)/ruff check .
	$(RUN)/mypy $(CODE)
	$(RUN)/lint-imports --no-logo

format: $(STAMP) ## write the code as `make check` wants it
	$(RUN)/ruff format .
	$(RUN)/ruff check --fix .

bench: $(STAMP) ## Waypost and every installed peer, up to 15 minutes
	@$(RUN)/python -m benchmarks.run $(ARGS)

bench-full: $(STAMP) ## the same with every cell and the backlog of 10 million
	@$(RUN)/python -m benchmarks.run --full $(ARGS)

bench-lake: $(STAMP) ## the lake and Spark: sealing, source, folds, about half an hour
	@$(RUN)/python -m benchmarks.lake $(ARGS)

bench-routing: $(STAMP) ## routing in Spark beside routing in the broker, five minutes
	@$(RUN)/python -m benchmarks.routing $(ARGS)

bench-folder: $(STAMP) ## the folder store beside one fsync and rename a message, two minutes
	@$(RUN)/python -m benchmarks.folder $(ARGS)

bench-postgres: $(STAMP) ## brokers on one PostgreSQL, beside a plain queue table; about ten minutes
	@$(RUN)/python -m benchmarks.postgres $(ARGS)

bench-sink: $(STAMP) ## Spark's sink beside POST /v1/messages, about five minutes
	@$(RUN)/python -m benchmarks.sink $(ARGS)
bench-replay: $(STAMP) ## replay from the lake beside plain publishes, two minutes
	@$(RUN)/python -m benchmarks.replay $(ARGS)

bench-peers: ## install the peers that the benchmark compares with (Debian, root)
	@benchmarks/install_peers.sh

prove: $(STAMP) ## kill -9 and power cuts: that no acknowledged message is lost (root, long, resumable)
	@$(RUN)/python -m scripts.test_servers prove
	@$(RUN)/python -m prove $(ARGS)

lock: $(STAMP) ## renew constraints.txt from pyproject.toml
	$(RUN)/uv pip compile --quiet --system-certs --universal --upgrade --python-version 3.11 --no-header --no-annotate \
	    --no-emit-index-url --no-emit-find-links --all-extras --group dev -o constraints.txt pyproject.toml

dist: $(STAMP) ## wheel and source archive into dist
	$(RUN)/python -m hatchling build

clean: ## remove .venv and everything built
	rm -rf $(VENV) dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
