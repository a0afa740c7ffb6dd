"""Evaluator of any OpenAI-compatible endpoint, such as the server a trainer already rolls out with.

The prompts leave the guard for that endpoint; answers and scores do not. A request that fails for good fails
the evaluation: an item without a completion has no score, and never 0. Error texts quote no body, because a
server may send the prompt back in it.
"""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import hashlib
import json
import os
import random
import time
from collections.abc import Sequence
from typing import Any

import httpx

from guard_core.extras import missing_extra
from guard_core.wire import EvaluationSampling
from guard_service.heldout.asking import (
    Stops,
    answer_after,
    answer_in,
    messages,
    refuse_without_template,
    template_kwargs,
)
from guard_service.heldout.config import OpenAIEvaluatorSettings
from guard_service.heldout.errors import EvaluationError, SplitError
from guard_service.heldout.evaluators import Completion, Completions, sample_seed, timed
from guard_service.heldout.evaluators.served import ServedVllm
from guard_service.heldout.split import HeldoutItem
from guard_service.heldout.worker import EvaluationRequest

FIRST_BACKOFF_SECONDS = 0.5
LONGEST_BACKOFF_SECONDS = 60.0
#: Of which a greedy completion is made beside the sampled ones, to see whether the weights are others.
GREEDY_ITEMS = 32
#: The `finish_reason` of a completion that reached the limit, of one that ended by itself, and of one that
#: ended for another reason than the limit. What none of them names is not known.
_CUT_OFF = frozenset({"length", "max_tokens", "model_length"})
_ENDED = frozenset({"stop", "eos", "eos_token", "end_turn", "stop_sequence"})
_NOT_CUT_OFF = _ENDED | {"content_filter", "function_call", "tool_calls"}
_THOUGHT = ("reasoning_content", "reasoning")  # where servers put what a model thinks first
_EXTENSIONS = ("top_k", "min_p", "repetition_penalty")  # of vLLM and SGLang, among others
_PASSING = frozenset({408, 409, 425, 429})  # and 5xx: worth another try
_HINTS = {
    401: "check api_key_file or api_key_env",
    403: "check api_key_file or api_key_env",
    404: "check base_url and model",
    400: "check model, max_new_tokens, the prompt's length, and whether the server knows top_k, min_p and "
    "repetition_penalty, if the trainer samples with them (`temperature` sets the sampling without them), "
    "and chat_template_kwargs and stop, if they are set",
    422: "check model, max_new_tokens and the prompt's length",
}


class OpenAIEvaluator:
    """Asks an endpoint for every completion, a bounded number at once.

    `served`: loads each checkpoint into the server; None: it has them from elsewhere, which nobody can see.
    """

    def __init__(self, settings: OpenAIEvaluatorSettings, served: ServedVllm | None = None) -> None:
        self._settings, self._served = settings, served

    @property
    def over(self) -> bool:
        """See `Evaluator.over`: nothing is held here."""
        return False

    def check(self, items: Sequence[HeldoutItem]) -> None:
        """See `Evaluator.check`: the key is readable, and no chat goes to /completions."""
        self._headers()
        missing = None if self._served is None else missing_extra("load_checkpoints", ["eval-hf"])
        if missing is not None:
            raise SplitError(missing)
        talk = next((item for item in items if not isinstance(item.prompt, str)), None)
        if talk is not None and not self._settings.chat:
            raise SplitError(
                f"item {talk.id!r} is a list of messages, which /completions does not take: set chat to true"
            )
        refuse_without_template(items, self._settings, chat=self._settings.chat)

    def warm_up(self) -> None:
        """See `Evaluator.warm_up`: nothing to do."""

    def complete(self, items: Sequence[HeldoutItem], request: EvaluationRequest) -> Completions:
        """See `Evaluator.complete`."""
        sampling = self._settings.sampling_with(request.sampling)
        seconds: dict[str, float] = {}
        staged = None
        if self._served is not None:
            with timed(seconds, "stage"):
                staged = self._served.take(request)
            with timed(seconds, "load"):
                self._served.load(staged, request, self._headers())
        with timed(seconds, "generate"):
            made = self._asked(items, request, sampling)
            # What is proven, or is a further pass of the same weights, is not compared.
            unknown = staged is None and request.pass_index == 0
            said = self._said(items, request, sampling, made) if unknown else None
        sha256, path = (None, None) if staged is None else (staged.sha256, staged.path)
        return Completions(made, sampling, sha256, path, seconds, said)

    def _said(
        self,
        items: Sequence[HeldoutItem],
        request: EvaluationRequest,
        sampling: EvaluationSampling,
        made: Sequence[Sequence[Completion]],
    ) -> str:
        """Digest of greedy completions: those that were made, or of some items one more each.

        Sampled ones do not do: a server may have no use for a seed, and then differ without other weights.
        """
        if sampling.temperature > 0:
            greedy = EvaluationSampling(
                temperature=0.0,
                max_new_tokens=sampling.max_new_tokens,
                stop=sampling.stop,
                samples=1,
                source=sampling.source,
            )
            made = self._asked(items[:GREEDY_ITEMS], request, greedy)
        texts = [completion.text for row in made for completion in row]
        return hashlib.sha256(json.dumps(texts).encode()).hexdigest()

    def _asked(
        self, items: Sequence[HeldoutItem], request: EvaluationRequest, sampling: EvaluationSampling
    ) -> list[list[Completion]]:
        """Completions, shape (n_items, samples)."""
        try:
            return asyncio.run(self._complete(items, request, sampling))
        except ExceptionGroup as group:
            failed = group.subgroup(EvaluationError)
            raise (failed.exceptions[0] if failed else group) from group

    async def _complete(
        self, items: Sequence[HeldoutItem], request: EvaluationRequest, sampling: EvaluationSampling
    ) -> list[list[Completion]]:
        settings = self._settings
        model = settings.model_name(attempt=request.attempt, step=request.step, checkpoint=request.path.name)
        ending = Stops.of(settings, sampling)
        at_once = asyncio.Semaphore(settings.concurrency)
        limits = httpx.Limits(max_connections=settings.concurrency)
        async with httpx.AsyncClient(
            base_url=settings.base_url.rstrip("/") + "/",
            headers=self._headers(),
            timeout=settings.request_timeout_seconds,
            limits=limits,
        ) as client:

            async def ask(item: HeldoutItem, sample: int) -> Completion:
                seed = sample_seed(settings.seed, request.pass_index, item.id, sample)
                async with at_once:
                    return await self._ask(client, item, self._body(item, model, sampling, seed), ending)

            async with asyncio.TaskGroup() as group:
                tasks = [[group.create_task(ask(item, k)) for k in range(sampling.samples)] for item in items]
        return [[task.result() for task in row] for row in tasks]

    def _body(self, item: HeldoutItem, model: str, sampling: EvaluationSampling, seed: int) -> dict[str, Any]:
        body = {
            "model": model,
            "max_tokens": sampling.max_new_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p or 1,  # a server may have another default
            "seed": seed,
            "stream": False,
        }
        # OpenAI's own API has none of these, so they are sent only where they are wanted.
        body |= {name: value for name in _EXTENSIONS if (value := getattr(sampling, name)) is not None}
        body |= self._ending(sampling)
        if self._settings.chat:
            kwargs = template_kwargs(item, self._settings)
            body |= {"chat_template_kwargs": kwargs} if kwargs else {}
            return body | {"messages": messages(item, self._settings)}
        return body | {"prompt": item.prompt}

    def _ending(self, sampling: EvaluationSampling) -> dict[str, Any]:
        """What the server is told of the texts that end a completion.

        By OpenAI's API a server leaves out the text at which it ends, and does not say which it was. So it is
        told those that are to be left out. Those of the trainer are a part of what is scored: only vLLM keeps
        them if it is asked to, and only of a server that takes checkpoints is it known that it is one. Of
        others they are looked for here, and the server generates on to the model's own end.
        """
        if self._settings.stop:
            return {"stop": list(self._settings.stop)}
        if sampling.stop and self._served is not None:
            return {"stop": list(sampling.stop), "include_stop_str_in_output": True}
        return {}

    async def _ask(
        self, client: httpx.AsyncClient, item: HeldoutItem, body: dict[str, Any], ending: Stops
    ) -> Completion:
        path = "chat/completions" if self._settings.chat else "completions"
        tries = self._settings.retries + 1
        for attempt in range(tries):
            wait = min(LONGEST_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * 2**attempt) * random.uniform(0.5, 1)  # noqa: S311
            try:
                response = await client.post(path, json=body)
            except httpx.TransportError as error:
                problem = type(error).__name__
            else:
                if response.status_code == httpx.codes.OK:
                    return self._completion(item, response, ending)
                problem = f"status {response.status_code}"
                if response.status_code not in _PASSING and response.status_code < 500:
                    hint = _HINTS.get(response.status_code, "see the server's log")
                    raise EvaluationError(
                        f"{client.base_url}{path} responded {problem} for item {item.id!r}: {hint}"
                    )
                wait = max(wait, _retry_after(response))
            if attempt + 1 < tries:
                await asyncio.sleep(wait)
        raise EvaluationError(
            f"{client.base_url}{path} gave no completion for item {item.id!r} in {tries} tries, "
            f"at last {problem}"
        )

    def _completion(self, item: HeldoutItem, response: httpx.Response, ending: Stops) -> Completion:
        """The completion in a response. One that was cut off before its text began has no answer."""
        text = end = thought = None
        with contextlib.suppress(ValueError, LookupError, TypeError, AttributeError):
            choice = response.json()["choices"][0]
            end = choice.get("finish_reason")
            if self._settings.chat:
                text, thought = choice["message"].get("content"), _thought(choice["message"])
            else:
                text = choice.get("text")
        mark = answer_after(item, self._settings)
        known = isinstance(end, str) and end in _CUT_OFF | _NOT_CUT_OFF
        truncated = end in _CUT_OFF if known else None
        if text is None and (truncated or (mark and thought and known and end in _ENDED)):
            return Completion(thought or "", None, truncated)
        if not isinstance(text, str):
            raise EvaluationError(
                f"{response.url} responded to item {item.id!r} without a text: it is not OpenAI-compatible, "
                "or the model wrote something other than text (where a server takes the thought out of "
                "the text, set answer_after)"
            )
        if (ended := ending.cut(text)) is not None:  # the server has left it in, or was not told
            text, truncated = ended, False
        if mark and thought and mark not in text:  # the server has taken it out
            return Completion(f"{thought}{mark}{text}", text or None, truncated)
        return Completion(text, answer_in(text, mark), truncated)

    def _headers(self) -> dict[str, str]:
        settings = self._settings
        key = None
        if settings.api_key_env is not None:
            key = os.environ.get(settings.api_key_env)
            if not key:
                raise SplitError(f"api_key_env: the environment variable {settings.api_key_env} is not set")
        elif settings.api_key_file is not None:
            try:
                key = settings.api_key_file.read_text().strip()
            except (OSError, UnicodeDecodeError) as error:
                raise SplitError(f"api_key_file {settings.api_key_file} cannot be read: {error}") from error
        return {} if key is None else {"Authorization": f"Bearer {key}"}


def _thought(message: dict[str, Any]) -> str | None:
    """What the model thought, where the server tells it from the answer."""
    return next((text for name in _THOUGHT if (text := message.get(name)) and isinstance(text, str)), None)


def _retry_after(response: httpx.Response) -> float:
    """Seconds the server asks to wait (RFC 9110 10.2.3: a number or a date), at most a minute; 0 if none."""
    value = response.headers.get("retry-after", "")
    try:
        seconds = float(value) if not value.endswith("GMT") else _until(value)
    except ValueError:
        return 0.0
    return min(max(seconds, 0.0), LONGEST_BACKOFF_SECONDS)


def _until(date: str) -> float:
    return email.utils.parsedate_to_datetime(date).timestamp() - time.time()
