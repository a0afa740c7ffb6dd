"""The commands of `rlguard` and `kubectl rlguard`: where each one is, what it does, and what it needs.

None is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rlguard.cli.epilog import epilog


@dataclass(frozen=True, slots=True)
class Command:
    """A command: the module that holds a Typer application as `app`, its summary, and the extras it needs."""

    module: str
    summary: str
    extras: tuple[str, ...] = ("cli",)


COMMANDS: Mapping[str, Command] = {
    "demo": Command(
        "rlguard.cli.demo.command", "A real GRPO run that hacks its reward, and is stopped.", ("local",)
    ),
    "run": Command("rlguard.cli.run.command", "Run a trainer under a guard that can stop it."),
    "follow": Command("rlguard.cli.follow", "Report a trainer from its log, without code in it."),
    "serve": Command("rlguard.cli.serve", "The guard alone, or the page of runs that have ended."),
    "split": Command("rlguard.cli.split", "Make a held-out split, or check one."),
    "check": Command("rlguard.cli.check.command", "What would be refused, before a run starts."),
    "wrap": Command(
        "rlguard.cli.wrap.command", "Put a training job that you have under guard.", ("cli", "operator")
    ),
    "status": Command("rlguard.cli.status", "How a run is doing: on a cluster, at an address, in a folder."),
    "report": Command("rlguard.cli.report.command", "The report of a run: of a folder, or of a job."),
    "resume": Command("rlguard.cli.resume.command", "Go on from the last good checkpoint of a run."),
    "replay": Command("rlguard.cli.replay.command", "When each detector would have stopped a past run."),
}

#: Those that `kubectl rlguard` has.
OF_A_CLUSTER = ("wrap", "status", "report", "resume")

HELP = "RLGuard stops reinforcement-learning post-training when the policy starts to hack its reward."
EPILOG = epilog(
    "rlguard demo",
    "rlguard run --heldout heldout.jsonl -- python train.py",
    note="`rlguard COMMAND --help` explains one command.",
)


@dataclass(frozen=True, slots=True)
class Program:
    """What a person types, which commands it has, and the end of its help text."""

    name: str
    commands: Mapping[str, Command]
    epilog: str


RLGUARD = Program("rlguard", COMMANDS, EPILOG)
KUBECTL = Program(
    "kubectl rlguard",
    {name: COMMANDS[name] for name in OF_A_CLUSTER},
    epilog(
        "kubectl rlguard status my-job -n training",
        note="`kubectl rlguard COMMAND --help` explains one command; `rlguard` has more of them.",
    ),
)
