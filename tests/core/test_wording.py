"""Mistakes in settings: one line each, by the name that was written, and no token in it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from guard_service.errors import SettingsError
from guard_service.heldout.errors import SplitError
from guard_service.heldout.split import HeldoutSplit
from guard_service.policy_file import load_policy
from guard_service.settings import load_settings
from rlguard.cli.errors import CliError
from rlguard.cli.guard_settings import make_settings, read_config
from rlguard.client.errors import GuardConfigError
from rlguard.operator.api.types import Spec
from rlguard.operator.reconcile.parse import invalid_spec
from trainer_image import config

BASE = {"state_dir": "s", "checkpoint_root": "c", "allow_unauthenticated_loopback": True}


def refused(**settings: Any) -> str:
    with pytest.raises(SettingsError) as caught:
        load_settings(**{**BASE, **settings})
    return str(caught.value)


def test_a_secret_is_not_shown() -> None:
    secret = "a" * 20
    for wrong in ({"ingest_token": [secret]}, {"ingest_tokn": secret}, {"read_token": {"x": secret}}):
        assert secret not in refused(**wrong)


def test_a_spec_is_named_as_it_is_written() -> None:
    guard = {
        "heldout": {"volume": {"claimName": "h"}, "evaluator": {"hf": {}}},
        "checkpoints": {"volume": "c"},
        "policy": {"heldoutGuard": {"riseEpps": 1, "emaAlpha": 2}},
    }
    spec = {"template": {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "spec": {}}, "guard": guard}
    with pytest.raises(ValidationError) as caught:
        Spec.model_validate(spec)
    assert sorted(invalid_spec(caught.value).split("; ")) == [
        "spec.guard.policy.heldoutGuard.emaAlpha: Input should be less than 1 (got 2)",
        "spec.guard.policy.heldoutGuard.riseEpps: Extra inputs are not permitted",
    ]


def of_policy(path: Path) -> None:
    load_policy(path)


def of_config(path: Path) -> None:
    make_settings({**BASE, **read_config(path)}, {})


def of_split(path: Path) -> None:
    HeldoutSplit.load(path)


def of_training(path: Path) -> None:
    config.load_config(path)


def of_environment(path: Path) -> None:
    for line in path.read_text().splitlines():
        name, _, value = line.partition("=")
        os.environ[f"RLGUARD_GUARD_{name}"] = value
    load_settings(**BASE)


ITEM = '"id": "a", "prompt": "p", "answer": "1"'


@pytest.mark.parametrize(
    ("read", "text", "said"),
    [
        (of_policy, "kl: {warn_above: high}", "kl.warn_above: Input should be a valid number"),
        (of_policy, "kl: [", "is not YAML at line 1, column 6"),
        (of_config, "heldut: {}", "heldut in --config is not a setting: did you mean heldout?"),
        (of_config, "port: many", "port in --config: Input should be a valid integer"),
        (of_split, f'{{{ITEM}, "scorrer": "exact"}}', "line 1: unknown key scorrer: did you mean scorer?"),
        (of_split, f'{{{ITEM}, "scorer": 1}}', "line 1: scorer: Input should be a valid string"),
        (of_training, "modle: m", "modle: Extra inputs are not permitted"),
        (of_environment, "PROT=1", "RLGUARD_GUARD_PROT is not a setting: did you mean RLGUARD_GUARD_PORT?"),
        (of_environment, "PORT=many", "RLGUARD_GUARD_PORT: Input should be a valid integer"),
        (
            of_environment,
            "HELDOUT__SPLIT=x\nHELDOUT__SCORRER=y",
            "RLGUARD_GUARD_HELDOUT__SCORRER: Extra inputs are not permitted",
        ),
    ],
)
def test_a_mistake_in_a_file_is_one_line_with_its_place(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, read: Callable[[Path], None], text: str, said: str
) -> None:
    monkeypatch.setattr(os, "environ", {})
    path = tmp_path / "file"
    path.write_text(text)
    with pytest.raises((SettingsError, CliError, SplitError, GuardConfigError)) as caught:
        read(path)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
