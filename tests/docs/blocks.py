"""The code blocks of the documentation: where they are, and what a test does with each.

A block is a fence, or lines that are indented by four spaces. An HTML comment right above it says more:

    <!-- not run: cluster -->               it is no test's, for one of `REASONS`
    <!-- exit code: 5 -->                   what its last command ends with; 0 without it
    <!-- in the test: steps=400 is steps=6 -->   what is shortened; both parts as they are written
    <!-- output is checked -->              of a console block: every line of output must come, in order

A fence with a `title` is a file of that name, which later blocks of the page use. A `sh` or `console` fence,
an indented command, and a `python` fence without a title are run, one after the other, in one folder for each
page.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

#: Why a block is not run by a test of the documentation.
REASONS = {
    "cluster": "needs a Kubernetes cluster",
    "docker": "needs a Docker daemon",
    "gpu": "needs a GPU",
    "network": "asks another host",
    "ray": "needs Ray; `make test-ray` runs it",
    "server": "does not end by itself",
    "model": "needs a model of the reader's",
    "long": "takes minutes; the test that runs it is another one",
    "fragment": "is part of a script of the reader's own",
    "example": "is an example of `--help`; tests/cli/test_help.py parses every one",
}
#: Programs that need what a test of the documentation has not; their blocks need no comment.
IMPLIED = {"kubectl": "cluster", "helm": "cluster", "docker": "docker", "aws": "network", "pip": "network"}
COMMANDS = (
    "rlguard",
    "make",
    "RLGUARD_",
    "python",
    "pip",
    "kubectl",
    "helm",
    "docker",
    "aws",
    "git",
    ".venv/bin",
)
SHELLS = ("sh", "bash", "shell", "console")

_FENCE = re.compile(r"^(?P<fence>```+)(?P<language>\w*)(?P<more>.*)$")
_TITLE = re.compile(r'title="([^"]+)"')
_COMMENT = re.compile(r"^<!-- (.+?) -->$")
_REPLACED = re.compile(r"in the test: (.+?) is (.+)")


@dataclass(frozen=True)
class Block:
    """One code block.

    Fields:
        page: the file; `line`: of its first line, from 1.
        language: the fence's; "" for an indented block.
        title: the file that it is, or None.
        notes: the comments above it.
    """

    page: Path
    line: int
    language: str
    text: str
    title: str | None = None
    notes: tuple[str, ...] = field(default=())

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"

    @property
    def not_run(self) -> str | None:
        """Why it is not run, or None: as the comment says, or because of the programs that it calls."""
        called = [command.split()[0] for command in self.commands] if self.is_shell else []
        implied = next((IMPLIED[name] for name in called if name in IMPLIED), None)
        return self._note("not run: ") or implied

    @property
    def exit_code(self) -> int:
        """What its last command must end with."""
        return int(self._note("exit code: ") or 0)

    @property
    def checks_output(self) -> bool:
        """Whether its output is compared."""
        return "output is checked" in self.notes

    @property
    def is_shell(self) -> bool:
        """Whether it is commands for a shell."""
        return self.language in SHELLS or (not self.language and self.text.startswith(COMMANDS))

    @property
    def runs(self) -> bool:
        """Whether it is something that can be run at all; files are written instead."""
        return self.title is None and (self.is_shell or self.language == "python")

    @property
    def in_the_test(self) -> str:
        """Its text with what is shortened."""
        text = self.text
        for note in self.notes:
            if replaced := _REPLACED.fullmatch(note):
                assert replaced[1] in text, f"{self}: there is no {replaced[1]!r} in this block"
                text = text.replace(replaced[1], replaced[2])
        return text

    @property
    def commands(self) -> list[str]:
        """Its commands, with continued lines; of a console block those after the prompt."""
        lines = self.in_the_test.replace("\\\n", " ").splitlines()
        if self.language == "console":
            lines = [line[2:] for line in lines if line.startswith("$ ")]
        return [line for line in lines if line.strip() and not line.lstrip().startswith("#")]

    @property
    def output(self) -> list[str]:
        """What a console block shows as output, without lines that only say that some are left out."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return [one for one in lines if one.strip() and not one.startswith("$ ") and one.strip() != "..."]

    def _note(self, start: str) -> str | None:
        return next((note[len(start) :] for note in self.notes if note.startswith(start)), None)


def blocks(page: Path) -> Iterator[Block]:
    """The code blocks of a page, in their order."""
    lines = page.read_text("utf-8").splitlines()
    at, notes, in_list = 0, (), False
    while at < len(lines):
        line = lines[at]
        if comment := _COMMENT.match(line):
            notes = (*notes, comment[1])
        elif fence := _FENCE.match(line.lstrip()):
            indent = len(line) - len(line.lstrip())
            end = next(i for i in range(at + 1, len(lines)) if lines[i].lstrip().startswith(fence["fence"]))
            title = _TITLE.search(fence["more"])
            text = "\n".join(one[indent:] for one in lines[at + 1 : end])
            yield Block(page, at + 2, fence["language"], text, title and title[1], notes)
            at, notes = end, ()
        elif line.startswith("    ") and not in_list and (at == 0 or not lines[at - 1].strip()):
            end = at
            while end < len(lines) and (lines[end].startswith("    ") or not lines[end].strip()):
                end += 1
            yield Block(page, at + 1, "", "\n".join(one[4:] for one in lines[at:end]).strip(), None, notes)
            at, notes = end - 1, ()
        elif line.strip():
            notes = ()
            in_list = bool(re.match(r"\s*([-*]|\d+\.) ", line)) or (in_list and line.startswith(" "))
        at += 1
