"""Each rule of `rlguard resume` that is broken on purpose fails a test that stands beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants import Mutant, Rule, survivors

TESTS = Path(__file__).with_name("test_resume.py")
MANIFEST, COMMAND = (
    Rule("guard_cli", "resume/manifest.py", TESTS),
    Rule("guard_cli", "resume/command.py", TESTS),
)
CLUSTER = Rule("guard_cli", "cluster.py", TESTS)

MUTANTS: tuple[Mutant, ...] = (
    (COMMAND, "layout or format_", "format_"),
    (COMMAND, "return format_ if borrows else", "return"),
    (COMMAND, "and logs.metrics and", "and"),
    (COMMAND, "logs.metrics and logs.layout is None", "logs.metrics"),
    (COMMAND, "    if not metrics:\n        return\n    yield", "    yield"),
    (COMMAND, "    if not metrics:\n        return\n    template", "    template"),
    (COMMAND, 'ray = spec["template"].get("kind") == "RayJob"', "ray = False"),
    (COMMAND, "shlex.quote(resumed.checkpoint) if ray", "resumed.checkpoint if ray"),
    (COMMAND, "    return why_no_settings(format_)\n", '    return ""\n'),
    (
        COMMAND,
        "review_manifest(resumed.manifest, config, source)",
        "review_manifest(resumed.manifest, config)",
    ),
    (COMMAND, "    if cluster is None:\n        raise", "    if False:\n        raise"),
    (COMMAND, "        if found is None:\n", "        if False:\n"),
    (MANIFEST, "    if phase not in ENDED:\n", "    if False:\n"),
    (MANIFEST, "Phase.STOPPED, ", "Phase.STOPPED, Phase.STOPPING, "),
    (MANIFEST, "    if name in taken:\n", "    if False:\n"),
    (MANIFEST, '    if target := _object(spec.get("targetRef")):\n', "    if target := {}:\n"),
    (MANIFEST, " if one not in taken)", ")"),
    (MANIFEST, ' and checkpoint != best.get("path"):', ":"),
    (MANIFEST, "    if not isinstance(path, str):\n", "    if False:\n"),
    (MANIFEST, " or (isinstance(last, int) and last >= len(node))", ""),
    (MANIFEST, " and not key.startswith(_OF_TOOLS)", ""),
    (MANIFEST, "checkpoint is None and same_place", "False"),
    (MANIFEST, '    if field.startswith("resumedFrom"):\n', "    if False:\n"),
    (MANIFEST, 'if state.get("keepBest") is not True:', "if not state:"),
    (MANIFEST, '"" if best == {"path": checkpoint} else copy', "copy"),
    (MANIFEST, "own if copy else", "own if True else"),
    (COMMAND, "    if resumed.copy:\n", "    if False:\n"),
    (COMMAND, "    if said.reason is not None:\n", "    if False:\n"),
    (COMMAND, "print(plain(line)", "print(line"),
    (COMMAND, "    if cluster is None and output is None:\n", "    if False:\n"),
    (COMMAND, "    if cluster is not None and output is None:\n", "    if cluster is not None:\n"),
    (COMMAND, "        _refuse_where_it_would_start_anew(resumed)\n", ""),
    (COMMAND, "\\bRLGUARD_RESUME_FROM\\b|", ""),
    (COMMAND, "|{re.escape(path)}", "|{re.escape(path[:0])}$^"),
    (COMMAND, "if not any(_names(resumed.checkpoint, text) for text in template):", "if False:"),
    (COMMAND, "    if resumed.saves_as_before:\n", "    if False:\n"),
    (COMMAND, "(?![\\w.-])", ""),
    (MANIFEST, "saved == _saved_in(new),", "False,"),
    (MANIFEST, "new, saved = dict(spec), _saved_in(spec)", 'new, saved = dict(spec), "."'),
    (CLUSTER, 'field_validation="Strict"', 'field_validation="Ignore"'),
    (CLUSTER, "    if status == HTTPStatus.CONFLICT:", "    if False:"),
    (CLUSTER, "    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:", "    if False:"),
    (CLUSTER, "    return plain(message, MOST_SAID) if", "    return message if"),
    (CLUSTER, "if isinstance(message, str) else", "if message else"),
)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_each_broken_rule_is_noticed(tmp_path: Path) -> None:
    assert survivors(MUTANTS, tmp_path, __file__) == ""
