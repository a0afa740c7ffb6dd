"""What is generated in the chart and the samples agrees with the code; tests/tools has their freshness."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import yaml

from guard_core import __version__
from guard_core.policy import Policy
from guard_operator.adapters import ADAPTERS
from guard_operator.api.types import Spec
from guard_operator.config import NODE_DIRECTORIES, TOKEN_AUDIENCES, default_guard_resources
from tools import cluster_demo as demo

from .conftest import CHART, CRDS, ROOT


def test_every_value_has_a_meaning_and_the_schema_is_closed() -> None:
    """A comment above each key of values.yaml; `global` is open to the values of other charts."""
    for chart in (CHART, CRDS):
        lines = (chart / "values.yaml").read_text().splitlines()
        tops = [n for n, line in enumerate(lines) if re.match(r"[a-z]\w*:", line)]
        assert tops and [lines[n] for n in tops if not lines[n - 1].startswith("# ")] == []
        schema = json.loads((chart / "values.schema.json").read_text())
        assert not schema["additionalProperties"]
        assert schema["properties"].keys() == yaml.safe_load((chart / "values.yaml").read_text()).keys()


def test_the_chart_has_the_version_and_the_defaults_of_the_operator() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert values["isolation"] == {
        "nodeDirectories": list(NODE_DIRECTORIES),
        "tokenAudiences": list(TOKEN_AUDIENCES),
    }
    assert values["kinds"] == [one.resource.kind for one in ADAPTERS]
    assert values["guardResources"] == default_guard_resources()
    for chart in (CHART, CRDS):
        about = yaml.safe_load((chart / "Chart.yaml").read_text())
        assert about["version"] == about["appVersion"] == __version__


def test_the_demo_on_a_cluster_has_the_policy_of_the_demo() -> None:
    job = yaml.safe_load((ROOT / "k8s" / "samples" / "cpu-demo" / "job.yaml").read_text())
    own = yaml.safe_load((ROOT / "guard_cli" / "demo" / "policy.yaml").read_text())
    assert Spec.model_validate(job["spec"]).guard.policy == Policy.model_validate(own)


def test_the_demo_on_a_cluster_mounts_every_module() -> None:
    job = yaml.safe_load((ROOT / "k8s" / "samples" / "cpu-demo" / "job.yaml").read_text())
    pod = job["spec"]["template"]["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]
    items = next(v["configMap"]["items"] for v in pod["volumes"] if v["name"] == "demo")
    mounted = {item["key"]: item["path"] for item in items}
    assert mounted.pop("train.jsonl") == "train.jsonl"
    assert mounted == {demo.config_map_key(path): str(path.relative_to(ROOT)) for path in demo.sources()}


def test_the_demo_on_a_cluster_imports_from_what_it_mounts_alone(tmp_path: Path) -> None:
    documents = yaml.safe_load_all((ROOT / "k8s" / "samples" / "cpu-demo" / "files.yaml").read_text())
    data = next(d["data"] for d in documents if d["kind"] == "ConfigMap")
    for path in demo.sources():
        target = tmp_path / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(data[demo.config_map_key(path)])
    code = (
        "import guard_cli.demo.train as t, guard_cli.demo.warmup as w, guard_cli.demo.tiny_llama as l; "
        "t.TASK; print(t.__file__, w.__file__, l.__file__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert all(file.startswith(str(tmp_path)) for file in done.stdout.split())


def test_samples_and_overlays_name_the_images_of_this_version() -> None:
    files = [*ROOT.glob("k8s/samples/**/*.yaml"), *ROOT.glob("k8s/overlays/**/*.yaml")]
    tags = [
        tag
        for file in files
        for tag in re.findall(
            r"rlguard/(?:guard|guard-hf|guard-vllm|trainer):(\S+?)[\"'}\s]", file.read_text()
        )
    ]
    assert tags and set(tags) == {__version__}
