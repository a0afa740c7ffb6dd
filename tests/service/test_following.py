"""How it stands with what is followed: what is not read is never called healthy, and what is wrong ends."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from guard_core.codes import Level
from guard_core.feed import Feed
from guard_core.judge import Judge
from guard_core.policy import Policy
from guard_service.feed import SILENT_SECONDS, FollowerHealth, FollowerState
from guard_service.verdicts import beside


@pytest.fixture
def now() -> list[float]:
    return [1000.0]


@pytest.fixture
def following(now: list[float]) -> FollowerHealth:
    return FollowerHealth(lambda: now[0])


def test_a_follower_without_a_word_reads_nothing(following: FollowerHealth, now: list[float]) -> None:
    now[0] += SILENT_SECONDS
    assert following.condition() is None
    now[0] += 1
    assert "said nothing for 61 s" in str(following.condition())
    following.hear(FollowerState(steps=3))
    assert following.condition() is None and following.trouble == ""


def test_trouble_is_unknown_and_stops_nothing_by_itself(following: FollowerHealth) -> None:
    following.hear(FollowerState(trouble="no record has a reward"))
    condition = following.condition()
    assert condition is not None
    assert (condition.level, condition.action, condition.advice) == (Level.UNKNOWN, None, False)
    verdict = beside(Judge(Policy()).verdict(), condition)
    assert verdict.level is Level.UNKNOWN and "no record has a reward" in verdict.reason and not verdict.stop


def test_a_follower_that_ended_is_trouble_until_another_one_reads(following: FollowerHealth) -> None:
    following.hear(FollowerState(bad=2))
    following.lose("m.jsonl is a symbolic link")
    assert "m.jsonl is a symbolic link" in str(following.condition())
    following.hear(FollowerState(bad=3))
    assert following.condition() is None


def test_what_could_not_be_read_is_counted_over_all_followers(following: FollowerHealth) -> None:
    following.hear(FollowerState(bad=2))
    following.hear(FollowerState(bad=4))
    following.lose("x")
    assert following.bad == 4
    following.hear(FollowerState(bad=3))
    assert following.bad == 7


@pytest.mark.parametrize("path", ["/a", "..", "a/..", "../a", "a/../b", "a//b", "", "a/", "a\x00b"])
def test_no_path_leads_out(path: str) -> None:
    for feed in ({"follow": {"path": path}}, {"follow": {"path": "m"}, "checkpoints": {"path": path}}):
        with pytest.raises(ValidationError):
            Feed.model_validate(feed)


@pytest.mark.parametrize("path", [".", "a", ".a/..b/c..", "...", "a.b/c d"])
def test_what_may_be_a_path(path: str) -> None:
    assert Feed.model_validate({"follow": {"path": path}}).follow.path == path


def test_checkpoints_that_nobody_would_find_are_refused() -> None:
    with pytest.raises(ValidationError, match=r"set checkpoints\.layout"):
        Feed.model_validate({"follow": {"path": "m", "format": "torchtune"}})
    given = {"follow": {"path": "m", "format": "torchtune"}, "checkpoints": {"layout": "trl"}}
    assert Feed.model_validate(given).layout == "trl"
    assert Feed.model_validate({"follow": {"path": "m", "format": "verl"}}).layout == "verl"
    assert Feed.model_validate({"follow": {"path": "m", "format": "jsonl"}}).layout is None
