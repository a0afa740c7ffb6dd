"""Mistakes in settings are told in our words: the name that was written, its value, and what is meant."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core._pydantic_core import list_all_errors

from guard_cli.errors import CliError
from guard_cli.guard_settings import make_settings, read_config
from guard_cli.replay import policies
from guard_client.errors import GuardConfigError
from guard_core import wording
from guard_core.policy import Policy
from guard_core.wording import MUST_BE, not_yaml, sentences
from guard_operator.api.types import Spec
from guard_operator.api.wording import invalid_spec
from guard_service.errors import SettingsError
from guard_service.heldout.errors import SplitError
from guard_service.heldout.split import HeldoutSplit
from guard_service.policy_file import load_policy
from guard_service.settings import GuardSettings, load_settings
from trainer_image import config
from trainer_image.config import TrainConfig

BASE = {"state_dir": "s", "checkpoint_root": "c", "allow_unauthenticated_loopback": True}
OPENAI = {"kind": "openai", "base_url": "http://h/v1", "model": "m"}

#: How pydantic talks. None of it may reach a user.
FOREIGN = (
    "Input should",
    "Extra inputs",
    "Field required",
    "Unable to",
    "discriminator",
    "instance of",
    "valid ",
)


def told(model: type[BaseModel], values: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        model.model_validate(values)
    return sentences(caught.value, model, ".".join)


def heldout(**values: Any) -> str:
    return told(GuardSettings, {**BASE, "heldout": {"split": "x", **values}})


@pytest.mark.parametrize(
    ("evaluator", "said"),
    [
        ({"temprature": 1}, "temprature is not a setting: did you mean temperature?"),
        ({"temperature": "hot"}, "temperature must be a number, not 'hot'"),
        ({"temperature": -1}, "temperature must be at least 0, not -1"),
        ({"temperature": float("nan")}, "temperature must be a finite number, not nan"),
        ({"samples": 1.5}, "samples must be a whole number, not 1.5"),
        ({"chat": "perhaps"}, "chat must be true or false, not 'perhaps'"),
        ({"dtype": "int8"}, "dtype must be 'auto', 'float32', 'bfloat16' or 'float16', not 'int8'"),
        ({"device": "tpu"}, "device must be auto, cpu, mps, cuda or cuda:N, not 'tpu'"),
        ({"kind": "vlm"}, "kind must be 'checkpoint', 'vllm' or 'openai', not 'vlm': did you mean 'vllm'?"),
        (
            {"kind": "opnai"},
            "kind must be 'checkpoint', 'vllm' or 'openai', not 'opnai': did you mean 'openai'?",
        ),
        ({"kind": None}, "kind must be 'checkpoint', 'vllm' or 'openai', not None"),
        ({"base_url": "http://h"}, "base_url belongs to `kind: openai`: set that, or leave it out"),
        ({**OPENAI, "batch_size": 3}, "batch_size belongs to `kind: checkpoint`: set that"),
        ({"kind": "openai", "model": "m"}, "base_url is not set: Up to and with the version"),
        ({**OPENAI, "model": ""}, "model must not be empty, not ''"),
        ({**OPENAI, "model": "p-{setp}"}, "model has another form (Model name; only {step}, {attempt} and"),
        ({**OPENAI, "model": "x" * 254}, "model must have at most 253 characters, not 'xxx"),
    ],
)  # fmt: skip
def test_the_evaluator(evaluator: Any, said: str) -> None:
    assert f"heldout.evaluator.{said}" in heldout(evaluator=evaluator)


def test_the_evaluator_as_a_whole() -> None:
    assert "heldout.evaluator must be a mapping of settings, such as max_new_tokens" in heldout(evaluator="x")
    assert "heldout.evaluator: samples=2 with temperature=0 scores" in heldout(
        evaluator={"temperature": 0, "samples": 2}
    )


def test_more_than_one_mistake() -> None:
    assert heldout(scorrer="x", evaluator={"seed": -1}) == (
        "heldout.evaluator.seed must be at least 0, not -1; "
        "heldout.scorrer is not a setting: did you mean scorer?"
    )


def test_a_name_like_no_other_gets_the_list() -> None:
    assert heldout(zzz=1) == (
        "heldout.zzz is not a setting: known are backlog, evaluator, near_duplicates, on_scorer_timeout, "
        "proxy_scorer, scorer, scorer_concurrency, scorer_timeout_seconds, split, train_prompts"
    )


def test_a_secret_is_not_shown() -> None:
    secret = "a" * 20
    assert secret not in told(GuardSettings, {**BASE, "ingest_token": [secret]})
    assert secret not in told(GuardSettings, {**BASE, "ingest_tokn": secret})
    assert secret not in told(GuardSettings, {**BASE, "read_token": {"x": secret}})


def test_a_long_value_is_cut() -> None:
    assert len(heldout(evaluator="x" * 10_000)) < 300
    assert len(heldout(**{"x" * 10_000: 1})) < 300
    assert len(heldout(evaluator={"kind": "x" * 10_000})) < 300


JUNK = ["\u2603 junk", -(10**12), 10**12, float("nan"), True, None, [], ["x"], {"junk": 1}, {1: "junk"}]
JOB = {
    "template": {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "spec": {}},
    "guard": {
        "heldout": {"volume": {"claimName": "h"}, "evaluator": {"checkpoint": {}}},
        "checkpoints": {"volume": "c"},
    },
}
TRAINING = {"model": "m", "dataset": "d", "reward_functions": ["a:b"], "output_dir": "o"}
#: Every model whose values a person writes, with values that it takes, and how its errors are told.
WRITTEN: dict[type[BaseModel], tuple[dict[str, Any], Callable[[ValidationError], str]]] = {
    GuardSettings: (BASE, lambda error: sentences(error, GuardSettings, ".".join)),
    Policy: ({}, lambda error: sentences(error, Policy, ".".join)),
    TrainConfig: (TRAINING, lambda error: sentences(error, TrainConfig, ".".join)),
    Spec: (JOB, invalid_spec),
}


def places(model: type[BaseModel], prefix: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Every field there is, by the names under which it is written, and an unknown one of each section."""
    found = [(*prefix, "unheard_of")]
    for name, field in model.model_fields.items():
        at = (*prefix, field.alias or name)
        found.append(at)
        for inner in wording._models(wording._members(field.annotation)):
            found += places(inner, at)
    return list(dict.fromkeys(found))


def put(values: Any, place: tuple[str, ...], junk: Any) -> dict[str, Any]:
    """A copy of the values with junk at one place."""
    first, *rest = place
    values = dict(values) if isinstance(values, dict) else {}
    values[first] = put(values.get(first), tuple(rest), junk) if rest else junk
    return values


def variants(values: dict[str, Any], place: tuple[str, ...], junk: Any) -> Iterator[dict[str, Any]]:
    """The junk there, under every `kind` that may have such a field."""
    yield put(values, place, junk)
    if place[:2] == ("heldout", "evaluator") and len(place) == 3:
        for kind in ("checkpoint", "vllm", "openai"):
            whole = put(put(values, ("heldout", "split"), "x"), ("heldout", "evaluator", "kind"), kind)
            yield put(whole, place, junk)


@pytest.mark.parametrize("model", WRITTEN)
def test_no_mistake_is_told_in_pydantics_words(model: type[BaseModel]) -> None:
    """Junk in every setting there is, one at a time. Each kind of mistake has words of its own."""
    good, tell = WRITTEN[model]
    model.model_validate(good)
    kinds, wrong = set[str](), []
    for place in places(model):
        for junk in JUNK:
            if model is Spec and junk == {1: "junk"}:
                continue  # an API server has JSON, in which a key is a text
            for values in variants(good, place, junk):
                try:
                    model.model_validate(values)
                except ValidationError as error:
                    found = error.errors()
                    kinds |= {one["type"] for one in found}
                    foreign = [*FOREIGN, *(one["msg"] for one in found)]
                    said = tell(error)
                    wrong += [(place, junk, said) for words in foreign if words in said]
    assert wrong == []
    of_their_own = {
        *("value_error", "extra_forbidden", "invalid_key", "missing", "union_tag_invalid", "model_type"),
        *("model_attributes_type", "string_pattern_mismatch"),
    }
    assert len(kinds) > 5 and kinds <= of_their_own | set(MUST_BE)


@pytest.mark.parametrize("known", list_all_errors(), ids=lambda known: known["type"])
def test_no_kind_of_error_there_is_has_pydantics_words(known: Any) -> None:
    """Also one that no field of today raises: at a field, at a section, at a place that no model has."""
    context = known["example_context"]
    if known["type"] in ("value_error", "assertion_error"):
        context = {"error": ValueError("ours")}
    for model, (_, tell) in WRITTEN.items():
        name = next(field.alias or name for name, field in model.model_fields.items())
        for loc in ((), (name,), (name, "deeper"), ("unheard_of", 0), ("unheard_of", 1, "[key]")):
            detail = {"type": known["type"], "loc": loc, "input": "junk"}
            error = ValidationError.from_exception_data(
                "x",
                [detail if context is None else {**detail, "ctx": context}],  # type: ignore[list-item]
            )
            said = tell(error)
            assert said and error.errors()[0]["msg"] not in said


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"guard": {"policy": {"silent": {"action": "Halt"}, "detector": "Heldout"}}},
            "spec.guard.policy.detector must be 'HeldoutGuard', 'Calibrated' or 'Both', not 'Heldout': "
            "did you mean 'HeldoutGuard'?; "
            "spec.guard.policy.silent.action must be 'Warn' or 'Stop', not 'Halt'",
        ),
        (
            {"guard": {"policy": {"heldoutGuard": {"riseEpps": 1}}}},
            "spec.guard.policy.heldoutGuard.riseEpps is not a setting: did you mean riseEps?",
        ),
        (
            {"guard": {"policy": {"calibrated": {"tolerance": 1}}}},
            "spec.guard.policy.calibrated: `tolerance` is gone: `maxDecline` is the decline that is "
            "accepted, below the start and below a plateau",
        ),
        (
            {"guard": {"heldout": {"volume": {"claimName": "h"}, "evaluator": {"openia": {}}}}},
            "spec.guard.heldout.evaluator.openia is not a setting: did you mean openai?",
        ),
        ({"onFyre": "Stop"}, "spec.onFyre is not a setting: did you mean onFire?"),
        (
            {"onFire": "stop"},
            "spec.onFire must be 'Stop', 'Suspend' or 'Delete', not 'stop': did you mean 'Stop'?",
        ),
        (
            {"guard": {"resources": {"limits": {"cpu": [1]}}}},
            "spec.guard.resources.limits.cpu must be a whole number or a text, not [1]",
        ),
    ],
)
def test_a_spec_is_told_as_it_is_written(changes: dict[str, Any], said: str) -> None:
    good = {**JOB, **changes, "guard": {**JOB["guard"], **changes.get("guard", {})}}
    with pytest.raises(ValidationError) as caught:
        Spec.model_validate(good)
    assert invalid_spec(caught.value) == said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [", "not YAML at line 1, column 5: expected the node content, but found '<stream end>'"),
        ("a: b: c", "not YAML at line 1, column 5: mapping values are not allowed here"),
    ],
)
def test_what_is_not_yaml_is_told_with_its_place(text: str, said: str) -> None:
    with pytest.raises(yaml.YAMLError) as caught:
        yaml.safe_load(text)
    assert not_yaml(caught.value) == said


def of_policy(path: Path) -> None:
    load_policy(path)


def of_replay(path: Path) -> None:
    policies.policy_from_file(path, "--policy")


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
        (of_policy, "heldout_gard: {}", "heldout_gard is not a setting: did you mean heldout_guard?"),
        (of_policy, "kl: {warn_above: high}", "kl.warn_above must be a number, not 'high'"),
        (of_policy, "[1, 2]", "the file must be a mapping of settings, such as detector, kl"),
        (of_policy, "1: {}", "1 is not a setting: known are calibrated, detector"),
        (of_policy, "kl: [", "is not YAML at line 1, column 6"),
        (of_replay, "heldout_gard: {}", "heldout_gard is not a setting: did you mean heldout_guard?"),
        (of_replay, "silent: {policy: stop}", "silent: `policy` is now `action`: write it under that name"),
        (of_config, "heldut: {}", "heldut in --config is not a setting: did you mean heldout?"),
        (of_config, "1: x", "1 in --config is not a setting: known are"),
        (of_config, "port: many", "port in --config must be a whole number, not 'many'"),
        (of_config, "port: [", "is not YAML at line 1, column 8"),
        (of_split, f'{{{ITEM}, "scorrer": "exact"}}', "line 1: unknown key scorrer: did you mean scorer?"),
        (of_split, f'{{{ITEM}, "scorer": 1}}', "line 1: scorer must be a text"),
        (of_training, "modle: m", "modle is not a setting: did you mean model?"),
        (of_training, "model: m", "dataset is not set"),
        (of_training, "model: [", "is not YAML at line 1, column 9"),
        (of_environment, "PROT=1", "RLGUARD_GUARD_PROT is not a setting: did you mean RLGUARD_GUARD_PORT?"),
        (of_environment, "PORT=many", "RLGUARD_GUARD_PORT must be a whole number, not 'many'"),
        (
            of_environment,
            "HELDOUT__SPLIT=x\nHELDOUT__SCORRER=y",
            "RLGUARD_GUARD_HELDOUT__SCORRER is not a setting: did you mean scorer?",
        ),
        (of_environment, "HELDOUT={x", "RLGUARD_GUARD_HELDOUT must be a mapping of settings, such as scorer"),
    ],
)
def test_every_kind_of_file_is_told_in_our_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, read: Callable[[Path], None], text: str, said: str
) -> None:
    monkeypatch.setattr(os, "environ", {})
    path = tmp_path / "file"
    path.write_text(text)
    with pytest.raises((SettingsError, CliError, SplitError, GuardConfigError)) as caught:
        read(path)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value).removeprefix(f"{path}: 1 bad line:\n")
    assert not [words for words in FOREIGN if words in str(caught.value)]
