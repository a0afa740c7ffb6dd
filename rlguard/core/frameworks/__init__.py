"""The RL frameworks: one YAML file each, with names of metrics, layouts of checkpoints, and advice.

`rlguard.follow.frameworks` reads them; here is only which there are, because the API knows no YAML.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

#: The file of each framework, by its key.
FILES: Mapping[str, Path] = {file.stem: file for file in sorted(Path(__file__).parent.glob("*.yaml"))}
#: Frameworks whose checkpoints can be found and scored.
LAYOUTS = tuple(key for key, file in FILES.items() if "\nlayouts:" in file.read_text("utf-8"))

#: Formats that are no framework's: only how the file is to be read.
FILE_FORMATS = ("auto", "tensorboard", "jsonl", "csv")
#: What a log can be said to be.
FORMATS = (*FILE_FORMATS, *FILES)


def bare(column: str) -> str:
    """A column's name without what the tracker put around it: `my-run - train/reward` is `reward`."""
    return column.rpartition(" - ")[2].strip().removeprefix("train/")


def fits(name: str, pattern: str) -> bool:
    """Whether `name` is `pattern`, in which `*` stands for one part between slashes, `**` for one or more.

    `*` may also end a part, as in `mean@*`.
    """
    if "*" not in pattern:
        return name == pattern
    parts, wanted = name.split("/"), pattern.split("/")
    if "**" in wanted:
        many = len(parts) - len(wanted) + 1
        at = wanted.index("**")
        wanted = [*wanted[:at], *["*"] * max(many, 1), *wanted[at + 1 :]]
    return len(parts) == len(wanted) and all(map(_part_fits, parts, wanted))


def _part_fits(part: str, wanted: str) -> bool:
    return part.startswith(wanted[:-1]) if wanted.endswith("*") else part == wanted


#: Names of further figures, whatever the framework, as `rlguard.core.symptoms.Logged` has them; nothing
#: is judged by them.
FIGURES: Mapping[str, tuple[str, ...]] = {
    "clipped": (
        *("completions/clipped_ratio", "response_length/clip_ratio", "is_truncated/all/mean"),
        *("agg/all/*/is_truncated/mean", "rollout/truncated_ratio", "rollout/truncated_rate"),
        "truncation_rate",
    ),
    "zero_std": ("frac_reward_zero_std",),
    "mixed": ("env/all/by_group/frac_mixed",),
}

#: Of names that begin as a component of the reward does: what is a spread, a whole, or of a preference loss.
NO_COMPONENTS = frozenset(
    {"mean", "std", "min", "max", "total", "overall", "chosen", "rejected", "margins", "accuracies"}
)


def figure_of(column: str) -> str:
    """Which of `FIGURES` a column is; "components" for a component of the reward; "" for anything else.

    TRL logs a component as `rewards/NAME/mean`, EasyR1 as `reward/NAME` beside `reward/overall`. Tables of a
    notebook have spaces around the slashes.
    """
    name = bare(column).replace(" / ", "/")
    first, slash, rest = name.partition("/")
    if slash and first in ("reward", "rewards"):
        part = rest.removesuffix("/mean")
        return "components" if part not in NO_COMPONENTS and not part.endswith("/std") else ""
    known = _FIGURE_BY_NAME.get(name)
    return known or next((figure for wanted, figure in FIGURE_PATTERNS if fits(name, wanted)), "")


_FIGURE_BY_NAME = {name: figure for figure, names in FIGURES.items() for name in names}
#: Names of figures with a part that the run chooses, and the figure of each.
FIGURE_PATTERNS = tuple((name, figure) for name, figure in _FIGURE_BY_NAME.items() if "*" in name)
