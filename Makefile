PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
# A strict editable install links single files: adding or removing one requires a reinstall.
SOURCES := pyproject.toml setup.py \
    $(shell find api launch pipeline reader transforms -name __init__.py -printf '%h ')

# Tests start hundreds of processes, which would compile every module of every package again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: env demo test test-python lowest test-torch test-airflow test-airflow-standalone check \
    integration bench rates docs engines flink flink-stop template dist clean

# What imageshards itself requires.
$(VENV)/core: $(SOURCES)
	@PYTHON="$(PYTHON)" sh .ci/install $(VENV)
	@touch $@

# What the tests require, too.
$(VENV)/dev: $(SOURCES)
	@PYTHON="$(PYTHON)" sh .ci/install $(VENV) dev
	@touch $(VENV)/core $@

env: $(VENV)/dev

demo: $(VENV)/core
	@$(BIN)/imageshards demo demo

PYTEST_UNITS := $(BIN)/pytest tests --numprocesses logical --maxprocesses 8 --dist worksteal \
    --ignore tests/integration --ignore tests/airflow --ignore tests/docs/test_site.py

test: env
	$(PYTEST_UNITS) -m 'not slow'

# make test-python PYTHON=python3.13: the same tests with another version of Python.
test-python:
	$(MAKE) test PYTHON=$(PYTHON) VENV=.venv-$(notdir $(PYTHON))

# The core with the lowest version of each requirement.
.lowest/made: $(SOURCES) | env
	$(BIN)/uv venv --quiet --allow-existing --python $(BIN)/python .lowest
	$(BIN)/uv pip install --quiet --python .lowest/bin/python --resolution lowest-direct \
	    --config-settings editable_mode=strict --editable '.[dev]'
	touch $@

lowest: .lowest/made
	.lowest/bin/pytest tests/test_api.py tests/transforms tests/pipeline/test_build.py \
	    tests/pipeline/test_golden.py \
	    tests/integration/test_gcs.py::test_a_build_reads_from_a_bucket_and_writes_to_it \
	    tests/integration/test_gcs.py::test_an_object_that_is_replaced_after_the_listing_is_not_read \
	    --numprocesses logical --maxprocesses 8 --dist worksteal -m 'not slow'

# PyTorch has a virtual environment of its own, of 5 GB, which also sees the project's packages.
SITE := import sysconfig; print(sysconfig.get_path("purelib"))

.torch/made: | env
	$(BIN)/uv venv --quiet --allow-existing --python $(BIN)/python .torch
	$(BIN)/uv pip install --quiet --python .torch/bin/python torch
	echo "import site; site.addsitedir('$$($(BIN)/python -c '$(SITE)')')" \
	    > "$$(.torch/bin/python -c '$(SITE)')/project.pth"
	touch $@

test-torch: .torch/made
	.torch/bin/python -m pytest tests/integration/test_torch.py

# Airflow has a virtual environment of its own, and runs imageshards in that of the project.
AIRFLOW := .airflow/venv

$(AIRFLOW)/made: launch/airflow/requirements.txt
	test -x $(AIRFLOW)/bin/python || $(PYTHON) -m venv $(AIRFLOW)
	$(AIRFLOW)/bin/python -m pip install --quiet --disable-pip-version-check \
	    --requirement $< pytest
	touch $@

test-airflow: env $(AIRFLOW)/made
	$(AIRFLOW)/bin/python -m pytest tests/airflow --confcutdir tests/airflow \
	    --override-ini 'pythonpath=tests/airflow tests' $(or $(TESTS),-m 'not standalone')

# Runs `airflow standalone`: a scheduler, its web server and SQLite, for some minutes.
test-airflow-standalone:
	$(MAKE) test-airflow TESTS='-m standalone'

check: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/hadolint launch/dataflow/Dockerfile

integration: env
	$(PYTEST_UNITS) -m slow
	$(BIN)/pytest -rs tests/integration --ignore tests/integration/test_torch.py

# The documentation site, in build/site. MkDocs has a virtual environment of its own.
.docs/made: pyproject.toml
	test -x .docs/bin/python || $(PYTHON) -m venv .docs
	$(PYTHON) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]\
	["optional-dependencies"]["docs"], sep="\n")' > .docs/requirements.txt
	.docs/bin/python -m pip install --quiet --disable-pip-version-check \
	    --requirement .docs/requirements.txt
	touch $@

docs: .docs/made
	NO_MKDOCS_2_WARNING=1 .docs/bin/mkdocs build --strict --quiet
	.docs/bin/pytest tests/docs/test_site.py --confcutdir tests/docs

# Beam runners for tests and benchmarks; needs Java, Maven and Go.
engines: .engines/flink.made .engines/bin/prism

.engines/flink.made: launch/flink/pom.xml
	mvn -q -B -f $< -P cluster package
	mvn -q -B -f $< -P job-server package
	touch $@

.engines/bin/prism: | env
	GOBIN=$(CURDIR)/.engines/bin go install github.com/apache/beam/sdks/v2/go/cmd/prism@v$$( \
	    $(BIN)/python -c 'from importlib.metadata import version; print(version("apache-beam"))')

# make flink [FLINK='--rest_port 0 --task_managers 3 ...']
flink: env .engines/flink.made
	$(BIN)/python launch/flink/cluster.py start $(FLINK)

flink-stop:
	$(BIN)/python launch/flink/cluster.py stop

# make bench IMAGES=DIR [COPIES=10] [ROUNDS=3] [BENCH='--only tar ...']
COPIES ?= 10
ROUNDS ?= 3
bench: env
	@test -n "$(IMAGES)" || { echo "make bench IMAGES=DIR [COPIES=10] [ROUNDS=3]" >&2; exit 2; }
	$(BIN)/python -m benchmarks.run "$(IMAGES)" --copies $(COPIES) --rounds $(ROUNDS) $(BENCH)

# The constants of estimates (`advise`, --dry_run) become those that make bench measured.
rates: env
	$(BIN)/python -m benchmarks.rates
	$(BIN)/python -m imageshards.launch.fleet.scale launch/dataflow

# make template PROJECT=P REGION=R REPOSITORY=A BUCKET=B [TAG=T] [DRY_RUN=1]
template: env
	@PROJECT="$(PROJECT)" REGION="$(REGION)" REPOSITORY="$(REPOSITORY)" BUCKET="$(BUCKET)" \
	    TAG="$(TAG)" DRY_RUN="$(DRY_RUN)" PYTHON=$(BIN)/python launch/dataflow/template.sh

# The sdist and the wheel, checked as the package index checks them.
dist: env
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/python -m twine check --strict dist/*

clean:
	rm -rf .venv .venv-* .lowest .torch .airflow .docs .engines .pytest_cache build demo dist benchmarks/.venv \
	    *.egg-info
