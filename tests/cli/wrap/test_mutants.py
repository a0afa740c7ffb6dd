"""Each rule of `rlguard wrap` that is broken on purpose fails a test that stands beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants import Mutant, Rule, passes, survivors

HERE = Path(__file__).parent
BESIDE = (HERE.parent / "conftest.py",)


def rule(source: str) -> Rule:
    return Rule("guard_cli", f"wrap/{source}", HERE / "test_wrap.py", BESIDE)


MANIFEST, REWRITE, GUARD = rule("manifest.py"), rule("rewrite.py"), rule("guard.py")
COMMAND, TELLING = rule("command.py"), rule("telling.py")

MUTANTS: tuple[Mutant, ...] = (
    (MANIFEST, "if len(content) > MAX_BYTES:", "if False:"),
    (MANIFEST, '"utf-8-sig"', '"utf-8"'),
    (MANIFEST, '.replace("\\r\\n", "\\n").replace("\\r", "\\n")', '.replace("\\r\\n", "\\n")'),
    (MANIFEST, r"|\.\.\.)(?=", r")(?="),
    (MANIFEST, r"(?=\s|\Z)", ""),
    (MANIFEST, "if _NOTHING.fullmatch(part.text):", "if not part.text:"),
    (MANIFEST, "if len(jobs) > 1:", "if False:"),
    (MANIFEST, "error.problem_mark.line += part.line", "pass"),
    (MANIFEST, "except RecursionError:", "except KeyError:"),
    (MANIFEST, "if seen > MAX_NODES:", "if False:"),
    (MANIFEST, "if depth > MAX_DEPTH:", "if depth > 2000:"),
    (MANIFEST, "if node.tag not in _TAGS:", "if False:"),
    (MANIFEST, "if key.value in known:", "if False:"),
    (MANIFEST, "key.tag not in (_TEXT, _MERGE) or not", "not"),
    (MANIFEST, "if pair[0] not in _OTHERWISE]", "]"),
    (MANIFEST, 'if "<<" in pairs(one):', "if False:"),
    (MANIFEST, "except ValueError as error:", "except KeyError as error:"),
    (MANIFEST, "{node.start_mark.line + line + 1}", "{node.start_mark.line + line}"),
    (REWRITE, '"kubectl.kubernetes.io/last-applied-configuration"', '"none"'),
    (REWRITE, 'OWN, CARRIED = ("name", "namespace")', 'OWN, CARRIED = ("name",)'),
    (REWRITE, '("labels", "annotations")', '("labels",)'),
    (REWRITE, "found is not chain[-1] and any(", "found is not chain[-1] and None is any("),
    (REWRITE, "_is_null(value_of(metadata, key))]", "False]"),
    (REWRITE, ", *job.adapter.assigned(meaning(job.document.text))]", "]"),
    (REWRITE, "if (name or own) is None:", "if False:"),
    (REWRITE, "anew = not _means(text, tree)", "anew = False"),
    (REWRITE, "anew = not _means(text, tree)", "anew = True"),
    (REWRITE, "_COMMENT.search(job.document.text) is not None", "True"),
    (REWRITE, "_is_comment(lines[start - 1], mark.column)", "False"),
    (REWRITE, 'bare.startswith("#") and len(line) - len(bare) <= column', 'bare.startswith("#")'),
    (REWRITE, ' else \'"\'', " else None"),
    (REWRITE, "or _without(node, dropped) is node:", ":"),
    (REWRITE, "if line else line for line", "for line"),
    (REWRITE, 'f"\\n{_serialized(tree)}" if job.document.marker else', ""),
    (REWRITE, '{"name": parts.name}).splitlines(), column)', '{"name": parts.name}).splitlines(), 0)'),
    (GUARD, "if kind not in SOURCES or not name or not path:", "if kind not in SOURCES:"),
    (GUARD, "    if kind != \"claim\" and \"/\" in path:", "    if False:"),
    (GUARD, "if (url is None) != (model is None):", "if False:"),
    (GUARD, "if name not in known:", "if False:"),
    (GUARD, 'if claim is not None and claim.get("readOnly") is True:', "if False:"),
    (GUARD, "if claim is None and not passing:", "if False:"),
    (GUARD, "warning if passing else", "warning if False else"),
    (GUARD, "if one.guarded)", ")"),
    (COMMAND, "    if said.reason is not None:", "    if False:"),
    (COMMAND, "except (OSError, ValueError) as error:", "except OSError as error:"),
    (TELLING, "*(f\"  {plain(one)}\" for", "*(f\"  {one}\" for"),
    (TELLING, "if wrapped.left_out:", "if False:"),
    (TELLING, "if wrapped.was is not None:", "if True:"),
)  # fmt: skip


@pytest.mark.parametrize("one", [MANIFEST], ids=lambda one: one.source)
def test_the_rules_pass_as_they_are(one: Rule, tmp_path: Path) -> None:
    assert passes(one, tmp_path)


@pytest.mark.slow
def test_each_broken_rule_is_noticed(tmp_path: Path) -> None:
    assert survivors(MUTANTS, tmp_path) == ""
