# Two commands for a newcomer: `make study` and `make test`. Everything lives in .venv and the user's cache folder.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
PLAN   ?= plans/quick.yaml
RECORD := data/runs/recorded-quick
RACE   := data/runs/recorded-peers-cpu
SERVING := data/runs/recorded-serving-cpu
AGENTS := data/runs/recorded-agents-cpu

.PHONY: study peers serving test lab figures notebooks environment lint setup model static cpu-rows gpu-day
.DELETE_ON_ERROR:

study: model
	$(BIN)/wholecurve study $(PLAN)

# The race against other engines, each set up once in the user's cache folder: about an hour the first time.
peers: model
	$(BIN)/wholecurve peers setup
	$(BIN)/wholecurve study plans/peers_cpu.yaml

# Servers under load, and agents on them: half an hour and twenty minutes, once the peers are set up.
serving: model
	$(BIN)/wholecurve peers setup vllm llama.cpp
	$(BIN)/wholecurve study plans/serving_cpu.yaml
	$(BIN)/wholecurve study plans/agents_cpu.yaml

test: model
	$(BIN)/ruff check lib tests notebooks
	$(BIN)/python -m pytest tests notebooks --nbval-lax --nbval-cell-timeout=120 --nbval-current-env \
	  -n 2 --dist loadfile --durations=10

lab: setup
	$(BIN)/jupyter lab --notebook-dir=notebooks $(if $(filter 0,$(shell id -u)),--allow-root)

figures: setup
	$(BIN)/wholecurve figures $(RECORD) --out figures
	$(BIN)/wholecurve figures $(RACE) --out figures/race
	$(BIN)/wholecurve figures $(SERVING) --out figures/serving
	$(BIN)/wholecurve figures $(AGENTS) --out figures/agents
	$(BIN)/wholecurve figures --out figures

notebooks: setup
	$(BIN)/python notebooks/render.py

# The table of all kernels compiled for GPUs that are not here: registers, spills, shared memory, instructions, bounds.
static: setup
	$(BIN)/wholecurve profile --all --target sm_90 --target sm_100 --target sm_80 --target gfx942 --out data/kernels/static.csv

# The CPU forms against plain torch, in turns, on one thread and on two: half an hour, on a machine that does nothing else.
cpu-rows: setup
	$(BIN)/wholecurve profile --all --target cpu --threads 1 --threads 2 --out data/kernels/cpu.csv

# On a GPU machine, with whatever python has torch and triton there: nothing is installed and no network is needed.
gpu-day:
	PYTHONPATH=lib $(PYTHON) -m wholecurve.profiling.gpu_day --out data/kernels/gpu-day-$$(date +%Y-%m-%d)

lint: setup
	$(BIN)/ruff check lib tests notebooks

environment: setup
	$(BIN)/pyproject2conda project --envs wholecurve --yaml-ext .yml --overwrite force

setup: $(READY)

model: setup
	$(BIN)/wholecurve model fetch

# Without the stamp the environment may be half-installed (a killed first run), so it is made anew;
# with an older stamp only what changed is installed.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if v in ((3, 11), (3, 12)) else \
	  f"wholecurve needs Python 3.11 or 3.12, $(PYTHON) is {v[0]}.{v[1]}: run `make PYTHON=python3.12 $(MAKECMDGOALS)`")'
	@test -f $(READY) || $(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[engine,serving,peers,parquet,notebook,test]'
	@touch $(READY)
