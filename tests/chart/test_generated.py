"""What is generated is fresh, and a stale file fails."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

from guard_core import __version__
from guard_core.policy import Policy
from guard_operator.api.types import Spec

from .conftest import CHART, ROOT, load

generate = load(ROOT / "charts" / "generate.py", "charts_generate")
demo = load(ROOT / "k8s" / "generate.py", "k8s_generate")
SCRIPTS = ["charts/generate.py", "k8s/generate.py"]


@pytest.mark.parametrize("script", SCRIPTS)
def test_generated_files_are_fresh(script: str) -> None:
    done = subprocess.run(
        [sys.executable, script, "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_stale_file_of_the_chart_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stale = tmp_path / "charts" / "rlguard" / "values.schema.json"
    stale.parent.mkdir(parents=True)
    stale.write_text("{}")
    monkeypatch.setattr(generate, "CHART", stale.parent)
    monkeypatch.setattr(generate, "outputs", lambda: {stale: "new"})
    assert generate.main(["--check"]) == 1
    assert "charts/rlguard/values.schema.json" in capsys.readouterr().err
    assert generate.main([]) == 0
    assert generate.main(["--check"]) == 0


def test_a_stale_file_of_the_samples_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "ROOT", tmp_path)
    monkeypatch.setattr(demo, "TARGET", tmp_path / "k8s" / "files.yaml")
    monkeypatch.setattr(demo, "text", lambda: "new")
    assert demo.main(["--check"]) == 1
    assert "k8s/files.yaml" in capsys.readouterr().err
    assert demo.main([]) == 0
    assert demo.main(["--check"]) == 0


def models(model: type[BaseModel]) -> list[type[BaseModel]]:
    inner = [f.default_factory() for f in model.model_fields.values() if callable(f.default_factory)]  # type: ignore[call-arg]
    return [model, *(m for value in inner if isinstance(value, BaseModel) for m in models(type(value)))]


def test_every_value_has_a_meaning_and_the_schema_is_closed() -> None:
    values = sys.modules["values"]
    for model in models(values.Values):
        assert all(field.description for field in model.model_fields.values()), model
        assert model.model_config["extra"] == "forbid"


def test_the_defaults_are_those_of_the_types() -> None:
    values = sys.modules["values"].Values
    written = yaml.safe_load((CHART / "values.yaml").read_text())
    assert written == values().model_dump(by_alias=True)


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
    assert mounted == {demo._key(path): str(path.relative_to(ROOT)) for path in demo.sources()}


def test_the_demo_on_a_cluster_imports_from_what_it_mounts_alone(tmp_path: Path) -> None:
    documents = yaml.safe_load_all((ROOT / "k8s" / "samples" / "cpu-demo" / "files.yaml").read_text())
    data = next(d["data"] for d in documents if d["kind"] == "ConfigMap")
    for path in demo.sources():
        target = tmp_path / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(data[demo._key(path)])
    code = (
        "import guard_cli.demo.train as t, guard_cli.demo.warmup as w, guard_cli.demo.tiny_llama as l; "
        "t.load_task('addition'); print(t.__file__, w.__file__, l.__file__)"
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
        for tag in re.findall(r"rlguard/(?:guard|guard-hf|trainer):(\S+?)[\"'}\s]", file.read_text())
    ]
    assert tags and set(tags) == {__version__}
