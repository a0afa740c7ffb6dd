"""Each rule of the follower and of its table that is broken on purpose fails a test that stands beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants import Mutant, Rule, survivors

CLI = Path(__file__).parents[1]
LAYOUTS = Rule("guard_cli", "logs/layouts.py", CLI / "logs" / "test_layouts.py")
NAMES = Rule("guard_cli", "logs/names.py", CLI / "logs" / "test_names.py")
LATE = CLI / "follow" / "test_late.py"
STEPS = Rule("guard_cli", "follow/steps.py", LATE)
FOLLOWER = Rule("guard_cli", "follow/follower.py", LATE)
SOURCE = Rule("guard_cli", "follow/source.py", LATE)
TAIL = Rule("guard_cli", "logs/tail.py", LATE)
EVENTS = Rule("guard_cli", "logs/events.py", LATE)
EVENT = Rule("guard_cli", "logs/records.py", LATE)
SETTINGS = Rule("guard_cli", "logs/settings.py", CLI / "logs" / "test_settings.py")
RECORDS = Rule("guard_cli", "logs/records.py", CLI / "logs" / "test_records.py")
ATTEMPTS = Rule("guard_cli", "follow/steps.py", CLI / "follow" / "test_attempts.py")

MUTANTS: tuple[Mutant, ...] = (
    (LAYOUTS, "newest >= step else None", "newest >= 0 else None"),
    (LAYOUTS, "settled = newest <= marked or", "settled = layout.marks or"),
    (LAYOUTS, "(not layout.latest and _is_quiet(written, now))", "not layout.marks"),
    (LAYOUTS, "if layout.latest else max(_when(file)", "if layout.marker else max(_when(file)"),
    (LAYOUTS, "return not any(_SHARD.fullmatch(name) for name in there)", "return True"),
    (LAYOUTS, "if settled and _whole(model) else None", "if settled else None"),
    (LAYOUTS, "values()) <= there", "values()) is not None"),
    (LAYOUTS, "size == 8 + length + max(ends, default=0)", "size >= 8"),
    (LAYOUTS, "if entry.is_dir(follow_symlinks=False):", "if entry.is_dir():"),
    (LAYOUTS, "if length > min(MAX_HEADER, size):", "if False:"),
    (NAMES, "if settings.get(needs.key) in needs.values:", "if needs.key in settings:"),
    (
        NAMES,
        "why_no_token_mean(setting, settings) for setting in needs)",
        "why_no_token_mean(setting, settings) for setting in needs[:1])",
    ),
    (NAMES, '({"kl_loss"}, f"stands', '({"no"}, f"stands'),
    (NAMES, "and not _words(name) & _NO_SCORE", ""),
    (NAMES, "if len(name) <= MAX_NAME]", "]"),
    (RECORDS, "return name[: MAX_NAME + 1]", "return name"),
    (
        RECORDS,
        'start, end = text.find(_ROLL + "{"), text.rfind("}")',
        "start, end = text.find(_ROLL), len(text)",
    ),
    (
        SETTINGS,
        "class Plain(yaml.SafeLoader):\n        def flatten_mapping(",
        "class Plain(yaml.SafeLoader):\n        def never_called(",
    ),
    (ATTEMPTS, "if there is not None and _agree(there, sample):", "if there is not None:"),
    (ATTEMPTS, "a is None or b is None or a == b", "a == b"),
    (ATTEMPTS, "        if not is_new:\n            return None\n", ""),
    (ATTEMPTS, "sample.step > max(self._known[newest])", "True"),
    (ATTEMPTS, "if a >= first):", "if a == first):"),
    (ATTEMPTS, "min(steps) <= step <= max(steps)", "min(steps) <= step"),
    (STEPS, "return self._last >= step", "return True"),
    (STEPS, "if on_its_way else newest", "if False else newest"),
    (STEPS, "if self._missing():", "if False:"),
    (STEPS, "kind or KlKind.ABSENT)", "kind or KlKind.REF_TOKEN_MEAN)"),
    (STEPS, "if named is None else self._check(named, sample)", ""),
    (FOLLOWER, "if key in self._evaluated and path in self._seen:", "if False:"),
    (FOLLOWER, "return False  # scored before", "pass  # scored before"),
    (FOLLOWER, "if not self._records:", "if False:"),
    (FOLLOWER, "not (self._seen or self._held)", "False"),
    (SOURCE, ">= QUIET_NS:", ">= 0:"),
    (SOURCE, "at_end=logs[0] in self._old", "at_end=True"),
    (SOURCE, "if any(self._old.get(file) != _when(file) for", "if any(True for"),
    (
        TAIL,
        'self._offset, self._last, self._anew = 0, b"", True\n        while',
        'self._offset, self._last = 0, b""\n        while',
    ),
    (EVENTS, "if folders.isdisjoint(file.parent.parents)", ""),
    (EVENTS, "if first_step(file) is not None", ""),
    (EVENT, "and bare(tag) not in STEP_NAMES:", ":"),
)


@pytest.mark.slow
def test_each_broken_rule_is_noticed(tmp_path: Path) -> None:
    assert survivors(MUTANTS, tmp_path) == ""
