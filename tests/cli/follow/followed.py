"""A follower and a guard in memory: what is reported of a log, and what the user is told."""

import itertools
import random

from rlguard.cli.logs.readers import read_log
from rlguard.cli.replay.run import load_run
from rlguard.client.client import Acknowledgement, VerdictView
from rlguard.client.errors import GuardUnavailableError, ReportRefusedError
from rlguard.client.samples import StepSample
from rlguard.follow.config import FollowConfig
from rlguard.follow.follower import Follower
from rlguard.follow.guard_history import KnownHistory
from rlguard.follow.preexisting import PreexistingFiles, scan
from rlguard.follow.sources import framework_of

VERDICT = VerdictView(fire=False, stop=False)


class Guard:
    """Keeps what it acknowledges. `down`: requests that it does not answer. `refused`: steps."""

    def __init__(self):
        self.steps, self.checkpoints, self.down, self.refused = {}, [], 0, set()

    def _answer(self):
        if self.down:
            self.down -= 1
            raise GuardUnavailableError("down")

    def verdict(self):
        self._answer()
        return VERDICT

    def post_steps(self, reports):
        self._answer()
        if any(report.step in self.refused for report in reports):
            raise ReportRefusedError("not this one")
        for report in reports:
            assert self.steps.setdefault((report.attempt, report.step), report) == report, "contradicts"
            assert self.steps[report.attempt, report.step] is report, f"twice: {report.step}"
        return Acknowledgement(verdict=VERDICT, accepted=len(reports))

    def post_checkpoint(self, report):
        self._answer()
        self.checkpoints.append((report.attempt, report.step, report.path))
        return Acknowledgement(verdict=VERDICT)

    def history(self):
        known = {}
        for (attempt, step), r in self.steps.items():
            sample = StepSample(step, r.reward, r.kl, r.kl_kind, r.entropy, r.reward_std)
            known.setdefault(attempt, {})[step] = sample
        return KnownHistory(known, frozenset(self.checkpoints))


class Followed:
    """One followed log, and a follower that can be started again."""

    def __init__(self, path, format_="auto", checkpoints=None, new_run=False, **more):
        self.guard, self.said, self.now = Guard(), [], 0.0
        before = scan(path, checkpoints, framework_of(format_)) if new_run else None
        if before is not None:
            before = PreexistingFiles.from_json(before.to_json())
        self.config = FollowConfig(path, checkpoints, format_, before=before, **more)
        self.restart()

    def restart(self):
        self.follower = Follower(
            self.config, self.guard, self.guard.history(), self.said.append, clock=lambda: self.now
        )

    def poll(self):
        self.follower.poll()

    def finish(self):
        self.follower.finish(trainer_ended=True)

    def rows(self):
        return sorted((a, s, r.reward, r.kl) for (a, s), r in self.guard.steps.items())

    def places(self):
        return [row[:2] for row in self.rows()]

    def tells(self, words):
        return any(words in sentence for sentence in self.said)


def replayed(path, settings=None):
    run = load_run(read_log(path), str(path), {}, settings)
    kls = [None if k != k else k for k in run.kl.tolist()]
    return sorted(zip(run.attempt.tolist(), run.step.tolist(), run.reward.tolist(), kls, strict=True))


def followed_to_the_end(path, *arguments, **more):
    followed = Followed(path, *arguments, **more)
    followed.poll()
    followed.finish()
    return followed


def pieces(data, seed):
    rng = random.Random(seed)
    cuts = sorted(rng.sample(range(1, len(data)), 25))
    return [data[a:b] for a, b in itertools.pairwise([0, *cuts, len(data)])]


def append(path, data):
    with path.open("ab") as file:
        file.write(data)
