"""The picture of the README: seed 0 of `rlguard demo` with a policy that only warns.

    nice python tests/cli/demo/demo_pictures.py FOLDER

Not a test: it takes about four minutes on a free core. Runs that FOLDER has already are not repeated. It
prints what the captions say, and when it was made. The line is where the same run with the guard fires.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path
from statistics import fmean

from rlguard.cli.demo.command import ENVIRONMENT, POLICY, make_plan
from rlguard.cli.report.plot import SMOOTHED_OVER, draw
from rlguard.cli.run.folder import read_history
from rlguard.cli.run.session import run_guarded
from rlguard.core.wire import Verdict
from trainer_image.demo.train import WARMUP_STEPS

DOCS = Path(__file__).resolve().parents[3] / "docs"
STEPS, SEED = 80, 0
WARNS_ONLY = "\ncalibrated:\n  on_decline: warn\n  on_disagreement: warn\n"


def run(folder: Path, policy: Path) -> Path:
    """The report of a run with this policy."""
    report = folder / "report"
    if not (report / "run.json").exists():
        shutil.rmtree(folder, ignore_errors=True)
        how = {"steps": STEPS, "warmup_steps": WARMUP_STEPS, "policy": policy}
        run_guarded(make_plan(folder, benign=False, seed=SEED, **how))
    return report


def words(report: Path) -> str:
    """First and last figures of a run, as the captions have them."""
    lines = [json.loads(line) for line in (report / "history.jsonl").read_text("utf-8").splitlines()]
    rewards = [line["reward"] for line in lines if line["reward"] is not None]
    scores = [line["heldout"] for line in lines if "heldout" in line]
    first, last = fmean(rewards[:SMOOTHED_OVER]), fmean(rewards[-SMOOTHED_OVER:])
    start = fmean(line["heldout"] for line in lines if line["step"] == 0)  # every pass
    return (
        f"{lines[-1]['step']} steps; reward {first:.2f} -> {last:.2f} (means of {SMOOTHED_OVER}); "
        f"held-out {start:.2f} -> {scores[-1]:.2f}"
    )


def main(base: Path) -> None:
    """Make both runs and the picture."""
    os.environ.update(ENVIRONMENT)
    base.mkdir(parents=True, exist_ok=True)
    warns_only = base.absolute() / "warns-only.yaml"
    warns_only.write_text(POLICY.read_text("utf-8") + WARNS_ONLY, encoding="utf-8")
    stopped, ignored = run(base / "stopped", POLICY), run(base / "ignored", warns_only)
    verdict = Verdict.model_validate_json((stopped / "verdict.json").read_text("utf-8"))
    picture = draw(read_history(ignored / "history.jsonl"), verdict)
    (DOCS / "demo-unguarded.svg").write_text(picture, encoding="utf-8")
    print(f"stopped: {words(stopped)}\ndemo-unguarded.svg: {words(ignored)}")
    print(f"fire at step {verdict.latch_step} ({verdict.code}); {time.strftime('%Y-%m-%d')}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
