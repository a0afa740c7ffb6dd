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

RESOLVE := pip compile --quiet --upgrade --generate-hashes --no-annotate --no-header
VLLM_EXTRAS := --universal --extra eval-hf pyproject.toml
RAY_IMAGE := tests/e2e/cluster/ray/requirements

lock: | $(UV) ## Resolve pyproject.toml again: requirements.lock, and those of vLLM and Ray.
	$(UV) $(RESOLVE) --universal --all-extras --group dev pyproject.toml -o requirements.lock
	$(UV) $(RESOLVE) $(VLLM_EXTRAS) --extra cli --override tests/vllm/overrides.txt tests/vllm/requirements.in -o tests/vllm/requirements.lock
	$(UV) $(RESOLVE) $(VLLM_EXTRAS) images/vllm.in -o images/vllm.lock
	$(UV) $(RESOLVE) --universal --extra guard pyproject.toml tests/on_ray/requirements.in -o tests/on_ray/requirements.lock
	$(UV) $(RESOLVE) --python-version 3.11 --python-platform linux --constraint requirements.lock $(RAY_IMAGE).in -o $(RAY_IMAGE).lock

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

# -- the tests -------------------------------------------------------------------------------------------------------
# `make test` leaves out tests marked `nightly`, unless they are marked `always`, too. These folders have targets of their own:
APART := $(addprefix tests/,bench e2e gpu kinds on_ray vllm __pycache__)
FAST := $(filter-out $(APART),$(patsubst %/,%,$(wildcard tests/*/))) --ignore=tests/scenarios/on_kind
PYTEST := $(VENV)/bin/pytest -q -n 2 --dist loadfile --no-loadscope-reorder
TIMED = @TIMEFORMAT='$@: %0lR'; time

# Side by side, because many tests wait, on kind most of all. What fails ends nothing else: CI says all.
test: install browser test-tools ## Lint, the fast tests, and the scenarios on kind: about twenty minutes on two idle cores.
	@$(MAKE) --no-print-directory --keep-going -j3 lint test-fast test-kind

test-fast: install test-tools ## Everything of `make test` that needs no cluster.
	$(TIMED) $(PYTEST) -m 'always or not nightly' $(FAST)

test-kind: install ## The scenarios on a kind cluster.
	$(TIMED) if docker info >/dev/null 2>&1; then CACHE=$(CACHE) WORKERS=1 tests/e2e/run.sh tests/scenarios/on_kind; else \
	  echo "make test: the scenarios on kind were NOT run: no Docker daemon responds here" >&2; fi

# Each part is a target of its own. The nightly workflow has one job for each.
PARTS := test-nightly test-vllm test-ray test-trl test-kubernetes test-kinds chaos e2e e2e-kinds e2e-vllm chaos-kind mutation

test-all: test ## `make test`, then every part that it has no room for: hours.
	@$(MAKE) --no-print-directory --keep-going $(PARTS)

test-nightly: install browser test-tools ## The tests marked `nightly`: long runs, the commands on the pages, the chart's rows, faults that are waited for.
	$(TIMED) $(PYTEST) -m 'nightly and not always' $(FAST)

# Ray and vLLM need packages that the rest cannot have. Each has a lock, and an environment that is kept by its digest.
VLLM := $(CACHE)/vllm-$(shell sha256sum tests/vllm/requirements.lock | cut -c1-12)
RAY := $(CACHE)/ray-$(shell sha256sum tests/on_ray/requirements.lock | cut -c1-12)

$(VLLM)/.installed: LOCK := tests/vllm/requirements.lock
$(RAY)/.installed: LOCK := tests/on_ray/requirements.lock
$(VLLM)/.installed $(RAY)/.installed: | $(UV)
	$(UV) venv --quiet --clear --python "$$(command -v python3)" $(@D)
	$(UV) pip sync --quiet --python $(@D)/bin/python --require-hashes $(LOCK)
	touch $@

test-vllm: $(VLLM)/.installed install ## The evaluator `vllm` with a real vLLM on the CPU, and whole runs that it judges.
	$(TIMED) env PYTHONPATH=$(CURDIR) $(VLLM)/bin/python -m pytest -q tests/vllm

test-ray: $(RAY)/.installed ## The client in an actor of a real Ray of two nodes on this machine.
	$(TIMED) env PYTHONPATH=$(CURDIR) $(RAY)/bin/python -m pytest -q tests/on_ray

# Everything else is as locked, and the lock has the newest TRL.
TRL ?= $(shell sed -n 's/.*"trl>=\([0-9.]*\),.*/\1/p' pyproject.toml)
OTHER_TRL = build/trl-$(TRL)

test-trl: | $(UV) ## The trainer's tests with the oldest TRL that pyproject.toml allows, or with another: TRL=1.8.
	$(UV) venv --quiet --clear --python "$$(command -v python3)" $(OTHER_TRL)
	$(UV) pip sync --quiet --python $(OTHER_TRL)/bin/python --require-hashes requirements.lock
	$(UV) pip install --quiet --python $(OTHER_TRL)/bin/python --no-deps --editable . 'trl~=$(TRL).0'
	$(TIMED) $(OTHER_TRL)/bin/pytest -q tests/trainer

# In the place of the pinned version. Each is built once.
KUBERNETES ?= $(patsubst tests/go/kubernetes-%,%,$(wildcard tests/go/kubernetes-*))

test-kubernetes: install ## What an API server decides, with every other Kubernetes, or with one of them: KUBERNETES=1.30.
	$(TIMED) for version in $(KUBERNETES); do \
	  export RLGUARD_KUBERNETES=$$version; CACHE=$(CACHE) tests/operator/controlplane/build.sh >/dev/null && \
	  $(PYTEST) tests/operator/integration tests/chart/test_release.py || exit 1; done

test-kinds: install test-tools ## RayJob, RayCluster, JobSet and TrainJob against their real controllers on an API server.
	$(TIMED) $(VENV)/bin/pytest -q tests/kinds

# SEED repeats a run, ONLY='etcd killed' plays one round of it and leaves the page as it is.
chaos: install test-tools ## Kills, partitions, full disks and clock jumps around 100 fires and 100 healthy runs; writes docs/evidence/reliability.md.
	$(TIMED) $(PY) -m tests.chaos $(if $(SEED),--seed $(SEED)) $(if $(RUNS),--runs $(RUNS)) $(if $(ONLY),--only '$(ONLY)',--page docs/evidence/reliability.md)

chaos-kind: kind-up ## The same on a kind cluster, with its kubelet and training-operator; writes docs/evidence/reliability-on-kind.md.
	$(TIMED) env RLGUARD_E2E=build/e2e/cluster.json $(PY) -m tests.chaos.on_kind $(if $(SEED),--seed $(SEED)) $(if $(RUNS),--runs $(RUNS)) $(if $(ONLY),--only '$(ONLY)',--page docs/evidence/reliability-on-kind.md)

e2e: install ## All end-to-end tests on a kind cluster, which is made first and deleted after; RLGUARD_E2E uses an existing one.
	$(TIMED) env CACHE=$(CACHE) tests/e2e/run.sh --ignore=tests/e2e/kinds --ignore=tests/e2e/vllm tests/e2e

e2e-kinds: install ## RayJob and RayCluster with real Ray, JobSet, TrainJob, and Kueue's queue on such a cluster.
	$(TIMED) env CACHE=$(CACHE) WORKERS=0 PARTS='kuberay jobset trainer kueue' tests/e2e/run.sh tests/e2e/kinds

e2e-vllm: install ## A guard with vLLM in a pod of its own on such a cluster; needs 33 GB of disk.
	$(TIMED) env CACHE=$(CACHE) WORKERS=0 PARTS=vllm tests/e2e/run.sh tests/e2e/vllm

# In an environment of its own, so that mutmut is in no lock that an image is made of.
MUTMUT = build/mutmut

mutation: | $(UV) ## Breaks the code that decides in small ways and counts what its tests notice; writes docs/evidence/mutation.md. ONLY=decide runs one row.
	$(UV) venv --quiet --clear --python "$$(command -v python3)" $(MUTMUT)
	$(UV) pip sync --quiet --python $(MUTMUT)/bin/python --require-hashes requirements.lock
	$(UV) pip install --quiet --python $(MUTMUT)/bin/python --editable . mutmut==3.8.1
	$(TIMED) $(MUTMUT)/bin/python -m tests.mutation $(ONLY)

test-tools: ## Build what the tests need from Go modules, once: kube-apiserver, etcd and helm.
	@CACHE=$(CACHE) tests/operator/controlplane/build.sh >/dev/null && CACHE=$(CACHE) tests/chart/build.sh helm >/dev/null

# In the environment of PYTHON: vLLM's build for CUDA, the guard and pytest, as of images/vllm.lock.
test-gpu bench-gpu: PYTHON ?= python3
test-gpu: ## The tests of the evaluator `vllm` on an NVIDIA GPU, in an environment that you name by PYTHON.
	PYTHONPATH=$(CURDIR) $(PYTHON) -m pytest -q -s --durations=0 tests/gpu

bench-gpu: ## There, too: what an evaluation takes, against the formula of docs/evidence/benchmarks.md and against plain `LLM.generate`.
	PYTHONPATH=$(CURDIR) $(PYTHON) -m tests.bench.bench_gpu

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

bench-detection: install ## Print false stops and delays of the detector; replay the recorded runs into docs/evidence/recorded-runs.md.
	$(PY) tests/bench/bench_detection.py

bench: install $(VLLM)/.installed ## Every benchmark, each as a ratio in one run (see docs/evidence/benchmarks.md).
	@for bench in ack startup trainer evaluation replay; do $(PY) tests/bench/bench_$$bench.py || exit 1; done
	@PYTHONPATH=$(CURDIR) $(VLLM)/bin/python tests/bench/bench_vllm.py 2>/dev/null

bench-stops: install ## How much of a policy is left when its hack is stopped at the defaults, and what waiting costs (half an hour).
	$(PY) -m tests.bench.bench_stops --folder build/stops

bench-operator: kind-up test-tools ## Teardown on kind against `kubectl delete`; then 1,000 and 5,000 jobs on a real API server.
	RLGUARD_E2E=build/e2e/cluster.json $(PY) tests/bench/bench_teardown.py
	for jobs in 1000 5000; do $(PY) tests/bench/bench_operator.py --jobs $$jobs --training-operator "$$(ls -t $(CACHE)/training-operator-v*/manager | head -1)" || exit 1; done

bench-kinds: ## Teardown of every kind on kind against `kubectl delete` of the same.
	$(MAKE) --no-print-directory kind-up KINDS='kuberay jobset trainer'
	RLGUARD_E2E=build/e2e/cluster.json $(PY) tests/bench/bench_teardown.py PyTorchJob Job JobSet TrainJob RayJob RayCluster

BASE_IMAGE ?= debian:bookworm-slim
DOCKER_FLAGS ?=
VERSION := $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' rlguard/core/_version.py)
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
release: install ## dist/: wheel, source, the chart, an SBOM of each and of each image, checksums; says what to sign.
	rm -rf dist
	$(PY) -m hatchling build
	"$$(CACHE=$(CACHE) tests/chart/build.sh helm)" package charts/rlguard --destination dist
	$(PY) -m tools.release dist

clean: ## Remove what the build made (not the cache).
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist build

.PHONY: help install demo lock lint format generate site verify test test-fast test-kind test-all test-nightly test-vllm test-ray test-trl test-kubernetes test-kinds chaos chaos-kind e2e e2e-kinds e2e-vllm mutation test-tools test-gpu bench-gpu kind-up kind-down browser bench-detection bench-stops bench bench-operator bench-kinds images image-trainer push release clean
