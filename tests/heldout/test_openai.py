"""The OpenAI evaluator against faults: every item gets its completion, or the evaluation fails; never a 0.

The happy path against a real server is in test_openai_real.py.
"""

from __future__ import annotations

import email.utils
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from guard_core.wire import Sampling
from guard_service.heldout.config import OpenAIEvaluatorSettings
from guard_service.heldout.errors import EvaluationError, SplitError
from guard_service.heldout.evaluators import openai
from guard_service.heldout.evaluators.openai import OpenAIEvaluator
from guard_service.heldout.split import HeldoutItem
from guard_service.heldout.worker import EvaluationRequest
from tests.heldout.faulty_endpoint import Endpoint, Reply, endpoint, says

SECRET = "xyzzy"
ITEMS = [HeldoutItem(id=f"i{n}", prompt=f"{SECRET} {n}", answer=str(n)) for n in range(6)]
REQUEST = EvaluationRequest(attempt=1, step=30, path=Path("/checkpoints/checkpoint-30"))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai, "FIRST_BACKOFF_SECONDS", 0.01)


def ask(to: Endpoint, items: list[HeldoutItem] = ITEMS, request=REQUEST, **settings: Any):
    config = {"base_url": to.url, "model": "policy", "request_timeout_seconds": 5, **settings}
    return OpenAIEvaluator(OpenAIEvaluatorSettings.model_validate(config)).complete(items, request)


def sampled(to: Endpoint, *, greedy: int) -> list[tuple[str, dict[str, str], dict[str, Any]]]:
    """What it was asked, without so many questions that only show whether its weights are others."""
    shown = [one for one in to.asked if one[2]["temperature"] == 0][-greedy:] if greedy else []
    assert len(shown) == greedy
    return [one for one in to.asked if one not in shown]


def echo(body: dict[str, Any], number: int) -> Reply:
    return says(body["messages"][-1]["content"] if "messages" in body else body["prompt"])


def test_texts_come_in_the_order_of_the_items_and_weights_are_remote() -> None:
    with endpoint(lambda body, n: Reply(**{**vars(echo(body, n)), "delay": 0.02 * (6 - n)})) as server:
        done = ask(server)
    assert done.texts == [[item.prompt] for item in ITEMS] and done.sha256 is done.staged is None


def test_what_is_sent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KEY", "k1")
    (tmp_path / "key").write_text("k2\n")
    with endpoint(echo) as server:
        ask(server, ITEMS[:1], model="p-{step}", api_key_env="KEY", max_new_tokens=9)
        ask(server, ITEMS[:1], chat=False, api_key_file=tmp_path / "key", temperature=0.5)
    (path, headers, body), (path2, headers2, body2) = sampled(server, greedy=1)
    assert path == "/v1/chat/completions" and headers["Authorization"] == "Bearer k1"
    assert body["model"] == "p-30" and body["max_tokens"] == 9 and body["temperature"] == 0
    assert body["messages"] == [{"role": "user", "content": ITEMS[0].prompt}]
    assert path2 == "/v1/completions" and headers2["Authorization"] == "Bearer k2"
    assert body2["prompt"] == ITEMS[0].prompt and body2["temperature"] == 0.5


def test_the_server_is_asked_to_sample_as_the_trainer_does() -> None:
    plain = Sampling(temperature=0.7, top_p=0.9, max_new_tokens=33)
    more = plain.model_copy(update={"top_k": 20, "min_p": 0.1, "repetition_penalty": 1.2})
    with endpoint(echo) as server:
        done = ask(server, ITEMS[:1], replace(REQUEST, sampling=plain))
        ask(server, ITEMS[:1], replace(REQUEST, sampling=more))
        ask(server, ITEMS[:1], replace(REQUEST, sampling=more), temperature=1.0)
    bodies = [body for _, _, body in sampled(server, greedy=3)]
    names = ("temperature", "top_p", "max_tokens", "top_k", "min_p", "repetition_penalty")
    sent = [{name: body[name] for name in names if name in body} for body in bodies]
    usual = {"temperature": 0.7, "top_p": 0.9, "max_tokens": 33}
    extensions = {"top_k": 20, "min_p": 0.1, "repetition_penalty": 1.2}
    # OpenAI's own API refuses what it does not know, so the others are sent only where they are used.
    assert sent == [usual, usual | extensions, {"temperature": 1.0, "top_p": 1, "max_tokens": 33}]
    assert done.sampling.source == "trainer" and done.sampling.max_new_tokens == 33


def test_the_server_is_told_which_texts_end_a_completion_and_may_leave_them_in() -> None:
    def policy(body: dict[str, Any], _number: int) -> Reply:
        text = "12\n? 13" if body["stop"] == ["\n?", "END"] else "it was not told"
        return Reply(body={"choices": [{"message": {"content": text}, "finish_reason": "length"}]})

    with endpoint(policy) as server:
        done = ask(server, ITEMS[:1], stop=["\n?", "END"])
        assert [(one.text, one.answer, one.truncated) for one in done.made[0]] == [("12", "12", False)]
    with endpoint(echo) as server:
        ask(server, ITEMS[:1])
    assert "stop" not in server.asked[0][2]


def test_a_text_at_which_the_trainer_ends_is_looked_for_here_and_kept() -> None:
    """A server leaves it out, and the trainer's reward sees it. (test_served.py: one that keeps it.)"""

    def policy(_body: dict[str, Any], _number: int) -> Reply:
        return Reply(body={"choices": [{"message": {"content": "12</a> 13"}, "finish_reason": "length"}]})

    trainer = Sampling(temperature=0.7, stop=("</a>",))
    with endpoint(policy) as server:
        done = ask(server, ITEMS[:1], replace(REQUEST, sampling=trainer))
    assert [(one.text, one.truncated) for one in done.made[0]] == [("12</a>", False)]
    assert not any("stop" in body for _, _, body in server.asked)
    assert done.sampling.stop == ("</a>",)


def test_seeds_differ_by_item_sample_and_pass_and_repeat() -> None:
    def seeds(pass_index: int) -> list[int]:
        with endpoint(echo) as server:
            again = EvaluationRequest(1, 30, REQUEST.path, pass_index)
            ask(server, request=again, samples=2, temperature=1.0)
        return sorted(body["seed"] for _, _, body in sampled(server, greedy=0 if pass_index else 6))

    first = seeds(0)
    assert len(set(first)) == 12 and seeds(0) == first and set(seeds(1)).isdisjoint(first)


def test_greedy_completions_show_whether_the_weights_are_others() -> None:
    """Those that are made anyway; of sampled ones, which may differ by themselves, one more of some items."""
    many = [HeldoutItem(id=f"i{n}", prompt=f"{SECRET} {n}", answer=str(n)) for n in range(40)]
    weights = 0

    def policy(body: dict[str, Any], number: int) -> Reply:
        noise = number if body["temperature"] else 0
        return says(f"{body['messages'][-1]['content']} {noise} {weights}")

    with endpoint(policy) as server:
        greedy = [ask(server, many).said for _ in range(2)]
        assert greedy[0] == greedy[1] and len(server.asked) == 80
        sampled = [ask(server, many, temperature=1.0, top_p=0.5) for _ in range(2)]
        assert sampled[0].said == sampled[1].said and sampled[0].texts != sampled[1].texts
        extra = [body for _, _, body in server.asked[80:] if body["temperature"] == 0]
        assert len(extra) == 2 * openai.GREEDY_ITEMS and {body["top_p"] for body in extra} == {1}
        later = EvaluationRequest(1, 30, REQUEST.path, 1)
        assert ask(server, many, later).said is None, "a further pass is one of the same weights"
        weights = 1
        assert ask(server, many).said != greedy[0]
        assert ask(server, many, temperature=1.0).said != sampled[0].said


def test_no_more_requests_at_once_than_allowed() -> None:
    with endpoint(lambda body, n: Reply(**{**vars(echo(body, n)), "delay": 0.05})) as server:
        ask(server, concurrency=2)
    assert server.busiest == 2


def ends(reason: Any, text: str | None = "1") -> Reply:
    choice: dict[str, Any] = {"message": {"content": text}, "text": text}
    return Reply(body={"choices": [choice | ({} if reason is None else {"finish_reason": reason})]})


@pytest.mark.parametrize("chat", [True, False])
def test_the_share_of_completions_that_were_cut_off_is_known_if_the_server_says_all(chat: bool) -> None:
    for reasons, share in [
        (["stop"] * 6, 0.0),
        (["length", "stop", "length", "stop", "content_filter", "length"], 0.5),
        (["max_tokens", "eos", "model_length", "end_turn", "stop", "length"], 0.5),
        (["length", "stop", None, "stop", "stop", "stop"], None),
        (["length", "stop", "a_word_of_tomorrow", "stop", "stop", "stop"], None),
    ]:
        with endpoint(lambda body, n, reasons=reasons: ends(reasons[n])) as server:
            assert ask(server, chat=chat).truncated == share


def test_an_answer_that_was_cut_off_before_its_text_began_is_empty() -> None:
    """A model that thinks first: vLLM and others then answer `content: null`."""
    with endpoint(lambda body, n: ends("length", None) if n < 2 else ends("stop")) as server:
        done = ask(server)
    assert sorted(text for (text,) in done.texts) == ["", "", "1", "1", "1", "1"]
    assert done.truncated == 2 / 6


@pytest.mark.parametrize(
    "fault",
    [Reply(429, "slow down"), Reply(503, "later"), Reply(500, "oops"), Reply(408, "late"), Reply(200, None)],
)
def test_a_passing_fault_is_tried_again(fault: Reply) -> None:
    with endpoint(lambda body, n: fault if n < 4 else echo(body, n)) as server:
        assert ask(server).texts == [[item.prompt] for item in ITEMS]
    assert len(server.asked) == len(ITEMS) + 4


def test_a_time_out_is_tried_again() -> None:
    with endpoint(lambda body, n: Reply(delay=30) if n == 0 else echo(body, n)) as server:
        assert len(ask(server, request_timeout_seconds=0.2).texts) == 6
    assert len(server.asked) == 7


@pytest.mark.parametrize("form", ["seconds", "date"])
def test_waits_as_long_as_the_server_asks(form: str) -> None:
    wait = "1" if form == "seconds" else email.utils.formatdate(time.time() + 2, usegmt=True)
    start = time.monotonic()
    with endpoint(lambda b, n: Reply(429, "", {"Retry-After": wait}) if n == 0 else echo(b, n)) as server:
        ask(server, ITEMS[:1])
    assert 0.9 < time.monotonic() - start < 30


@pytest.mark.parametrize("value", ["soon", "-5", "Mon, 99 Foo 2026 00:00:00 GMT", ""])
def test_a_retry_after_that_makes_no_sense_does_not_stall(value: str) -> None:
    start = time.monotonic()
    with endpoint(lambda b, n: Reply(429, "", {"Retry-After": value}) if n == 0 else echo(b, n)) as server:
        ask(server, ITEMS[:1])
    assert time.monotonic() - start < 30


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (Reply(503, SECRET), "gave no completion for item 'i3' in 2 tries, at last status 503"),
        (Reply(200, None), "gave no completion for item 'i3' in 2 tries, at last RemoteProtocolError"),
        (Reply(404, SECRET), "responded status 404 for item 'i3': check base_url and model"),
        (Reply(401, SECRET), "responded status 401 for item 'i3': check api_key_file or api_key_env"),
        (Reply(302, SECRET, {"Location": "http://127.0.0.1:1/"}), "responded status 302 for item 'i3'"),
        (Reply(200, b"<html>" + SECRET.encode()), "responded to item 'i3' without a text"),
        (Reply(200, {"choices": []}), "responded to item 'i3' without a text"),
        (Reply(200, {"choices": [{"message": {"content": None}}]}), "responded to item 'i3' without a text"),
        (ends("stop", None), "responded to item 'i3' without a text"),
        (ends("content_filter", None), "responded to item 'i3' without a text"),
        (ends(["length"], None), "responded to item 'i3' without a text"),
        (Reply(200, [SECRET]), "responded to item 'i3' without a text"),
    ],
)
def test_one_item_that_fails_for_good_fails_the_evaluation_and_quotes_nothing(
    fault: Reply, told: str
) -> None:
    def reply(body: dict[str, Any], number: int) -> Reply:
        return fault if body["messages"][0]["content"] == ITEMS[3].prompt else echo(body, number)

    with endpoint(reply) as server, pytest.raises(EvaluationError) as caught:
        ask(server, retries=1)
    assert told in str(caught.value) and SECRET not in str(caught.value)


def test_an_endpoint_that_is_not_there_is_told() -> None:
    with endpoint(echo) as gone:
        pass
    with pytest.raises(EvaluationError, match="in 2 tries, at last ConnectError"):
        ask(gone, ITEMS[:1], retries=1)


def check(items: list[HeldoutItem], **settings: Any) -> None:
    config = {"base_url": "http://127.0.0.1:1/v1", "model": "m", **settings}
    OpenAIEvaluator(OpenAIEvaluatorSettings.model_validate(config)).check(items)


def test_refuses_at_start_what_can_never_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    with pytest.raises(SplitError, match="NO_SUCH_KEY is not set"):
        check(ITEMS, api_key_env="NO_SUCH_KEY")
    with pytest.raises(SplitError, match=r"api_key_file .* cannot be read"):
        check(ITEMS, api_key_file=tmp_path / "nothing")
    talk = HeldoutItem.model_validate(
        {"id": "talk", "prompt": [{"role": "user", "content": "x"}], "answer": "1"}
    )
    with pytest.raises(SplitError, match="item 'talk' is a list of messages"):
        check([*ITEMS, talk], chat=False)
    check([*ITEMS, talk])
