"""Graders as TRL, verl and OpenRLHF call them, made into scorers. Recognised by their parameters' names.

| framework | recognised by | called with |
|---|---|---|
| TRL | `completions` | lists of one: prompts, completions, and the item's columns by name |
| verl | `solution_str`, or `solution_strs` | data_source, solution_str, ground_truth, extra_info |
| OpenRLHF | `queries` | lists of one: queries (prompt and completion), prompts, labels |

A prompt of messages makes a completion of messages for TRL; so does a text that the function cannot take.
Of a dict `score` counts, else `rewards`. Pay outside [0, 1] is cut to that: below 0 is 0, above 1 is 1.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Function = Callable[..., Any]
#: Under which names a data set has the answer.
ANSWERS = ("answer", "ground_truth", "solution", "target", "label", "final_answer", "output")
#: Of what a dict is paid.
_PAY = ("score", "scores", "rewards", "reward")


def parameters_of(function: Function) -> Mapping[str, inspect.Parameter]:
    """Its parameters by name; {} where it has no signature, as one of C."""
    try:
        return inspect.signature(function).parameters
    except ValueError:
        return {}


def grader_style(function: Function) -> str:
    """Whose grader it is, by the names of its parameters; "" for a scorer of ours."""
    names = parameters_of(function).keys()
    if "completions" in names:
        return "TRL"
    if names & {"solution_str", "solution_strs"}:
        return "verl"
    return "OpenRLHF" if "queries" in names else ""


def call(function: Function, prompt: Any, completion: str, answer: str, meta: Mapping[str, Any]) -> Any:
    """Call a grader of a framework for one completion; gives what it returns, which `pay_of` reads."""
    columns = {**meta, **{name: answer for name in ANSWERS if name not in meta}}
    return _CALLS[grader_style(function)](function, prompt, completion, answer, columns)


def pay_of(returned: Any) -> Any:
    """The pay in what a grader returned, in [0, 1]; what is no number as it is."""
    if isinstance(returned, Mapping):
        returned = next((returned[name] for name in _PAY if name in returned), returned)
    if hasattr(returned, "tolist"):  # a tensor
        returned = returned.tolist()
    if isinstance(returned, Sequence) and not isinstance(returned, str) and len(returned) == 1:
        return pay_of(returned[0])
    if isinstance(returned, bool | int | float) and returned == returned:  # noqa: PLR0124  # NaN is no pay
        return min(max(float(returned), 0.0), 1.0)
    return returned


def _trl(function: Function, prompt: Any, completion: str, answer: str, columns: Mapping[str, Any]) -> Any:
    message = [{"role": "assistant", "content": completion}]
    more = {name: [value] for name, value in columns.items()} | {"answer": [answer], "trainer_state": None}
    if not isinstance(prompt, str):
        return _taken(function, {**more, "prompts": [prompt], "completions": [message]})
    try:
        return _taken(function, {**more, "prompts": [prompt], "completions": [completion]})
    except (TypeError, KeyError, AttributeError):  # it reads messages
        asked = [{"role": "user", "content": prompt}]
        return _taken(function, {**more, "prompts": [asked], "completions": [message]})


def _verl(function: Function, _: Any, completion: str, answer: str, columns: Mapping[str, Any]) -> Any:
    source, extra = columns.get("data_source", ""), columns.get("extra_info", {})
    if "solution_strs" in parameters_of(function):
        several = {"data_sources": [source], "solution_strs": [completion], "ground_truths": [answer]}
        return _taken(function, {**several, "extra_infos": [extra]})
    one = {"data_source": source, "solution_str": completion, "ground_truth": answer, "extra_info": extra}
    return _taken(function, one)


def _openrlhf(function: Function, prompt: Any, completion: str, answer: str, _: Mapping[str, Any]) -> Any:
    text = prompt if isinstance(prompt, str) else "\n".join(message["content"] for message in prompt)
    return _taken(function, {"queries": [text + completion], "prompts": [text], "labels": [answer]})


_CALLS = {"TRL": _trl, "verl": _verl, "OpenRLHF": _openrlhf}


def _taken(function: Function, arguments: Mapping[str, Any]) -> Any:
    """Call it with those arguments that it takes, by name."""
    parameters = parameters_of(function)
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values()):
        return function(**arguments)
    return function(**{name: value for name, value in arguments.items() if name in parameters})
