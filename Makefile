# Needs Python 3.11 or newer, make and a shell. Recipes change files in Python, because a bare machine may lack
# other tools. The environment is installed again when `pyproject.toml` or the constraints change. That of tests has more
# than a hundred packages, which uv installs in seconds. The main job uses pip, which everyone has set up.

# Tests start programs by the hundred. Without compiled files each of them compiles the package anew (0.6 s of CPU).
export PYTHONDONTWRITEBYTECODE :=

VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
READY := $(VENV)/ready
READY_DEV := $(VENV)/ready-dev
OUT := runs/demo
BASELINE := runs/rules
BARS :=
# With this seed, the first run has every kind of fault. A test checks this.
SEED := 5

# Coverage makes a test several times slower, so that its limit is 30 seconds instead of 20. Only the tests of packages
# with a coverage limit run under it, in two rows at the same time. Sweeps over cut texts, the servers, and long tests of
# stores, of the local model and of contracts are left out, because no limit needs them. In CI each test runs once: the other tests run next to the two rows,
# three at a time because many wait for a server, on one shared Kafka. Elsewhere `cov` runs the tests of the packages.
parts_of = $(filter-out %/__pycache__,$(patsubst %/,%,$(wildcard $(1)/*/))) $(wildcard $(1)/test_*.py)
PLANNING := tests/desk/planning
UNJUDGED := $(addprefix tests/,flows operate cli tools platform benchmarks audit bus client replay infra golden services \
    monitor server) \
  $(wildcard tests/test_*.py) $(filter-out $(PLANNING),$(call parts_of,tests/desk)) \
  tests/structured/test_sweeps.py tests/worker/test_outbox_kafka.py tests/worker/test_response_cache.py \
  $(wildcard tests/contracts/test_records*.py) $(patsubst %,tests/contracts/test_%.py,agent broker interaction_store) \
  tests/llm/providers/test_local.py $(patsubst %,tests/llm/stores/test_%.py,kills log_machine power_loss)
MONEY := tests/contracts tests/governance tests/worker
print_log = $(PY) -c "print(open('$(1)', encoding='utf-8').read())"
UNDER_COVERAGE = $(PY) -m coverage run --data-file=.coverage.$(1) -m pytest --timeout=30 $(addprefix --ignore=,$(UNJUDGED))
COVERED = (($(call UNDER_COVERAGE,money) $(MONEY); money=$$?; $(1) && exit $$money) >money.log 2>&1 & money=$$!; \
  $(call UNDER_COVERAGE,answers) $(addprefix --ignore=,$(PLANNING) $(MONEY)); answers=$$?; \
  wait $$money; money=$$?; $(call print_log,money.log); \
  $(PY) -m coverage combine .coverage.money .coverage.answers && exit $$((answers + money)))
PLANNED := $(PY) -m coverage run --data-file=.planning-coverage --source=agentic_trading/desk/planning,agentic_trading/structured \
  -m pytest --timeout=60 $(PLANNING) tests/structured/test_structured_error.py tests/flows/test_json_parameter_flow.py
ROWS = $(PY) -m pytest --timeout=60 --numprocesses=3 --dist=worksteal $(UNJUDGED) >unjudged.log 2>&1 & unjudged=$$!; \
  $(call COVERED,$(PLANNED)); parts=$$?; wait $$unjudged; unjudged=$$?; \
  $(call print_log,unjudged.log); \
  exit $$((parts + unjudged))

.DEFAULT_GOAL := run
.DELETE_ON_ERROR:
.PHONY: run test soak wheel check fmt lint types arch cov bench clean always

run: $(READY)  ## play a recorded session of a small model, then one of plain rules, without key and network
	$(VENV)/bin/agentic-trading run --data btcusdt-5m --provider recorded --from smollm2 --bars 300 --out $(OUT)
	$(VENV)/bin/agentic-trading run --data btcusdt-5m --provider rules \
	  --inject malformed=5%,timeout=2%,refusal=1%,truncated=1% --seed $(SEED) $(if $(BARS),--bars $(BARS)) --out $(BASELINE)

test: $(READY_DEV)  ## run every test, in random order, on all cores
	$(if $(CI),$(ROWS),$(PY) -m pytest --numprocesses=auto --dist=worksteal)

soak: $(READY_DEV)  ## run kills, chaos, foreign clients, and property tests with many examples
	$(PY) -m pytest -m "soak or hypothesis" --hypothesis-profile=soak --timeout=600 --numprocesses=auto --dist=worksteal
	for benchmark in safety usage fuzz overspend kill_matrix chaos "chaos --bus redis" "http_money --quick" "long_session --minutes" paper_month; do $(PY) -m benchmarks.$$benchmark || exit 1; done

wheel: $(READY_DEV)  ## build the wheel, install and run it on every declared Python version
	$(PY) -m benchmarks.wheel

check: lint types arch cov  ## run all checks before a commit
	$(PY) -m tools.prose
	$(PY) -m tools.schemas check
	$(PY) -m tools.monitoring check
	$(PY) -m tools.prices

fmt: $(READY_DEV)  ## format the code
	$(PY) -m ruff format .
	$(PY) -m ruff check --fix .

lint: $(READY_DEV)  ## check format and house rules
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .

types: $(READY_DEV)  ## check types with strict mypy
	$(PY) -m mypy

arch: $(READY_DEV)  ## check the import contracts
	$(VENV)/bin/lint-imports

cov: .coverage .planning-coverage  ## check branch coverage: 100 % for money and answers, 95 % for calls, 85 % for planning
	$(PY) -m coverage report --fail-under=95 --include="$(call within,llm/* governance/* structured/* worker/*)"
	$(PY) -m coverage report --fail-under=100 --include="$(call within,$(EXACT))"
	$(PLANNED_AT)=100 --include="$(call within,desk/planning/params.py)"
	$(PLANNED_AT)=95 --include="$(call within,desk/planning/generator.py)"
	$(PLANNED_AT)=90 --include="$(call within,structured/feedback.py)"
	$(PLANNED_AT)=85 --include="$(call within,desk/planning/agent.py desk/planning/evaluator.py desk/planning/search.py)"

bench: $(READY_DEV)  ## measure the cost of a call, next to other libraries
	$(PY) benchmarks/call_path.py

clean:  ## remove build artifacts, except runs/
	@$(call find_python) -c "import pathlib, shutil; \
	  [shutil.rmtree(p, ignore_errors=True) for p in ('$(VENV)', '.mypy_cache', '.ruff_cache', '.pytest_cache', '.import_linter_cache', '.hypothesis')]; \
	  [pathlib.Path(p).unlink(missing_ok=True) for p in ('.coverage', '.planning-coverage', 'money.log', 'unjudged.log', 'checks.log')]"

# Money and answers: every branch of these files is tested.
EXACT := governance/prices.py governance/ledger.py governance/ledgers/* governance/gate.py governance/sent_call.py \
  governance/admission.py governance/rules.py governance/rebuild.py governance/policy.py \
  structured/decode.py structured/tokens.py structured/json_repair.py structured/extract.py structured/validation.py \
  structured/patch.py structured/pipeline.py structured/engine.py


comma := ,
empty :=
within = $(subst $(empty) $(empty),$(comma),$(addprefix agentic_trading/,$(1)))

# The first interpreter that is new enough and can create an environment.
define find_python
for p in $(PYTHON) python3.11 python3 python3.13 python3.12 python; do \
  "$$p" -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && break; p=; \
done; \
if [ -z "$$p" ]; then \
  echo 'Python 3.11 or newer, with its venv module, is not on PATH.' >&2; \
  echo 'Install it (Debian and Ubuntu: python3.11 and python3.11-venv), or say where it is: make PYTHON=/path/to/python3.11' >&2; \
  exit 1; \
fi; "$$p"
endef

$(PY):
	@$(call find_python) -m venv $(VENV)

$(READY): pyproject.toml constraints.txt | $(PY)
	$(PIP) --editable .
	@$(PY) -c "import pathlib; pathlib.Path('$@').touch()"

$(READY_DEV): pyproject.toml constraints.txt | $(PY)
	$(PIP) uv
	$(VENV)/bin/uv pip install --quiet --python $(PY) --constraint constraints.txt --editable '.[dev]'
	@$(PY) -c "import pathlib; pathlib.Path('$@').touch()"

PLANNED_AT = $(PY) -m coverage report --data-file=.planning-coverage --fail-under

.coverage: $(if $(CI),,always) | $(READY_DEV)
	$(call COVERED,true)

.planning-coverage: $(if $(CI),,always) | $(READY_DEV)
	$(PLANNED)
