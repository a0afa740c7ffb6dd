"""Each rule of `rlguard wrap` that is broken on purpose fails a test that stands beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants import Mutant, Rule, survivors

HERE = Path(__file__).parent
BESIDE = (HERE.parent / "conftest.py",)


def rule(source: str) -> Rule:
    return Rule("guard_cli", f"wrap/{source}", HERE / "test_wrap.py", BESIDE)


TELLING = rule("telling.py")
MANIFEST, REWRITE, GUARD = rule("manifest.py"), rule("rewrite.py"), rule("guard.py")
COMMAND = rule("command.py")
SPEC = Rule("guard_operator", "api/types.py", HERE / "test_wrap.py", BESIDE)
OPTIONS = Rule("guard_cli", "guard_settings.py", HERE / "test_wrap.py", BESIDE)
QUEUED = Rule("guard_cli", "wrap/telling.py", HERE / "test_trainjob.py", BESIDE)
SOURCE = Rule("guard_cli", "wrap/source.py", HERE / "test_trainjob.py", BESIDE)

JOBS, JOB_SETS, PYTORCHJOBS = (
    Rule("guard_operator", f"adapters/{name}.py", HERE / "test_wrap.py", BESIDE)
    for name in ("job", "jobset", "pytorchjob")
)
TRAINJOBS = Rule("guard_operator", "adapters/trainjob.py", HERE / "test_trainjob.py", BESIDE)
COMPOSED = Rule("guard_cli", "wrap/command.py", HERE / "test_trainjob.py", BESIDE)

MUTANTS: tuple[Mutant, ...] = (
    # A limit that counts restarts of the guard.
    (COMMAND, 'restarts = "" if placement == "Pod" else counted', "restarts = counted"),
    (COMMAND, 'for doubt in filter(None, (unknown_scorer(evaluation["scorer"]), restarts)):',
     'for doubt in filter(None, (unknown_scorer(evaluation["scorer"]),)):'),
    (COMPOSED, "counted_restarts(composed, job.adapter)", "counted_restarts(given, job.adapter)"),
    (GUARD, "    if not limit:\n", "    if False:\n"),
    (JOBS, "True, index, limit=limit_of(spec)),)", "True, index),)"),
    (JOBS, 'counts = at(spec, "template", "spec", "restartPolicy") == "OnFailure"', "counts = True"),
    (JOB_SETS, "True, index, (place,), limit)", "True, index, (place,))"),
    (JOB_SETS, "limit_of(spec, *where)", "limit_of(spec)"),
    (PYTORCHJOBS, "limited = at(spec, *_LIMIT) is not None", "limited = True"),
    (PYTORCHJOBS, '"restartPolicy") != "Never"', '"restartPolicy") == "OnFailure"'),
    (PYTORCHJOBS, 'return limited and at(spec, "pytorchReplicaSpecs", role, "restartPolicy") != "Never"',
     "return limited"),
    (TRAINJOBS, "guarded, index, between, limit)", "guarded, index, between)"),
    (TRAINJOBS, 'limit_of(job["template"]["spec"], *place, "spec")', 'limit_of(job["template"]["spec"])'),
    (MANIFEST, r"(?=\s|\Z)", ""),
    (MANIFEST, "if len(jobs) > 1:", "if False:"),
    (MANIFEST, "return None if adapter.only_attached else (node, adapter)", "return (node, adapter)"),
    (MANIFEST, "if seen > MAX_NODES:", "if False:"),
    (MANIFEST, "if node.tag not in _TAGS[type(node)]:", "if False:"),
    (MANIFEST, "if key.value in known:", "if False:"),
    (MANIFEST, "if pair[0] not in _OTHERWISE]", "]"),
    (REWRITE, '"kubectl.kubernetes.io/last-applied-configuration"', '"none"'),
    (REWRITE, ", *job.adapter.assigned(meaning(job.document.text))]", "]"),
    (REWRITE, "    if not _means(text, tree):\n        what", "    if False:\n        what"),
    (REWRITE, "    if _without(node, dropped) is node:\n", "    if False:\n"),
    (REWRITE, "return {str(place): (item", "return {str(~place): (item"),
    (REWRITE, " - Counter(comments(text)) - anew", " - Counter(comments(text))"),
    (REWRITE, " - Counter(comments(text)) - anew", " - anew"),
    (TELLING, "    if wrapped.lost:\n", "    if False:\n"),
    (QUEUED, "    if kind in UNQUEUED and QUEUE_LABEL in", "    if False and QUEUE_LABEL in"),
    (QUEUED, "    if kind in UNQUEUED and", "    if"),
    (GUARD, "if kind is None or kind in _READ_ONLY:", "if False:"),
    (TELLING, " and _OF_A_CLUSTER.fullmatch(wrapped.was):", ":"),
    (MANIFEST, "node.value = _joined(node.value, at)", "pass"),
    (REWRITE, "None if _OTHER_ENDS.search(text) else ", ""),
    (COMMAND, "    if said.reason is not None:", "    if False:"),
    (SPEC, "and self.state.claim_name == self.heldout.volume.claim_name", "and False"),
    (OPTIONS, "if vllm and url is not None:", "if False:"),
    (OPTIONS, '        stop=evaluation["stop"] or None,\n', ""),
    (OPTIONS, "if name not in of_command}", "}"),
    (GUARD, "for name, value in scoring.items() if", "for name, value in {}.items() if"),
    (GUARD, '{"base_model": base_model, **', "{**"),
    (SPEC, "if self.state.keep_best and self.state.claim_name is None:", "if False:"),
    (GUARD, "given(path=folder or None, layout=layout)", "{}"),
    (GUARD, "    if layout is not None:\n        raise", "    if False:\n        raise"),
    (GUARD, "    if folder:\n", "    if False:\n"),
    (SOURCE, "named and kind_of(node) == wanted:", "kind_of(node) == wanted:"),
    (SOURCE, "            check(node, part.line)\n", ""),
    (SOURCE, "    except TemplateError:\n        return None", "    except OSError:\n        return None"),
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_each_broken_rule_is_noticed(tmp_path: Path) -> None:
    assert survivors(MUTANTS, tmp_path, __file__) == ""
