"""What a run says of the checkpoint that another one starts from, or that one may start from it."""

from pathlib import Path

import pytest

from guard_cli.errors import ExitCode
from guard_cli.run.command import how_to_go_on
from guard_cli.run.outcome import Ending, RunOutcome
from guard_cli.run.plan import Finished, Plan
from guard_cli.run.session import where_it_starts
from guard_follow.frameworks import FRAMEWORKS
from guard_follow.what import What

WEIGHTS = Path("/old run/best_checkpoint")


def plan(out: Path, format_: str | None, *command: str, **more: object) -> Plan:
    follow = None if format_ is None else What(None, format=format_)
    return Plan(command=command or ("train.sh",), out=out, options={}, follow=follow, **more)  # type: ignore[arg-type]


def finished(code: int) -> Finished:
    return Finished(RunOutcome(code, ""), Ending(None, 0, True), 0.0, 1.0)


def test_a_followed_trainer_whose_command_does_not_name_the_checkpoint_is_told_what_would(
    tmp_path: Path,
) -> None:
    said = where_it_starts(plan(tmp_path, "verl", resume_from=WEIGHTS))
    assert (
        "actor_rollout_ref.model.path='/old run/best_checkpoint' trainer.default_local_dir=NEW_FOLDER" in said
    )


@pytest.mark.parametrize(
    ("format_", "command"),
    [("verl", f"actor_rollout_ref.model.path={WEIGHTS}"), (None, "train.py"), ("trl", "a"), ("auto", "a")],
)
def test_nothing_is_said_where_it_is_named_or_where_nothing_is_known(
    tmp_path: Path, format_: str | None, command: str
) -> None:
    assert where_it_starts(plan(tmp_path, format_, "python", command, resume_from=WEIGHTS)) == ""


@pytest.mark.parametrize("format_", [f.key for f in FRAMEWORKS if f.start])
def test_after_a_fire_the_report_folder_has_where_to_go_on(tmp_path: Path, format_: str) -> None:
    (tmp_path / "best_checkpoint").mkdir()
    said = how_to_go_on(plan(tmp_path, format_), finished(ExitCode.FIRED))
    assert f"rlguard run --resume-from {tmp_path}/best_checkpoint …; " in said
    assert said.count(f"{tmp_path}/best_checkpoint") == 2 and "NEW_FOLDER" in said
    assert "{" not in said.replace("{rollout_id}", "")  # which slime itself replaces


def test_only_a_latch_and_a_kept_checkpoint_call_for_it(tmp_path: Path) -> None:
    assert how_to_go_on(plan(tmp_path, "verl"), finished(ExitCode.FIRED)) == ""
    (tmp_path / "best_checkpoint").mkdir()
    assert how_to_go_on(plan(tmp_path, "verl"), finished(ExitCode.FINISHED)) == ""
    assert how_to_go_on(plan(tmp_path, None), finished(ExitCode.HALTED)).endswith("best_checkpoint …")
