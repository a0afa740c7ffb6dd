"""Settings: every mistake names the variable, its value and what to do, and no secret is repeated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from guard_service.errors import SettingsError
from guard_service.policy_file import parse_yaml
from guard_service.settings import load_policy, load_settings
from rlguard.core.policy import Policy
from tests.token_files import with_token_files

BASE = {
    "STATE_DIR": "/state",
    "CHECKPOINT_ROOT": "/checkpoints",
    "INGEST_TOKEN": "ingest-secret",
    "READ_TOKEN": "read-secret",
}


@pytest.fixture
def env(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    def set_env(**values: str | None) -> None:
        given = {name: value for name, value in (BASE | values).items() if value is not None}
        for name, value in with_token_files(given, tmp_path).items():
            monkeypatch.setenv(f"RLGUARD_GUARD_{name}", value)

    return set_env


def test_nested_heldout_settings_come_from_the_environment(env: Any) -> None:
    env(HELDOUT__SPLIT="/split.jsonl", HELDOUT__EVALUATOR__KIND="hf", HELDOUT__EVALUATOR__SEED="7")
    heldout = load_settings().heldout
    assert heldout is not None and heldout.split == Path("/split.jsonl") and heldout.evaluator.seed == 7


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"PORT": "70000"}, ["RLGUARD_GUARD_PORT", "65535", "'70000'"]),
        ({"PORT": "http"}, ["RLGUARD_GUARD_PORT", "'http'"]),
        ({"STATE_DIR": None}, ["RLGUARD_GUARD_STATE_DIR: Field required"]),
        ({"CHECKPOINT_ROOT": None}, ["RLGUARD_GUARD_CHECKPOINT_ROOT: Field required"]),
        ({"KEEP_BEST_CHECKPOINT": "perhaps"}, ["RLGUARD_GUARD_KEEP_BEST_CHECKPOINT", "'perhaps'"]),
        (
            {"INGEST_TOKN_FILE": "x"},
            ["INGEST_TOKN_FILE is not a setting: did you mean RLGUARD_GUARD_INGEST_TOKEN_FILE?"],
        ),
        ({"HELDOUT__SPLITS": "x"}, ["RLGUARD_GUARD_HELDOUT__SPLIT"]),
        ({"HELDOUT__SPLIT": "x", "HELDOUT__EVALUATOR__KIND": "magic"}, ["EVALUATOR", "hf"]),
        ({"INGEST_TOKEN": None}, ["no ingest_token_file", "allow_unauthenticated_loopback"]),
        ({"READ_TOKEN": None, "ALLOW_UNAUTHENTICATED_LOOPBACK": "false"}, ["no read_token_file"]),
        (
            {"READ_TOKEN": None, "ALLOW_UNAUTHENTICATED_LOOPBACK": "true", "HOST": "0.0.0.0"},
            ["host='0.0.0.0'", "not a loopback address", "read_token_file"],
        ),
        (
            {"READ_TOKEN": None, "ALLOW_UNAUTHENTICATED_LOOPBACK": "true", "HOST": "example.org"},
            ["not a loopback address"],
        ),
    ],
)
def test_a_mistake_is_named(env: Any, values: dict[str, str | None], words: list[str]) -> None:
    env(**values)
    with pytest.raises(SettingsError) as refused:
        load_settings()
    for word in words:
        assert word in str(refused.value)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "localhost"])
def test_no_token_is_fine_on_loopback_with_the_flag(env: Any, host: str) -> None:
    env(INGEST_TOKEN=None, READ_TOKEN=None, ALLOW_UNAUTHENTICATED_LOOPBACK="true", HOST=host)
    assert not any(load_settings().tokens())


@pytest.mark.parametrize(
    ("content", "word"),
    [(None, "cannot be read"), (b"", "empty"), (b" \n", "empty"), (b"a b", "header"), (b"\xff", "ASCII")],
)
def test_a_bad_token_file_is_named(env: Any, tmp_path: Path, content: bytes | None, word: str) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_bytes(content)
    env(INGEST_TOKEN=None, INGEST_TOKEN_FILE=str(path))
    with pytest.raises(SettingsError, match=word) as refused:
        load_settings().tokens()
    assert str(path) in str(refused.value)
    path.write_text("from-file\n")
    assert load_settings().tokens().ingest == "from-file"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, ["cannot be read"]),
        ("a: [", ["not YAML"]),
        ("heldout_guard: {min_step: 3}", ["heldout_guard.min_step"]),
        ("heldout_guard: {ema_alpha: 1.0}", ["heldout_guard.ema_alpha", "1.0"]),
        ("kl: {hard_stop: .nan}", ["kl.hard_stop", "nan"]),
        ("silent: {action: halt}", ["silent.action", "'halt'"]),
        ("- 1", ["valid dictionary"]),
    ],
)
def test_a_bad_policy_file_is_named(tmp_path: Path, text: str | None, words: list[str]) -> None:
    path = tmp_path / "policy.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(SettingsError) as refused:
        load_policy(path)
    for word in (*words, str(path)):
        assert word in str(refused.value)


def test_numbers_and_texts_of_a_file_are_what_people_and_kubectl_write() -> None:
    assert parse_yaml("[1e-2, 1.0e-2, +1E-02, 0.01]") == [0.01] * 4
    assert parse_yaml("[=, 1e5x, 0o17]") == ["=", "1e5x", "0o17"]


def test_a_policy_file_changes_what_it_names(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("kl:\n  hard_stop: 0.2\n")
    assert load_policy(path).kl.hard_stop == 0.2
    path.write_text("")
    assert load_policy(path) == Policy()
