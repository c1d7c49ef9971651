.DEFAULT_GOAL := help
.PHONY: help format check rooms unit test fuzz faults soak docs quickstart

help:  ## Show this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## *' '{printf "  %-11s %s\n", $$1, $$2}'

format:  ## Format, and fix what ruff can fix
	ruff format .
	ruff check --fix .

check:  ## Run before a commit: format, lint, import contracts, quick tests
	ruff format --check .
	ruff check .
	$(MAKE) --no-print-directory rooms unit

FROM = .
rooms:  # import contracts, on an installed copy (FROM=WHEEL of a built one), where pipelines/ is inside the package
	@rm -rf build/rooms build/lib build/bdist.*
	pip install -q --no-deps --no-build-isolation --target build/rooms $(FROM)
	cd build/rooms && PYTHONPATH=. lint-imports --config ../../pyproject.toml --no-cache

unit:  # the tests that take seconds
	python -m pytest -q -n 2 --dist worksteal -m "not slow and not external and not gpu"

test:  ## Run all tests
	python -m pytest -n 2 --dist worksteal

FUZZ = 10000
fuzz:  ## Open malformed files and requests: FUZZ=10000 of each kind
	mkdir -p build
	PYTHONPATH=.:scripts python -m tests.fuzz --count $(FUZZ) --json build/fuzz.json

KILLS = 200
faults:  ## Kill and hinder long commands KILLS=200 times, type them again, and compare
	mkdir -p build
	PYTHONPATH=.:scripts python -m tests.faults --kills $(KILLS) --json build/faults.json

MINUTES = 30
soak:  ## Send mixed requests to a server for MINUTES=30
	mkdir -p build
	python scripts/soak.py --minutes $(MINUTES) --json build/soak.json

docs:  ## Build the documentation site in build/site
	NO_MKDOCS_2_WARNING=1 mkdocs build --quiet --strict

quickstart:  ## Time the shipped pool, tune its SQL expert, bundle and compare
	drafterforge quickstart
