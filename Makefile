.DEFAULT_GOAL := help
.PHONY: help format check rooms unit test quickstart

help:  ## Show this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## *' '{printf "  %-11s %s\n", $$1, $$2}'

format:  ## Format, and fix what ruff can fix
	ruff format .
	ruff check --fix .

check:  ## Everything to run before a commit: format, lint, rooms, unit tests
	ruff format --check .
	ruff check .
	$(MAKE) --no-print-directory rooms unit

rooms:  ## Import contracts, on an installed snapshot so that pipelines/ lies inside the package
	@rm -rf build
	pip install -q --no-deps --no-build-isolation --target build/rooms .
	cd build/rooms && PYTHONPATH=. lint-imports --config ../../pyproject.toml --no-cache

unit:  ## The tests that take seconds
	python -m pytest -q -n 2 -m "not slow and not external and not gpu"

test:  ## Every test
	python -m pytest -n 2

quickstart:  ## The shipped pool: its speed, its sql expert tuned further, a bundle, all of it measured
	drafterforge quickstart
