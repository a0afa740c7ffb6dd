# RLGuard. A machine needs python3 (>= 3.11) with pip, and make; everything else is fetched by name.
# `make help` lists the targets.

SHELL := /bin/bash
CACHE ?= $(HOME)/.cache/rlguard
UV_VERSION := 0.13.8
UV := $(CACHE)/uv-$(UV_VERSION)/bin/uv
VENV := .venv
PY := $(VENV)/bin/python
export OMP_NUM_THREADS ?= 1
# Many containers forbid Python to keep bytecode. Each of the thousands of processes that the tests start would then compile
# anew what it imports, torch too, which takes longer than all else they do.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help

help: ## This list.
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | sort | expand -t 18

$(UV):
	python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --target $(CACHE)/uv-$(UV_VERSION) uv==$(UV_VERSION)

# The lock file names versions and hashes but no index, so that a private mirror works as it is.
$(VENV)/.installed: requirements.lock pyproject.toml | $(UV)
	test -x $(PY) || $(UV) venv --quiet --python "$$(command -v python3)" $(VENV)
	$(UV) pip sync --quiet --python $(PY) --require-hashes requirements.lock
	$(UV) pip install --quiet --python $(PY) --no-deps --editable .
	touch $@

install: $(VENV)/.installed ## A virtual environment in .venv with everything pinned by requirements.lock.

demo: install ## A real GRPO run that hacks its reward, and the guard that stops it; no download, no GPU.
	$(VENV)/bin/rlguard demo

lock: | $(UV) ## Resolve pyproject.toml into requirements.lock again.
	$(UV) pip compile --quiet --upgrade --universal --all-extras --group dev --generate-hashes --no-annotate --no-header pyproject.toml -o requirements.lock

lint: install ## ruff, mypy --strict, and which package may import which.
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

format: install ## Format and fix what ruff can.
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

generate: install ## Write what is generated from the code: docs/reference, CRD, RBAC, the chart's files, the demo's sample.
	$(PY) -m tools.generate

site: install ## The documentation site, in build/site; a link that leads nowhere is an error.
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict --quiet

verify: install ## Fail if a generated file is stale.
	$(PY) -m tools.generate --check

control-plane: ## Build kube-apiserver and etcd for the integration tests, once; KUBEBUILDER_ASSETS is honoured.
	@CACHE=$(CACHE) tests/operator/controlplane/build.sh

chart-tools: ## Build helm, kustomize and promtool for the chart's tests, once.
	@CACHE=$(CACHE) tests/chart/build.sh

# The longest files first: the last ones are short, and no worker waits for another.
FIRST := $(addprefix tests/,trainer heldout)
APART := $(addprefix tests/,core detection bench e2e vllm gpu on_ray kinds __pycache__)
OTHERS := $(FIRST) $(filter-out $(FIRST) $(APART),$(patsubst %/,%,$(wildcard tests/*/)))
# These only compute, and wait for nothing: they have what others leave of the cores.
COMPUTE := tests/cli/replay

# mypy takes one core. On the other all modules of the tests are read once, with what they import: what must be compiled
# for that, torch too, is then there for the workers, of which each would compile it. What fails ends nothing: CI says all.
test: install browser control-plane chart-tools ## Every check: lint, all tests on this machine, those on kind, and beside both the rules with their coverage and vLLM.
	@$(MAKE) --no-print-directory -j2 lint read-tests
	@tests/beside.sh '$(MAKE) --no-print-directory --keep-going test-beside' $(MAKE) --no-print-directory --keep-going test-others test-kind

test-others: install
	$(VENV)/bin/pytest -q -n 3 --dist loadfile --no-loadscope-reorder -m 'not long' $(OTHERS) $(COMPUTE:%=--ignore=%)

test-kind: install
	@if docker info >/dev/null 2>&1; then RLGUARD_E2E_SHORT=1 $(MAKE) --no-print-directory e2e; else \
	  echo "make test: the end-to-end tests on kind were NOT run: no Docker daemon responds here" >&2; fi

read-tests: install
	@$(VENV)/bin/pytest --collect-only -qq tests/core tests/detection $(OTHERS) >/dev/null

# With what others leave of the cores a test of seconds may take minutes.
test-beside: export PYTEST_ADDOPTS := --timeout=1800
# vLLM last: its engines are sessions of their own, which have as large a share of the cores as any.
test-beside: test-rules test-compute test-vllm

test-compute: install
	$(VENV)/bin/pytest -q -n 2 -m 'not long' $(COMPUTE)

test-rules: install ## The rules and the detectors, with the coverage of guard_core: at least 90 % of its branches.
	$(VENV)/bin/pytest -q -n 2 tests/core tests/detection --cov=guard_core --cov-branch --cov-report=term-missing:skip-covered --cov-fail-under=90

test-long: install control-plane ## The tests of a minute or more that `make test` has no room for: whole runs, and a broken cluster that is waited for.
	$(VENV)/bin/pytest -q -n 2 --dist loadfile -m long $(OTHERS)

# vLLM needs another torch than the rest, so it has a lock and an environment of its own, of 6 GB, kept by the lock's digest.
VLLM := $(CACHE)/vllm-$(shell sha256sum tests/vllm/requirements.lock | cut -c1-12)

$(VLLM)/.installed: | $(UV)
	$(UV) venv --quiet --clear --python "$$(command -v python3)" $(VLLM)
	$(UV) pip sync --quiet --python $(VLLM)/bin/python --require-hashes tests/vllm/requirements.lock
	touch $@

test-vllm: $(VLLM)/.installed ## The tests of the evaluator `vllm`, with a real vLLM on the CPU.
	PYTHONPATH=$(CURDIR) $(VLLM)/bin/python -m pytest -q -m 'not long' tests/vllm

vllm-runs: $(VLLM)/.installed install ## A real GRPO run with LoRA that hacks, and its honest twin, judged through vLLM on the CPU; not part of `make test`.
	PYTHONPATH=$(CURDIR) $(VLLM)/bin/python -m pytest -q -s -m long tests/vllm

# In the environment of PYTHON: vLLM's build for CUDA, the guard and pytest, as of images/vllm.lock.
test-gpu bench-gpu: PYTHON ?= python3
test-gpu: ## The tests of the evaluator `vllm` on an NVIDIA GPU, in an environment that you name by PYTHON; not part of `make test`.
	PYTHONPATH=$(CURDIR) $(PYTHON) -m pytest -q -s --durations=0 tests/gpu

bench-gpu: ## There, too: what an evaluation takes, against the formula of docs/cost.md and against plain `LLM.generate`.
	PYTHONPATH=$(CURDIR) $(PYTHON) -m tests.bench.bench_gpu

LOCK_VLLM := pip compile --quiet --upgrade --universal --generate-hashes --no-annotate --no-header --extra eval-hf pyproject.toml

lock-ray: | $(UV) ## Resolve again what the image of the RayJobs on kind has beside the trainer's, and what `make test-ray` runs in.
	$(UV) pip compile --quiet --upgrade --python-version 3.11 --python-platform linux --generate-hashes --no-annotate --no-header --constraint requirements.lock tests/e2e/cluster/ray/requirements.in -o tests/e2e/cluster/ray/requirements.lock
	$(UV) pip compile --quiet --upgrade --universal --generate-hashes --no-annotate --no-header --extra guard pyproject.toml tests/on_ray/requirements.in -o tests/on_ray/requirements.lock

lock-vllm: | $(UV) ## Resolve again what these tests run in, and what the image guard-vllm holds.
	$(UV) $(LOCK_VLLM) --extra cli --override tests/vllm/overrides.txt tests/vllm/requirements.in -o tests/vllm/requirements.lock
	$(UV) $(LOCK_VLLM) images/vllm.in -o images/vllm.lock

# Ray beside the guard, in an environment of its own, kept by the lock's digest.
RAY := $(CACHE)/ray-$(shell sha256sum tests/on_ray/requirements.lock | cut -c1-12)

$(RAY)/.installed: | $(UV)
	$(UV) venv --quiet --clear --python "$$(command -v python3)" $(RAY)
	$(UV) pip sync --quiet --python $(RAY)/bin/python --require-hashes tests/on_ray/requirements.lock
	touch $@

test-ray: $(RAY)/.installed ## The client in an actor, with a real Ray of two nodes on this machine; not part of `make test`.
	PYTHONPATH=$(CURDIR) $(RAY)/bin/python -m pytest -q tests/on_ray

# TRL=0.29 is the oldest release that pyproject.toml allows; everything else is as locked, and the lock has the newest.
TRL ?= $(shell sed -n 's/.*"trl>=\([0-9.]*\),.*/\1/p' pyproject.toml)
OTHER_TRL = build/trl-$(TRL)

test-trl: | $(UV) ## The trainer's tests with the oldest TRL that is allowed, or with TRL=1.8; not part of `make test`.
	$(UV) venv --quiet --clear --python "$$(command -v python3)" $(OTHER_TRL)
	$(UV) pip sync --quiet --python $(OTHER_TRL)/bin/python --require-hashes requirements.lock
	$(UV) pip install --quiet --python $(OTHER_TRL)/bin/python --no-deps --editable . 'trl~=$(TRL).0'
	$(OTHER_TRL)/bin/pytest -q tests/trainer

test-kinds: install control-plane ## RayJob, JobSet, TrainJob and a Kueue queue against their real controllers, which are built once; not part of `make test`.
	$(VENV)/bin/pytest -q tests/kinds

# The API server of another minor version than the pinned one; tests/go/kubernetes-* are those that there are.
test-kubernetes: install chart-tools ## What an API server decides (CRD, admission, reconciling), with VERSION=1.30, 1.32 or 1.36; not part of `make test`.
	RLGUARD_KUBERNETES=$(VERSION) CACHE=$(CACHE) tests/operator/controlplane/build.sh >/dev/null
	RLGUARD_KUBERNETES=$(VERSION) $(VENV)/bin/pytest -q -n 3 --dist loadfile tests/operator/integration tests/chart/test_cluster.py

# SEED repeats a run, ONLY='etcd killed' plays one round of it and leaves the page as it is.
chaos: install control-plane ## Kills, partitions, full disks and clock jumps around 100 fires and 100 healthy runs; writes docs/reliability.md.
	$(PY) -m tests.chaos $(if $(SEED),--seed $(SEED)) $(if $(RUNS),--runs $(RUNS)) $(if $(ONLY),--only '$(ONLY)',--page docs/reliability.md)

chaos-kind: kind-up ## The same on a kind cluster, with its kubelet and training-operator; writes docs/reliability-on-kind.md.
	RLGUARD_E2E=build/e2e/cluster.json $(PY) -m tests.chaos.on_kind $(if $(SEED),--seed $(SEED)) $(if $(RUNS),--runs $(RUNS)) $(if $(ONLY),--only '$(ONLY)',--page docs/reliability-on-kind.md)

e2e: install ## The end-to-end tests on a kind cluster, which is made first and deleted after; RLGUARD_E2E uses an existing one.
	CACHE=$(CACHE) tests/e2e/run.sh

e2e-kinds: install ## RayJob and RayCluster with real Ray, JobSet, TrainJob, and Kueue's queue, on such a cluster with their controllers; not part of `make test`.
	CACHE=$(CACHE) tests/e2e/run.sh kinds

e2e-vllm: install ## A guard with vLLM's build for CPUs in a pod of its own, on such a cluster: a run with a LoRA adapter that hacks, and its honest twin; not part of `make test`.
	CACHE=$(CACHE) tests/e2e/run.sh vllm

# KINDS='kuberay jobset' puts these controllers in it, too.
kind-up: install ## A kind cluster with the training-operator and our images, to keep; run it again to bring it up to date.
	@mkdir -p build/e2e
	CACHE=$(CACHE) tests/e2e/cluster/up.sh $(KINDS) >build/e2e/cluster.json
	@$(PY) -c 'import json, os; c = json.load(open("build/e2e/cluster.json")); \
	  print("export KUBECONFIG=" + c["kubeconfig"]); \
	  print("export PATH=%s:%s:$$PATH" % tuple(os.path.dirname(c[tool]) for tool in ("kubectl", "helm")))'

kind-down: ## Delete it.
	CACHE=$(CACHE) tests/e2e/cluster/down.sh

# The page is tested in a real browser; Playwright's own download is not needed.
browser:
	@command -v chromium >/dev/null || { \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null; \
	  else \
	    echo "make test needs Chromium for the dashboard's tests: install the package 'chromium'" >&2; exit 1; \
	  fi; }

bench-detection: install ## Simulate the detectors, replay the recorded runs; writes docs/detection.md and docs/real-runs.md (half an hour on two cores).
	$(PY) tests/bench/bench_detection.py

bench: install $(VLLM)/.installed ## Every benchmark, each as a ratio in one run (see docs/benchmarks.md).
	@for bench in ack startup trainer evaluation replay; do $(PY) tests/bench/bench_$$bench.py || exit 1; done
	@PYTHONPATH=$(CURDIR) $(VLLM)/bin/python tests/bench/bench_vllm.py 2>/dev/null

bench-operator: kind-up control-plane ## Teardown on kind against `kubectl delete`; then 1,000 and 5,000 jobs on a real API server.
	RLGUARD_E2E=build/e2e/cluster.json $(PY) tests/bench/bench_teardown.py
	for jobs in 1000 5000; do $(PY) tests/bench/bench_operator.py --jobs $$jobs --training-operator "$$(ls -t $(CACHE)/training-operator-v*/manager | head -1)" || exit 1; done

bench-kinds: ## Teardown of every kind on kind, and of what a guard is attached to, against `kubectl delete` of the same.
	$(MAKE) --no-print-directory kind-up KINDS='kuberay jobset trainer'
	RLGUARD_E2E=build/e2e/cluster.json $(PY) tests/bench/bench_teardown.py PyTorchJob Job JobSet TrainJob RayJob AttachedPyTorchJob AttachedJob AttachedTrainJob AttachedRayJob RayCluster

BASE_IMAGE ?= debian:bookworm-slim
DOCKER_FLAGS ?=
VERSION := $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' guard_core/_version.py)
IMAGES := operator guard guard-hf guard-vllm trainer

images: $(IMAGES:%=image-%) ## Build rlguard/{operator,guard,guard-hf,guard-vllm,trainer}; BASE_IMAGE and DOCKER_FLAGS are passed on.

image-trainer:
	docker build $(DOCKER_FLAGS) --build-arg BASE_IMAGE=$(BASE_IMAGE) -f Dockerfile.trainer -t rlguard/trainer:$(VERSION) .

image-%:
	docker build $(DOCKER_FLAGS) --build-arg BASE_IMAGE=$(BASE_IMAGE) -f Dockerfile.guard --target $* -t rlguard/$*:$(VERSION) .

push: images ## Push them to REGISTRY/rlguard/…, which is the chart's global.imageRegistry (log in first; ECR works).
	@test -n "$(REGISTRY)" || { echo "set REGISTRY, as in make push REGISTRY=host/path" >&2; exit 2; }
	for image in $(IMAGES); do \
	  docker tag rlguard/$$image:$(VERSION) $(REGISTRY)/rlguard/$$image:$(VERSION) && docker push $(REGISTRY)/rlguard/$$image:$(VERSION) || exit 1; \
	done

# The same commit gives the same wheel and SBOMs.
release: export SOURCE_DATE_EPOCH := $(shell git log -1 --format=%ct 2>/dev/null || echo 0)
release: install ## dist/: wheel, source, both charts, an SBOM of each and of each image, checksums; says what to sign.
	rm -rf dist
	$(PY) -m hatchling build
	helm=$$(CACHE=$(CACHE) tests/chart/build.sh helm) && for chart in rlguard-crds rlguard; do \
	  "$$helm" package charts/$$chart --destination dist || exit 1; \
	done
	$(PY) -m tools.release dist

actionlint: ## Build actionlint for the workflows' test, once.
	@CACHE=$(CACHE) tests/tools/build.sh

clean: ## Remove what the build made (not the cache).
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist build

.PHONY: demo help install lock lint format generate site verify control-plane chart-tools test-long chaos chaos-kind test read-tests test-others test-kind test-compute test-beside test-kubernetes test-rules test-vllm test-gpu bench-gpu vllm-runs test-ray lock-ray lock-vllm test-trl test-kinds e2e e2e-kinds e2e-vllm kind-up kind-down browser bench bench-detection bench-kinds bench-operator images image-trainer push release actionlint clean
