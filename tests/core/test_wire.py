"""The wire models refuse what they do not know, by the name of the field."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from rlguard.core.policy import Policy
from rlguard.core.wire import StepReport, Verdict

GOOD = '"attempt": 0, "step": 1, "reward": 0.5'


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ('{"attempt": 0, "step": 1}', "reward"),
        ('{"step": 1, "reward": 0.5}', "attempt"),
        (f'{{{GOOD}, "kl": -0.1, "kl_kind": "ref_token_mean"}}', "kl"),
        (f'{{{GOOD}, "kl": NaN, "kl_kind": "ref_token_mean"}}', "kl"),
        (f'{{{GOOD}, "kl": 0.1}}', "kl_kind"),
        (f'{{{GOOD}, "kl": 0.1, "kl_kind": "not_finite"}}', "kl_kind"),
        (f'{{{GOOD}, "entropy": Infinity}}', "entropy"),
        (f'{{{GOOD}, "loss": 1}}', "loss"),
        (f'{{{GOOD}, "kl_kind": "mystery"}}', "kl_kind"),
        ('{"attempt": 0, "step": 1, "reward": "0.5"}', "reward"),
        ('{"attempt": 0, "step": 1, "reward": 1e999}', "reward"),
        ('{"attempt": 0, "step": 1.5, "reward": 1}', "step"),
        ('{"attempt": 0, "step": true, "reward": 1}', "step"),
        ('{"attempt": -1, "step": 1, "reward": 1}', "attempt"),
    ],
)
def test_a_bad_step_is_refused_by_field(body: str, field: str) -> None:
    with pytest.raises(ValidationError) as caught:
        StepReport.model_validate_json(body)
    assert field in {str(error["loc"][0]) for error in caught.value.errors()}


@pytest.mark.parametrize(
    "policy",
    [
        {"kl": {"hard_stop": 0}},
        {"heldout_guard": {"ema_alpha": 1}},
        {"heldout_guard": {"rise_eps": float("nan")}},
        {"silent": {"policy": "explode"}},
        {"typo": {}},
    ],
)
def test_a_bad_policy_is_refused(policy: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Policy.model_validate(policy)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"fire": True, "halt": True, "stop": True}, "fire and halt are both true"),
        ({"fire": True, "halt": False, "stop": False}, "stop is False, with fire True"),
        ({"fire": False, "halt": False, "stop": True}, "stop is True, with fire False and halt False"),
    ],
)
def test_a_stop_is_a_fire_or_a_halt(said: dict[str, bool], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        Verdict(level="healthy", code="ok", reason="fine", **said)
