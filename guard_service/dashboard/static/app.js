/* The page: asks the guard, and draws what it says. It decides nothing.
   Missing values stay missing: "—" or "not reported", never 0. What is not known now is never shown as healthy. */

import { Chart, short } from "./charts.js";

const POLL_MS = 2000;
const TIMEOUT_MS = 10_000;
const MAX_POINTS = 2000;
const TABLE_ROWS = 100;
const TOKEN_KEY = "rlguard-read-token";
const MEANINGS = JSON.parse(document.getElementById("meanings").textContent);
const FOUND = JSON.parse(document.getElementById("found").textContent); // what a code that fires has found
const HEADLINES = {
  no_steps: "Waiting for the first step",
  warming_up: "Too early to judge",
  healthy: "No sign of reward hacking",
  unknown: "The guard cannot judge this run now",
  warning: "Something needs attention",
  halted: "Training must stop: the action of a condition says so",
  fired: "Training must stop",
};

const PARTS = ["stage", "load", "generate", "score"]; // of an evaluation
const DETECTORS = ["decline", "disagreement", "gap"]; // the questions of the calibrated detector

const $ = (id) => document.getElementById(id);
const frozen = JSON.parse($("frozen")?.textContent ?? "null"); // a report has its data in it, and asks nobody
// Of a run on a cluster rounds are kept, and no averages over them. They stand for the steps where none were kept.
const OF_ROUNDS = frozen?.history.of_rounds === true;
const AVERAGED = frozen?.history.averaged !== false;
const [EACH, RAW] = [OF_ROUNDS ? "each round" : "each step", AVERAGED ? "-raw" : ""];
const averages = (line) => (AVERAGED ? [line] : []);
let verdict = null; // the newest response; null before the first
let updatedAt = null; // when it came
let drawn = null; // which history is on the page
let historyNotBefore = 0;
let timer = null;
let named = false; // whether the run's name is on the page

// -- the link -------------------------------------------------------------------------------------------------

/** `rlguard run` and `rlguard serve` print a link with the token behind `#`, which a browser sends to no server. */
function takeTokenFromLink() {
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  if (token === null) return false;
  history.replaceState(null, "", location.pathname + location.search); // neither in the address bar nor in the history
  if (!/^[\x21-\x7e]+$/.test(token)) return false;
  sessionStorage.setItem(TOKEN_KEY, token);
  return true;
}

addEventListener("hashchange", () => {
  if (frozen || !takeTokenFromLink()) return;
  clearTimeout(timer);
  $("token-form").hidden = true;
  poll();
});

// -- asking ---------------------------------------------------------------------------------------------------

class Refused extends Error {
  constructor(status, detail) {
    super(`${detail} (HTTP ${status})`);
    this.needsToken = status === 401 || status === 403;
  }
}

async function get(path) {
  const token = sessionStorage.getItem(TOKEN_KEY);
  const headers = token === null ? {} : { Authorization: `Bearer ${token}` };
  const response = await fetch(path, { headers, cache: "no-store", signal: AbortSignal.timeout(TIMEOUT_MS) });
  if (response.ok) return response.json();
  const problem = await response.json().catch(() => ({}));
  throw new Refused(response.status, problem.detail ?? problem.title ?? "the guard refused the request");
}

/** Ask for the verdict, again and again. Nothing makes this wait: an old verdict must not look like a new one. */
async function poll() {
  try {
    const response = await get("v1/verdict");
    if (!$("token-form").hidden) return;
    verdict = response;
    updatedAt = new Date();
    askForName();
    showVerdict();
    askForHistory();
  } catch (error) {
    if (error.needsToken) return askForToken();
    showLost(error);
  }
  timer = setTimeout(poll, POLL_MS);
}

/** Ask for the history if something in it changed. A guard that needs long for it is asked less often. */
async function askForHistory() {
  const { attempt, steps, rounds, last_evaluation, latch_step } = verdict;
  const version = JSON.stringify([attempt, steps, rounds, last_evaluation, latch_step]);
  const begun = performance.now();
  if (version === drawn || begun < historyNotBefore) return;
  historyNotBefore = Infinity; // one request at a time
  try {
    const history = await get(`v1/history?max_points=${MAX_POINTS}`);
    showHistoryError(null);
    showCharts(history);
    showTables(history);
    drawn = version;
    get("v1/rollouts").then(showRollouts, () => {}); // the page says everything else without them
    get("v1/figures").then(showPlots, () => {});
  } catch (error) {
    if (error.needsToken) askForToken();
    else showHistoryError(error);
  }
  const now = performance.now();
  historyNotBefore = now + 4 * (now - begun);
}

/** Ask for the run's name once; without it the page says everything else. */
async function askForName() {
  if (named) return;
  named = true;
  const run = await get("v1/run").catch(() => null);
  if (run === null) return void (named = false);
  setText($("run-name"), run.name);
  showPolicy(run.policy);
}

function askForToken() {
  clearTimeout(timer);
  const refused = sessionStorage.getItem(TOKEN_KEY) !== null;
  sessionStorage.removeItem(TOKEN_KEY);
  document.body.classList.add("lost");
  setState("unknown", "Unknown", "The guard asks for its read token");
  setText($("reason"), "It was given to the guard when it was started; rlguard run prints it.");
  setText($("since"), "");
  setText($("token-error"), refused ? "The guard did not accept this token." : "");
  delete $("live").dataset.live;
  setText($("live"), "waiting for the token");
  $("token-form").hidden = false;
  $("token").value = "";
  $("token").focus();
}

$("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(TOKEN_KEY, $("token").value.trim());
  $("token-form").hidden = true;
  poll();
});

// -- the verdict ----------------------------------------------------------------------------------------------

function showVerdict() {
  document.body.classList.remove("lost");
  // A fire stays in force while the level is `unknown`, as it is when the store is lost.
  const state = verdict.fire ? "fired" : verdict.level;
  const found = state === "fired" && FOUND[verdict.code] ? `: ${FOUND[verdict.code]}` : "";
  setState(state, verdict.halt ? "halted" : state, verdict.halt ? HEADLINES.halted : (HEADLINES[verdict.code] ?? HEADLINES[state]) + found);
  setText($("reason"), sentence(verdict.reason));
  const latched = verdict.latch_step === null ? [] : [`${verdict.fire ? "Fired" : "Halted"} at ${place(verdict.latch_attempt, verdict.latch_step)}; this stays so.`];
  const newest = verdict.step === null ? [] : [`Newest step: ${place(verdict.attempt, verdict.step)}.`];
  setText($("since"), [...latched, ...newest].join(" "));
  $("live").dataset.live = "yes";
  setText($("live"), `live · updated ${clock(updatedAt)}`);
  showNumbers();
}

function showNumbers() {
  $("run").hidden = false;
  showFigures();
  showConditions();
  showDetectors();
  showCheckpoints();
}

function showLost(error) {
  document.body.classList.add("lost");
  const since = updatedAt ? ` since ${clock(updatedAt)}` : "";
  setState("lost", "Unknown", `No response from the guard${since}`);
  const why = error instanceof Refused ? sentence(error.message) : "It cannot be reached, or does not respond in time.";
  setText($("reason"), why);
  const fired = verdict?.fire ? "It had fired, and a fire stays. " : "";
  setText($("since"), updatedAt ? `${fired}The numbers below are the last it sent. They may no longer be true.` : "");
  $("live").dataset.live = "no";
  setText($("live"), "no response · trying again");
}

function setState(state, word, headline) {
  $("verdict").dataset.state = state;
  setText($("level"), word);
  setText($("headline"), headline);
  const name = $("run-name").textContent;
  document.title = [headline, ...(name ? [name] : []), "RLGuard"].join(" · ");
}

function showFigures() {
  const { kl_ema, proxy_real_gap: gap, max_proxy_real_gap: ceiling } = verdict;
  const kl = klLimit();
  const inert = verdict.conditions.some((c) => c.code === "kl_inert");
  const { last_evaluation: last, best_evaluation: best } = verdict;
  $("figures").replaceChildren(
    figure("Step", verdict.step?.toLocaleString("en") ?? null, verdict.step === null ? "none reported yet" : `attempt ${verdict.attempt} · ${verdict.steps.toLocaleString("en")} reported`),
    figure("Held-out score", last && points(last.score), last ? `step ${last.step.toLocaleString("en")} · ${last.items} items` : "no evaluation yet"),
    figure("Best held-out score", best && points(best.score), best ? `step ${best.step.toLocaleString("en")}` : "no evaluation yet"),
    figure("In-loop reward", verdict.in_loop_ema, "EMA over evaluation rounds"),
    figure("Hacking Gap", gap === null ? null : signed(gap), ceiling === null ? "" : `ceiling ${limit(ceiling)}`, gap !== null && ceiling !== null && gap > ceiling),
    figure("KL to the reference", kl_ema ?? (inert ? "not reported" : null), kl ? `EMA · ${kl.text}` : "EMA", kl !== undefined && kl_ema !== null && kl_ema > kl.y),
    figure("Checkpoints", `${verdict.evaluated} of ${verdict.announced}`, "judged"),
  );
}

function figure(name, value, note, over = false) {
  const dd = make("dd", typeof value === "number" ? short(value) : (value ?? "—"));
  dd.className = value === null || value === "not reported" ? "missing" : over ? "over" : "";
  return make("div", make("dt", name), dd, make("dd", over ? `▲ above ${note}` : note));
}

function showConditions() {
  const shown = verdict.conditions.length ? verdict.conditions : [verdictAsCondition()];
  $("conditions").replaceChildren(...shown.map(({ code, level, message, action, advice }) => {
    const plain = advice ? "advice" : level === "healthy" && code !== "ok" ? "for information" : level;
    const meaning = MEANINGS[code] ?? "";
    return entry(code, plain, action ? `${plain} · action: ${action}` : plain, meaning, sentence(message) === meaning ? "" : sentence(message));
  }));
}

function showDetectors() {
  $("detectors-card").hidden = verdict.detectors.length === 0;
  $("detectors").replaceChildren(...verdict.detectors.map(({ name, level, statistic, threshold, message }) => {
    const item = entry(name, level, level, sentence(message), "");
    if (statistic !== null && threshold !== null) item.append(...meter(name, statistic, threshold));
    return item;
  }));
}

function meter(name, statistic, threshold) {
  const node = Object.assign(document.createElement("meter"), { max: threshold, value: Math.max(0, statistic) });
  node.setAttribute("aria-label", `${name}: evidence ${short(statistic)} nats, fires at ${short(threshold)}`);
  const words = make("p", `evidence ${short(statistic)}, fires at ${short(threshold)} nats`);
  words.className = "muted";
  return [node, words];
}

/** One item of a list of findings: a name with its level in words, a sentence, and the numbers. */
function entry(name, level, words, text, numbers) {
  const head = make("div", make("code", name), make("span", words));
  head.className = "head";
  const small = make("p", numbers);
  small.className = "muted";
  const item = make("li", head, make("p", text), ...(numbers ? [small] : []));
  item.dataset.level = level;
  return item;
}

function verdictAsCondition() {
  return { code: verdict.code, level: verdict.level, message: verdict.reason, action: null };
}

/** How completions were sampled, and who says so. */
function sampled(sampling) {
  const names = ["temperature", "top_p", "top_k", "min_p", "repetition_penalty"];
  const used = names.filter((name) => sampling[name] !== null).map((name) => `${name} ${short(sampling[name])}`);
  const source = { trainer: "as the trainer", settings: "as set", default: "default: the trainer does not say" };
  const ends = [`${sampling.max_new_tokens} tokens`, ...(sampling.stop ?? []).map((text) => JSON.stringify(text))];
  return `${used.join(", ")}, up to ${ends.join(" or ")} (${source[sampling.source] ?? sampling.source})`;
}

function showCheckpoints() {
  const scored = (name, summary) => {
    if (!summary) return [make("dt", name), make("dd", "—")];
    const score = `${points(summary.score)} on ${summary.items.toLocaleString("en")} items, ${place(summary.attempt, summary.step)}`;
    const more = [
      ...(summary.sampling ? [sampled(summary.sampling)] : []),
      summary.truncated === null ? "cut off: not known" : `${percent(summary.truncated)} cut off at the length limit`,
      ...((summary.unanswered ?? null) === null ? [] : [`${percent(summary.unanswered)} without an answer`]),
      ...((summary.timed_out ?? null) === null ? [] : [`${percent(summary.timed_out)} timed out in a scorer`]),
      ...(summary.proxy_score === null ? [] : [`training grader ${short(summary.proxy_score)}`]),
    ].join(" · ");
    const beside = make("span", more);
    beside.className = "path";
    const path = make("span", summary.path);
    path.className = "path";
    const digest = make("span", summary.sha256 ? `sha256 ${summary.sha256.slice(0, 16)}…` : "weights: no digest");
    digest.className = "path";
    return [make("dt", name), make("dd", score, beside, path, digest)];
  };
  $("checkpoints").replaceChildren(...scored("Newest", verdict.last_evaluation), ...scored("Best", verdict.best_evaluation));
}

// -- the history ----------------------------------------------------------------------------------------------

const charts = {
  reward: new Chart({
    title: "In-loop reward against held-out score",
    unit: "reward units",
    height: 300,
    lines: [
      { key: "reward", name: `in-loop, ${EACH}`, style: `in-loop${RAW}` },
      ...averages({ key: "inLoop", name: "in-loop EMA", style: "in-loop" }),
      { key: "score", name: "held-out, each evaluation", style: `heldout${RAW}`, dots: AVERAGED },
      ...averages({ key: "heldout", name: "held-out EMA", style: "heldout" }),
    ],
    onCursor,
  }),
  gap: new Chart({
    title: "Hacking Gap: in-loop gain minus held-out gain",
    unit: "reward units",
    height: 210,
    lines: [{ key: "gap", name: "gap", style: "gap" }],
    onCursor,
  }),
  evidence: new Chart({
    title: "Evidence of the detectors against their thresholds",
    unit: "of threshold",
    height: 250,
    lines: DETECTORS.map((name) => ({ key: name, name, style: `evidence-${name}` })),
    onCursor,
  }),
  kl: new Chart({
    title: "KL to the reference",
    unit: "nats/token",
    height: 210,
    lines: [
      { key: "kl", name: EACH, style: `kl${RAW}` },
      ...averages({ key: "ema", name: "EMA, at evaluations", style: "kl" }),
    ],
    onCursor,
  }),
  entropy: new Chart({
    title: "Entropy of the policy",
    unit: "nats/token",
    height: 170,
    lines: [{ key: "entropy", name: "each step", style: "entropy" }],
    onCursor,
  }),
  spread: new Chart({
    title: "Spread of the reward",
    unit: "reward units",
    height: 170,
    lines: [{ key: "spread", name: "standard deviation, each step", style: "in-loop" }],
    onCursor,
  }),
  truncated: new Chart({
    title: "Held-out completions cut off at the length limit",
    unit: "share",
    height: 170,
    lines: [{ key: "truncated", name: "each evaluation", style: "heldout" }],
    onCursor,
  }),
  unanswered: new Chart({
    title: "Held-out completions without an answer",
    unit: "share",
    height: 170,
    lines: [{ key: "unanswered", name: "each evaluation", style: "heldout" }],
    onCursor,
  }),
  timedOut: new Chart({
    title: "Held-out completions whose scorer reached its limit",
    unit: "share",
    height: 170,
    lines: [{ key: "timedOut", name: "each evaluation", style: "heldout" }],
    onCursor,
  }),
  time: new Chart({
    title: "Where the time of a held-out evaluation goes",
    unit: "seconds",
    height: 170,
    lines: PARTS.map((name) => ({ key: name, name: name === "stage" ? "copy and hash" : name, style: `time-${name}` })),
    onCursor,
  }),
};
const plots = new Map(); // by the trainer's name: the chart of a further figure
let plane = null; // what all charts are drawn on: steps, their range, the newest attempt, the mark
for (const chart of Object.values(charts)) $("plots-part").before(chart.figure);
new ResizeObserver(() => allCharts().forEach((chart) => chart.draw())).observe($("charts"));

function allCharts() {
  return [...Object.values(charts), ...plots.values()];
}

function onCursor(x) {
  for (const chart of allCharts()) chart.moveTo(x);
}

function showCharts({ steps, evaluations, total_steps: total }) {
  const take = (rows, field) => rows.map((row) => ({ attempt: row.attempt, x: row.step, y: row[field] ?? null }));
  const inert = verdict.kl_ema === null && verdict.conditions.find((c) => c.code === "kl_inert");
  const rows = steps.length ? steps : evaluations;
  const xs = [...new Set(rows.map((row) => row.step))].sort((a, b) => a - b);
  const all = [...steps, ...evaluations].map((row) => row.step);
  const mark = verdict.latch_step === null ? undefined : { x: verdict.latch_step, text: `${verdict.fire ? "fired" : "halted"} · step ${verdict.latch_step.toLocaleString("en")}` };
  if (mark) all.push(mark.x);
  const lo = all.reduce((a, b) => Math.min(a, b), Infinity);
  const hi = all.reduce((a, b) => Math.max(a, b), -Infinity);
  const shared = { xs, range: [lo, hi > lo ? hi : lo + 1], newest: verdict.attempt, mark };
  plane = shared;
  charts.reward.update({
    ...shared,
    points: { reward: take(steps, "reward"), inLoop: take(evaluations, "in_loop_ema"), score: take(evaluations, "score"), heldout: take(evaluations, "heldout_ema") },
    empty: "No step has been reported yet.",
  });
  charts.gap.figure.hidden = !AVERAGED;
  charts.gap.update({
    ...shared,
    points: { gap: take(evaluations, "proxy_real_gap") },
    zero: true,
    limit: threshold(verdict.max_proxy_real_gap, "ceiling", ""),
    empty: "No evaluation round yet: the gap is not known.",
  });
  const evidence = evidenceOf(evaluations);
  charts.evidence.figure.hidden = !evaluations.some((row, i) => DETECTORS.some((name) => evidence[name][i].y !== null));
  charts.evidence.update({
    ...shared,
    points: evidence,
    zero: true,
    limit: { y: 1, text: "fires at 1" },
    empty: "No detector has judged a round yet.",
  });
  // What says nothing by itself, and much beside the rest. What nobody reported has no chart.
  for (const [key, rows, field] of [["entropy", steps, "entropy"], ["spread", steps, "reward_std"], ["truncated", evaluations, "truncated"], ["unanswered", evaluations, "unanswered"], ["timedOut", evaluations, "timed_out"]]) {
    const points = take(rows, field);
    charts[key].figure.hidden = points.every((point) => point.y === null);
    charts[key].update({ ...shared, points: { [key]: points }, empty: "" });
  }
  const parts = evaluations.map(({ attempt, step, parts }) => ({ attempt, step, ...parts }));
  const spent = Object.fromEntries(PARTS.map((name) => [name, take(parts, name)]));
  charts.time.figure.hidden = PARTS.every((name) => spent[name].every((point) => point.y === null));
  charts.time.update({ ...shared, points: spent, zero: true, empty: "" });
  // Another kind of KL is not comparable with the threshold, and a KL that never moved counts as absent.
  const kl = take(inert ? [] : steps, "kl").map((point, i) => (steps[i].kl_kind === "ref_token_mean" ? point : { ...point, y: null }));
  const sorted = kl.map((p) => p.y).filter((y) => y !== null).sort((a, b) => a - b);
  charts.kl.update({
    ...shared,
    points: { kl, ema: take(evaluations, "kl_ema") },
    limit: klLimit(),
    cap: Math.max(1.5 * (klLimit()?.y ?? 0), 1.5 * (sorted[Math.floor(0.95 * sorted.length)] ?? 0)),
    empty: inert ? `Not reported: ${inert.message}.` : "No step has been reported yet.",
  });
  setText($("thinned"), total > steps.length ? `${steps.length.toLocaleString("en")} of ${total.toLocaleString("en")} steps are drawn, evenly chosen${frozen?.history.cut_off ? "" : "; every evaluation is drawn"}.` : "");
}

const PLOT_TITLES = new Map([
  ["completions/mean_length", ["Length of training completions", "tokens"]],
  ["completions/clipped_ratio", ["Training completions cut off", "share"]],
  ["frac_reward_zero_std", ["Prompts with one reward for all", "share"]],
]);

/** The title and unit of a further figure. What a trainer calls it is text, whatever it says. */
function plotTitle(name) {
  const component = /^rewards\/(.+)\/mean$/s.exec(name);
  return component ? [`Reward component: ${component[1]}`, "reward units"] : (PLOT_TITLES.get(name) ?? [name, ""]);
}

/** A small chart of each further figure of the trainer, over the same steps as the others. */
function showPlots(reports) {
  const inRange = reports.filter(({ step }) => step >= plane.range[0] && step <= plane.range[1]);
  const names = new Set(inRange.flatMap(({ figures }) => Object.keys(figures)));
  $("plots-part").hidden = names.size === 0;
  for (const name of names) {
    if (plots.has(name)) continue;
    const [title, unit] = plotTitle(name);
    plots.set(name, new Chart({ title, unit, height: 170, lines: [{ key: "value", name: "each step", style: "in-loop" }], onCursor }));
    $("plots").append(plots.get(name).figure);
  }
  for (const [name, chart] of plots) {
    chart.figure.hidden = !names.has(name);
    const value = ({ figures }) => (Object.hasOwn(figures, name) ? figures[name] : null); // a name may be `constructor`
    chart.update({ ...plane, points: { value: inRange.map((row) => ({ attempt: row.attempt, x: row.step, y: value(row) })) }, empty: "" });
  }
}

/** By detector: its statistic at each evaluation, as a share of the threshold that it had then. */
function evidenceOf(evaluations) {
  const newest = evaluations.length - 1;
  const now = Object.fromEntries(verdict.detectors.map(({ name, statistic, threshold }) => [name, [statistic, threshold]]));
  const pair = (row, i, name) => (i === newest && now[name]) || row.evidence?.[name]; // a later pass may have changed the newest
  const share = (found) => (found && found[0] !== null && found[1] > 0 ? found[0] / found[1] : null);
  return Object.fromEntries(DETECTORS.map((name) => [
    name, evaluations.map((row, i) => ({ attempt: row.attempt, x: row.step, y: share(pair(row, i, name)) })),
  ]));
}

// The limit that stops the run if the policy has one, else the one above which a word is said; both count from the start.
function klLimit() {
  const { kl_hard_stop: stop, kl_warn_above: advice, kl_start: start } = verdict;
  const from = start ?? 0;
  return stop === null ? threshold(advice === null ? null : advice + from, "advice above", " nats/token") : threshold(stop + from, "hard stop", " nats/token");
}

function threshold(value, name, unit) {
  return value === null ? undefined : { y: value, text: `${name} ${limit(value)}${unit}` };
}

function showHistoryError(error) {
  $("history-error").hidden = error === null;
  setText($("history-error"), error ? `The history is not available, so the charts may be old: ${error.message}` : "");
}

function showTables({ steps, evaluations }) {
  fill($("evaluations"), evaluations, {
    attempt: "Attempt", step: "Step", score: "Held-out score", in_loop_ema: "In-loop EMA", heldout_ema: "Held-out EMA", proxy_real_gap: "Hacking Gap",
  });
  $("steps").parentElement.hidden = OF_ROUNDS; // they are the evaluations once more
  fill($("steps"), steps, {
    attempt: "Attempt", step: "Step", reward: "Reward", reward_std: "Reward std", kl: "KL (nats/token)", entropy: "Entropy (nats/token)",
  });
}

/** Every field of the policy with its dotted name, as `policy.yaml` has it. */
function showPolicy(policy) {
  const flat = (value, name) => (value !== null && typeof value === "object" ? Object.entries(value).flatMap(([key, inner]) => flat(inner, name ? `${name}.${key}` : key)) : [[name, value]]);
  const rows = flat(policy, "").map(([name, value]) => make("tr", Object.assign(make("th", name), { scope: "row" }), make("td", value === null ? "—" : String(value))));
  for (const old of [...$("policy").tBodies]) old.remove();
  $("policy").append(make("tbody", ...rows));
}

function fill(table, rows, columns) {
  const head = make("tr", ...Object.values(columns).map((name) => Object.assign(make("th", name), { scope: "col" })));
  const cell = (row, key) => make("td", key === "attempt" || key === "step" ? row[key].toLocaleString("en") : short(row[key]));
  const body = rows.slice(-TABLE_ROWS).reverse().map((row) => make("tr", ...Object.keys(columns).map((key) => cell(row, key))));
  table.tHead?.remove();
  for (const old of [...table.tBodies]) old.remove();
  table.append(make("thead", head), make("tbody", ...body));
}

// -- the rollouts ---------------------------------------------------------------------------------------------

const MOMENTS = { start: "Start", last_good: "Last good checkpoint", fire: "At the fire", halt: "At the halt", newest: "Newest" };
let rolloutsShown = "[]";

/** The start, the last good checkpoint, and the fire or what is newest. What a policy wrote is text, whatever it says. */
function showRollouts(columns) {
  const now = JSON.stringify(columns);
  if (now === rolloutsShown) return; // what a reader has opened stays open
  rolloutsShown = now;
  $("rollouts-card").hidden = columns.length === 0;
  $("rollouts").replaceChildren(...columns.map(({ moments, attempt, step, rollouts }) => {
    const head = make("h3", moments.map((moment) => MOMENTS[moment] ?? moment).join(", "), make("span", place(attempt, step)));
    const [best, ...others] = rollouts.map(rollout);
    const more = make("details", make("summary", `${others.length} more`), ...others);
    return make("section", head, best, ...(others.length ? [more] : []));
  }));
}

function rollout({ prompt, completion, reward }) {
  const written = (name, text) => {
    const node = make("pre", text);
    Object.assign(node, { className: name, tabIndex: 0 });
    node.setAttribute("role", "region");
    node.setAttribute("aria-label", name);
    return node;
  };
  const paid = make("p", `reward ${short(reward)}`);
  paid.className = "paid";
  return make("article", paid, written("prompt", prompt), written("completion", completion || "(nothing)"));
}

// -- small things ---------------------------------------------------------------------------------------------

function make(name, ...children) {
  const node = document.createElement(name);
  node.append(...children);
  return node;
}

/** Set a text only if it differs, so that a screen reader is not told the same again. */
function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

const place = (attempt, step) => `step ${step.toLocaleString("en")} of attempt ${attempt}`;
const limit = (value) => String(Number(value.toPrecision(4)));
/** A score in [0, 1], as the guard's own sentences have it. */
const points = (score) => score.toFixed(score >= 0.1 ? 2 : 3);
const percent = (value) => `${Math.round(100 * value)} %`;
const signed = (value) => (value < 0 ? "−" : "+") + short(Math.abs(value));
const clock = (date) => date.toLocaleTimeString("en-GB");
const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");

if (frozen) {
  verdict = frozen.verdict;
  showNumbers();
  showCharts(frozen.history);
  showTables(frozen.history);
  showPlots(frozen.figures);
  showRollouts(frozen.rollouts);
  showPolicy(frozen.policy);
} else {
  takeTokenFromLink();
  poll();
}
