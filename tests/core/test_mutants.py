"""Tests of the tests of the rules; see `tests/mutants.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants import Mutant, Rule, survivors

HERE = Path(__file__).resolve().parent
DETECTION = HERE.parent / "detection"
SIMULATED = (DETECTION / "simulated.py",)


def rule(source: str, tests: str) -> Rule:
    return Rule("guard_core", source, HERE / tests)


GUARD = rule("heldout_guard.py", "test_heldout_guard.py")
MONITOR = rule("step_monitor.py", "test_step_monitor.py")
ROUNDS = rule("rounds.py", "test_judge.py")
JUDGE = rule("judge.py", "test_judge.py")
UNSCORED = rule("unscored.py", "test_unscored.py")
VIEW = rule("trainer_view.py", "test_unscored.py")
OF_UNSCORED = rule("judge.py", "test_unscored.py")
COUNT = rule("step_count.py", "test_judge.py")
EVALUATION = rule("evaluation.py", "test_evaluation.py")
NOTICES = rule("notices.py", "test_notices.py")
WIRE = rule("wire.py", "test_evaluation.py")
ENDING = rule("ending.py", "test_ending.py")
BASELINE = rule("detectors/baseline.py", "test_dispersion.py")
FAST = rule("detectors/fast.py", "test_dispersion.py")
PARTS = rule("detectors/parts.py", "test_dispersion.py")
CALIBRATED = rule("detectors/calibrated.py", "test_dispersion.py")
RUN = rule("detectors/run.py", "test_judge.py")
ROLLOUTS = rule("rollouts.py", "test_rollouts.py")
FIGURES = rule("figures.py", "test_figures.py")
APPLIED = rule("apply_body.py", "test_apply_body.py")
FIGURES_ON_THE_WIRE = rule("wire.py", "test_figures.py")
DISAGREEMENT = Rule("guard_core", "detectors/disagreement.py", DETECTION / "test_disagreement.py", SIMULATED)
GAP = Rule("guard_core", "detectors/gap.py", DETECTION / "test_gap.py", SIMULATED)
GRADER = Rule("guard_core", "detectors/run.py", DETECTION / "test_disagreement.py", SIMULATED)
EPROCESS = rule("detectors/eprocess.py", "test_dispersion.py")

MUTANTS: list[Mutant] = [
    (GUARD, "self._count < self.min_steps", "self._count <= self.min_steps"),
    (GUARD, "self._kl_ema > self.kl_hard_stop", "self._kl_ema >= self.kl_hard_stop"),
    (GUARD, "self._streak >= self.decline_patience", "self._streak > self.decline_patience"),
    (GUARD, "gap > self.max_proxy_real_gap", "gap >= self.max_proxy_real_gap"),
    (GUARD, "- self._heldout_ema <= self.rise_eps", "- self._heldout_ema < self.rise_eps"),
    (GUARD, "- prev_in_loop > self.rise_eps", "- prev_in_loop >= self.rise_eps"),
    (GUARD, "            self._streak = 0\n", "            pass\n"),
    (GUARD, "            self._streak += 1", "            self._streak = 1"),
    (GUARD, "if self._in_loop_baseline is None:", "if True:"),
    (
        GUARD,
        "self.ema_alpha * prev + (1.0 - self.ema_alpha) * x",
        "(1.0 - self.ema_alpha) * prev + self.ema_alpha * x",
    ),
    (GUARD, 'return self._fired_rule, f"latched: {self._fired_reason}"', "pass"),
    (GUARD, "min(factor * mean, self.kl_hard_stop)", "factor * mean"),
    (GUARD, "self._in_loop_baseline) - (self._heldout_ema", "self._in_loop_baseline) + (self._heldout_ema"),
    (GUARD, "if status is not None and status.fire:", "if status is not None and not status.fire:"),
    (MONITOR, "median_of_last(tuple(self._window))", "max(self._window)"),
    (MONITOR, "window[(len(window) - 1) // 2]", "window[len(window) // 2]"),
    (MONITOR, "values[-MEDIAN_WINDOW:]", "values"),
    (MONITOR, "self.rise <= self.kl_hard_stop", "self.rise < self.kl_hard_stop"),
    (MONITOR, "self._count < self.min_steps", "False"),
    (MONITOR, "min(self._window) > STARTS_NEAR_ZERO", "False"),
    (MONITOR, "min(self._window) > STARTS_NEAR_ZERO", "max(self._window) > STARTS_NEAR_ZERO"),
    (MONITOR, "return self._kl_ema - self._start", "return self._kl_ema"),
    (MONITOR, 'return f"latched: {self._fired_reason}"', 'return ""'),
    (MONITOR, "len(self._window) == MEDIAN_WINDOW", "len(self._window) >= 1"),
    (ROUNDS, "p[0] == attempt and p[1] <= step", "p[1] <= step"),
    (ROUNDS, "median(kls) if kls", "fmean(kls) if kls"),
    (ROUNDS, "(*before, kl) if self.moved else ()", "(*before, kl)"),
    (ROUNDS, "kind != KlKind.REF_TOKEN_MEAN", "False"),
    (ROUNDS, "if first and self.was_zero", "if False"),
    (JUDGE, "if kind is FailureKind.UNCHANGED and pass_index == 0:", "if False:"),
    (JUDGE, "self._failure is not FailureKind.UNCHANGED or self._count.reported", "True"),
    (JUDGE, "self._failure is not FailureKind.UNCHANGED or self._count.reported", "False"),
    (JUDGE, "silent_for > silent.after_seconds", "silent_for >= silent.after_seconds"),
    (JUDGE, "self._failures, self._failure = 0, None\n        if", "if"),
    (JUDGE, ">= self._best.score", "> self._best.score"),
    (JUDGE, "        if self._fire is None:\n", "        if True:\n"),
    (JUDGE, "stop=self.latch is not None", "stop=self._fire is not None"),
    (JUDGE, "halt=self._fire is None and self._halt is not None", "halt=self.latch is not None"),
    (ROUNDS, "fmean(rewards) if rewards else None", "fmean(rewards) if rewards else 0.0"),
    (UNSCORED, "first.truncated > MAX_TRUNCATED", "first.truncated >= MAX_TRUNCATED"),
    (UNSCORED, "first.unanswered > MAX_UNANSWERED", "first.unanswered >= MAX_UNANSWERED"),
    (UNSCORED, "            yield from _unanswered(self.first)\n", "            pass\n"),
    (UNSCORED, "first.timed_out > MAX_TIMED_OUT", "first.timed_out >= MAX_TIMED_OUT"),
    (UNSCORED, "            yield from _timed_out(self.first)\n", "            pass\n"),
    (VIEW, '"unanswered", "timed_out", ', '"unanswered", '),
    (UNSCORED, "            yield from _cut_off(self.first, trainer)\n", "            pass\n"),
    (UNSCORED, "self._measured or unscored is None or", "unscored is None or"),
    (UNSCORED, "unscored is None or unscored < MOST", "unscored is not None and unscored < MOST"),
    (UNSCORED, "unscored < MOST_UNSCORED", "unscored <= MOST_UNSCORED"),
    (UNSCORED, "if self.first is None or best is None:", "if True:"),
    (UNSCORED, "return self._measured and not", "return not"),
    (UNSCORED, "used.max_new_tokens >= limit", "False"),
    (UNSCORED, "used.max_new_tokens >= limit", "used.max_new_tokens > limit"),
    (UNSCORED, "min(_rise(first.truncated, evaluation.truncated), ", "min(1.0, "),
    (UNSCORED, ", _rise(self._at_first, unscored))", ", 1.0)"),
    (UNSCORED, "if small or not", "if not"),
    (UNSCORED, "MORE_CUT_OFF + 2 * _noise(unscored or 0.0, evaluation.items)", "MORE_CUT_OFF"),
    (UNSCORED, "_noise(best.score, best.items) < fall <= more", "_noise(best.score, best.items) < fall"),
    (UNSCORED, "_noise(best.score, best.items) < fall <= more", "fall <= more"),
    (OF_UNSCORED, "comparable or self._awaits_confirmation or self._unconfirmed", "comparable"),
    (JUDGE, "or self._unconfirmed\n        self._unconfirmed = False", "or self._unconfirmed"),
    (OF_UNSCORED, "or self._awaits_confirmation or self._unconfirmed", "or self._awaits_confirmation"),
    (OF_UNSCORED, "or self._awaits_confirmation or self._unconfirmed", "or self._unconfirmed"),
    (UNSCORED, "self._cut_short = self._cut_short or (", "self._cut_short = ("),
    (UNSCORED, "        if self._cut_short:\n", "        if False:\n"),
    (UNSCORED, 'unscored._cut_short = state["cut_short"]', "pass"),
    (UNSCORED, 'unscored._at_first, unscored._measured = state["at_first"], state["measured"]', "pass"),
    (OF_UNSCORED, "window.reward is not None and self._unscored.measured", "window.reward is not None"),
    (OF_UNSCORED, "        if comparable:\n", "        if True:\n"),
    (OF_UNSCORED, "self._evidence() if comparable else {}", "self._evidence()"),
    (JUDGE, 'return self.policy.detector != "calibrated"', "return True"),
    (JUDGE, "not c.advice and c.level is not Level.HEALTHY", "c.level is not Level.HEALTHY"),
    (JUDGE, "rise > limit", "rise >= 0"),
    (JUDGE, "advice=not watched", "advice=False"),
    (JUDGE, "self._kl_not_finite + 1 if", "0 if"),
    (JUDGE, "if left + gone > stale.after_rounds", "if left > stale.after_rounds"),
    (JUDGE, "        if self._announced == 0:\n", "        if True:\n"),
    (JUDGE, "elif report is not None and said != self._sampling:", "elif False:"),
    (JUDGE, "used.source is SamplingSource.DEFAULT", "False"),
    (COUNT, "self.told is None or (attempt, step) > self.told[:2]", "True"),
    (COUNT, "(self.step or 0) if began is None else began", "self.step or 0"),
    (COUNT, "(self.step or 0) if began is None else began", "began or 0"),
    (COUNT, "(attempt != self.attempt and began is None)", "attempt != self.attempt"),
    (COUNT, "self.reported + max(0, (end - since) // self.stride - here)", "self.reported"),
    (COUNT, "max(0, (end - since) // self.stride - here)", "(end - since) // self.stride - here"),
    (COUNT, "self.told[0] >= (self.attempt or 0)", "True"),
    (COUNT, "self.told[0] >= (self.attempt or 0)", "self.told[0] == self.attempt"),
    (COUNT, "end = max(end, last)", "end = last"),
    (COUNT, "if began is not None:", "if False:"),
    (COUNT, "(judged_here or (", "(("),
    (COUNT, "self.judged = max(self.judged or key, key)", "self.judged = key"),
    (COUNT, "(end - since) // self.stride", "(end - since)"),
    (COUNT, "self.longest_span // self.stride", "self.longest_span"),
    (COUNT, "(-self.apart[apart], apart)", "apart"),
    (COUNT, "(-self.apart[apart], apart)", "(-self.apart[apart], -apart)"),
    (COUNT, " or len(self.apart) < MAX_DISTANCES", " or True"),
    (COUNT, "max(self.longest_span, step - self.since)", "self.longest_span"),
    (COUNT, "max(self.longest_span, step - self.since)", "step - self.since"),
    (COUNT, "self.since, self.here = max(self.since, step), left", "pass"),
    (COUNT, "self.since, self.here = self.step, 0", "pass"),
    (COUNT, "self.since = min(self.since, self.judged.step)", "pass"),
    (COUNT, "self.since = min(self.since, step)", "pass"),
    (COUNT, "if self.judged is None or self.judged.attempt != attempt:", "if True:"),
    (COUNT, "max(self.most_reported, in_round)", "in_round"),
    (COUNT, "max(self.most_reported, in_round)", "0"),
    (JUDGE, "            self._unconfirmed = True\n", "            pass\n"),
    (JUDGE, "if confirms:", "if False:"),
    (UNSCORED, "used.max_new_tokens < own", "used.max_new_tokens <= own"),
    (UNSCORED, "Level.UNKNOWN if shorter else", ""),
    (JUDGE, "if self._monitor.rise is None and early is not None:", "if False:"),
    (JUDGE, "if self._monitor.rise is None and early is not None:", "if early is not None:"),
    (JUDGE, "            if self._monitor.rise is None:\n", "            if False:\n"),
    (JUDGE, "        if self._unconfirmed:\n", "        if False:\n"),
    (JUDGE, "self._short_baseline = self._calibrated.passes_made", "pass"),
    (JUDGE, "self._lose_pass(may_pass=kind in MAY_PASS)", "self._lose_pass(may_pass=True)"),
    (JUDGE, "self._lose_pass(may_pass=kind in MAY_PASS)", "self._lose_pass(may_pass=False)"),
    (JUDGE, "            self._lose_pass(may_pass=False)\n", "            self._lose_pass(may_pass=True)\n"),
    (RUN, "self._lost > MOST_RETRIES", "False"),
    (RUN, "last.index + 1 + self._lost", "last.index + 1"),
    (RUN, "self._last, evaluated, 0, False", "self._last, evaluated, self._lost, False"),
    (ENDING, "first < newest and count <= newest - judged.step", "first < newest"),
    (EVALUATION, "trainer if self.temperature is None else None", "trainer"),
    (EVALUATION, "length = min(said, self.max_new_tokens_ceiling)", "length = said"),
    (EVALUATION, "samples=1 if temperature == 0 else self.samples", "samples=self.samples"),
    (EVALUATION, "if name in RESERVED_KWARGS", "if False"),
    (EVALUATION, "[A-Za-z_][A-Za-z0-9_]{0,62}", ".*"),
    (EVALUATION, "size > MAX_KWARGS_BYTES", "False"),
    (EVALUATION, "depth > MAX_KWARGS_DEPTH", "False"),
    (EVALUATION, ", allow_nan=False, ensure_ascii=False", ", ensure_ascii=False"),
    (EVALUATION, "no_distribution or no_length", "no_distribution"),
    (EVALUATION, "if no_distribution or no_length", "if no_length"),
    (EVALUATION, "self.temperature is not None and self.max_new", "self.max_new"),
    (WIRE, "_unused(0, -1)", "_unused(0)"),
    (
        WIRE,
        "Annotated[Finite, Field(ge=0, le=10)] = Field(desc",
        "Annotated[Finite, Field(ge=0)] = Field(desc",
    ),
    (ENDING, "if last.level is None:", "if False:"),
    (ENDING, "last.level == Level.HEALTHY else", "last.level != Level.UNKNOWN else"),
    (ENDING, "if last.announced is None or", "if"),
    (ENDING, "or last.evaluated is None", ""),
    (ENDING, "or last.waiting is None", ""),
    (ENDING, "if left := last.announced - last.evaluated:", "if left := last.failed:"),
    (ENDING, "if last.waiting:", "if last.waiting and left:"),
    (ENDING, "wait_longer if last.waiting else", ""),
    (ENDING, "if not missing and not unwell:", "if not missing or not unwell:"),
    (ENDING, "if last.announced == 0 and not last.refused:\n", "if False:\n"),
    (ENDING, "if last.announced == 0 and not last.refused:", "if last.announced == 0:"),
    (ENDING, "if last.refused:\n        parts", "if False:\n        parts"),
    (BASELINE, "found > 1 + SHOWN * math", "found > 1 + 0 * math"),
    (BASELINE, "self.degrees * self.spread, self", "0.0, self"),
    (BASELINE, "if self.greedy or len(self.passes) == 1", "if len(self.passes) == 1"),
    (FAST, "squares = (bends**2)", "squares = 0 * (bends**2)"),
    (FAST, "- 2 * settled[..., 1:-1] + settled[..., :-2]", "- settled[..., 1:-1]"),
    (FAST, "means.shape[-1] - QUIET", "means.shape[-1]"),
    (FAST, "np.clip(moved, design.dispersion, most)", "np.maximum(moved, design.dispersion)"),
    (FAST, "np.clip(moved, design.dispersion, most)", "np.minimum(moved, most)"),
    (FAST, "math.sqrt(strata.dispersion) * narrower", "narrower"),
    (PARTS, "table) / dispersion", "table)"),
    (PARTS, "if not evidence >= threshold:", "if evidence < threshold:"),
    (PARTS, "1 / LEAST_CHANCE)", "1e9)"),
    (EPROCESS, "(grid, alpha) / wider", "(grid, alpha)"),
    (CALIBRATED, "dispersion=float(fast.dispersion(design, np.array([[means]]))[0, 0])", "dispersion=1.0"),
    (ENDING, "return after > longest", "return after >= longest"),
    (ENDING, "or (steps is not None and after > MOST_AFTER * steps)", ""),
    (ENDING, "after > MOST_AFTER * steps", "after >= MOST_AFTER * steps"),
    (ENDING, "    if _too_many_after(last) and (after", "    if False and (after"),
    (ENDING, "        (_too_many_after(last), _SAVE_THE_END),\n", ""),
    (ENDING, "first = judged.step + 1", "first = judged.step"),
    (JUDGE, "replace(self._guard, min_steps=0)", "replace(self._guard)"),
    (JUDGE, "            self._early.update(step, window.reward, self._last.score)\n", ""),
    (DISAGREEMENT, "fired = min(grown), min(*grown, fooled)", "fired = min(grown), min(grown)"),
    (DISAGREEMENT, "fired = min(grown), min(*grown, fooled)", "fired = min(grown), fooled"),
    (DISAGREEMENT, "(paid.items >= 1.0) * (1 - truth.items)", "(paid.items > 0.0) * (1 - truth.items)"),
    (DISAGREEMENT, "if gained >= self._threshold > fired:", "if False:"),
    (GAP, "    LIKELY = 3.5", "    LIKELY = 6.0"),
    (GAP, "    RISEN = 4.5", "    RISEN = 3.0"),
    (GAP, "z >= self.LIKELY and due == self._most", "False"),
    (GAP, "if newest < (float(low[at]) + level) / 2:", "if False:"),
    (GAP, "(before >= window) & (self.count - before >= window)", "before >= 1"),
    (GAP, "if self.count == self.MOST * per:", "if False:"),
    (GAP, "variance, freedom = map(max,", "variance, freedom = map(min,"),
    (GRADER, "paid is not None or not self._has_grader", "True"),
    (GRADER, "self._has_grader and DISAGREEMENT not in detector.part_names", "False"),
    (GRADER, "self._has_grader or proxy_items is not None", "self._has_grader or bool(proxy_items)"),
    (GRADER, "few = self._graded and", "few ="),
    (GRADER, "self._ungraded <= max(1, FEW_NOT_COUNTED * self._made)", "True"),
    (GRADER, 'advice=action(reading.code, self._config) == "warn"', "advice=False"),
    (NOTICES, '.replace("<", "&lt;")', ""),
    (NOTICES, 'text.replace("&", "&amp;")', "text"),
    (NOTICES, "notice.sentence[:MOST_TEXT]}\\nMore", "notice.sentence}\\nMore"),
    (NOTICES, "(start + SHOWN_FOR)", "start"),
    (APPLIED, ", ensure_ascii=False", ""),
    (
        APPLIED,
        '_HALVES.sub("\\ufffd", json.dumps(value, ensure_ascii=False))',
        "json.dumps(value, ensure_ascii=False)",
    ),
    (APPLIED, "\\u2028\\u2029", ""),
    (APPLIED, "\\x7f-\\x9f", ""),
    (FIGURES, "list(names)[:MAX_FIGURES]", "names"),
    (FIGURES, "return ordered[-MAX_POINTS:]", "return ordered"),
    (FIGURES, " or r is newest", ""),
    (FIGURES, "first[r.attempt, r.step // stride] is r", "r.step % stride == 0"),
    (FIGURES, "if by_step.setdefault(CheckpointKey.of(report), report) is report:", "if True:"),
    (FIGURES, "if figures else None", ""),
    (FIGURES_ON_THE_WIRE, "max_length=MAX_FIGURE_NAME", ""),
    (FIGURES_ON_THE_WIRE, "        max_length=MAX_FIGURES,\n", ""),
    (ROLLOUTS, "ordered[-NEWEST:]", "ordered"),
    (ROLLOUTS, "in shown | newest", "in newest"),
    (
        ROLLOUTS,
        "by_step.setdefault(CheckpointKey.of(report), report)",
        "by_step[CheckpointKey.of(report)] = report",
    ),
    (ROLLOUTS, "if verdict.fire else Moment.HALT", "if verdict.stop else Moment.HALT"),
    (ROLLOUTS, "report.step <= key.step", "report.step < key.step"),
    (ROLLOUTS, "if report.attempt == key.attempt", "if True"),
]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_broken_rule_fails_a_test(tmp_path: Path) -> None:
    assert survivors(MUTANTS, tmp_path) == ""
