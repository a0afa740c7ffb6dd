/* The page of all jobs: asks the operator, and shows what it says. It decides nothing.
   Every text comes from a job's status, which may hold anything: it is set as text, never as markup.
   Missing values stay missing: "—", never 0. */

const POLL_MS = 5000;
const TIMEOUT_MS = 15_000;
const QUIET_SECONDS = 120; // the operator's watch shows something each minute
const TOKEN_KEY = "rlguard-page-token";
const OVER = new Set(["Stopped", "Succeeded", "Failed", "Disrupted"]);
const $ = (id) => document.getElementById(id);

const shown = new Map(); // uid -> {node, job, text: the job as JSON}
let skew = 0; // the operator's clock minus this one, ms
let timer = null;

// -- the link -------------------------------------------------------------------------------------------------

/** A link may carry the token behind `#`, which a browser sends to no server. */
function takeTokenFromLink() {
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  if (token === null) return false;
  history.replaceState(null, "", location.pathname + location.search); // neither in the address bar nor in the history
  if (!/^[\x21-\x7e]+$/.test(token)) return false;
  sessionStorage.setItem(TOKEN_KEY, token);
  return true;
}

addEventListener("hashchange", () => {
  if (takeTokenFromLink()) poll();
  else openFromLink();
});

/** `#namespace/name` opens that job. */
function openFromLink() {
  const place = decodeURIComponent(location.hash.slice(1));
  const one = [...shown.values()].find(({ job }) => `${job.namespace}/${job.name}` === place);
  if (!one) return;
  one.node.querySelector("details").open = true;
  one.node.scrollIntoView({ block: "center" });
}

// -- asking ---------------------------------------------------------------------------------------------------

class Refused extends Error {
  constructor(status, detail) {
    super(`${detail} (HTTP ${status})`);
    this.needsToken = status === 401;
  }
}

async function get(path) {
  const headers = { Authorization: `Bearer ${sessionStorage.getItem(TOKEN_KEY) ?? ""}` };
  const response = await fetch(path, { headers, cache: "no-store", signal: AbortSignal.timeout(TIMEOUT_MS) });
  const body = await response.json().catch(() => ({}));
  if (!response.ok) throw new Refused(response.status, body.detail ?? "the operator refused the request");
  const date = Date.parse(response.headers.get("Date") ?? "");
  if (!Number.isNaN(date)) skew = date - Date.now();
  return body;
}

async function poll() {
  clearTimeout(timer);
  try {
    if (!document.hidden || shown.size === 0) show(await get("v1/jobs"));
  } catch (error) {
    if (error.needsToken) return askForToken();
    showLost(error);
  }
  timer = setTimeout(poll, POLL_MS);
}

document.addEventListener("visibilitychange", () => {
  if (!document.hidden && $("token-form").hidden) poll();
});

function askForToken() {
  const refused = sessionStorage.getItem(TOKEN_KEY) !== null;
  sessionStorage.removeItem(TOKEN_KEY);
  setText($("token-error"), refused ? "The operator did not accept this token." : "");
  delete $("live").dataset.live;
  setText($("live"), "waiting for the token");
  $("page").hidden = true;
  $("token-form").hidden = false;
  $("token").value = "";
  $("token").focus();
}

$("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(TOKEN_KEY, $("token").value.trim());
  poll();
});

function showLost(error) {
  $("live").dataset.live = "no";
  setText($("live"), "no response · trying again");
  const why = error instanceof Refused ? error.message : "The operator cannot be reached, or does not respond in time.";
  note(`${why}${shown.size ? " What is below is the last that it sent, and may no longer be true." : ""}`);
  $("jobs").classList.add("lost");
}

function note(text) {
  setText($("notice"), text);
  $("notice").hidden = text === "";
}

// -- the jobs -------------------------------------------------------------------------------------------------

function show({ jobs, unread, quiet_seconds: quiet }) {
  $("token-form").hidden = true;
  $("page").hidden = false;
  $("jobs").classList.remove("lost");
  $("live").dataset.live = "yes";
  setText($("live"), `live · updated ${new Date().toLocaleTimeString("en-GB")}`);
  note([
    ...(unread.length ? [`Jobs are missing here: the operator cannot read ${unread.join(", ") || "the namespaces"} yet.`] : []),
    ...(quiet > QUIET_SECONDS ? [`The API server has shown the operator nothing for ${span(quiet)}: this may no longer be true.`] : []),
  ].join(" "));
  const first = shown.size === 0;
  const gone = new Set(shown.keys());
  for (const job of jobs) {
    gone.delete(job.uid);
    update(job);
  }
  for (const uid of gone) {
    shown.get(uid).node.remove();
    shown.delete(uid);
  }
  order();
  options("namespace", jobs.map((job) => job.namespace));
  options("phase", jobs.map((job) => job.phase));
  options("state", jobs.map((job) => job.state));
  if (first) readFilter();
  filter();
  if (first) openFromLink();
}

function update(job) {
  const text = JSON.stringify(job);
  const known = shown.get(job.uid);
  if (known?.text === text) return showAges(known);
  const node = known?.node ?? made(job.uid);
  const one = { node, job, text };
  shown.set(job.uid, one);
  node.dataset.state = job.state;
  const place = `#${job.namespace}/${job.name}`;
  const part = (name) => node.querySelector(`.${name}`);
  setText(part("name"), job.name);
  part("name").href = place;
  setText(part("namespace"), job.namespace);
  setText(part("phase"), job.phase);
  setText(part("state"), job.state);
  setText(part("verdict"), job.verdict);
  part("evidence").hidden = job.evidence === null;
  part("evidence").href = place;
  spark(part("spark"), job);
  showAges(one);
  if (node.querySelector("details").open) showMore(job.uid);
}

function made(uid) {
  const node = $("job").content.firstElementChild.cloneNode(true);
  node.querySelector("details").addEventListener("toggle", (event) => event.target.open && showMore(uid));
  return node;
}

function showAges({ node, job }) {
  const now = Date.now() + skew;
  const ago = (time) => (time ? span((now - Date.parse(time)) / 1000) : "—");
  const beat = OVER.has(job.phase) || !job.heartbeat ? "" : ` · reported ${ago(job.heartbeat)} ago`;
  setText(node.querySelector(".age"), `${ago(job.created)} old${beat}`);
}

/** What needs a look comes first: being stopped, fired or halted, a warning, not known; then the newest. */
function order() {
  const rank = ({ phase, state }) =>
    phase === "Stopping" ? 0 : state === "fired" || state === "halted" ? 1 : state === "warning" ? 2 : state === "unknown" && !OVER.has(phase) ? 3 : 4;
  const sorted = [...shown.values()].sort(
    ({ job: a }, { job: b }) => rank(a) - rank(b) || String(b.created).localeCompare(String(a.created)) || a.name.localeCompare(b.name),
  );
  let at = $("jobs").firstElementChild;
  for (const { node } of sorted) {
    if (at === node) at = at.nextElementSibling;
    else $("jobs").insertBefore(node, at);
  }
}

function spark(svg, { trend, reward, heldout, step }) {
  const ys = trend.flat();
  const lo = Math.min(...ys);
  const size = Math.max(...ys) - lo || 1;
  const line = (series) => {
    const place = (values, n) => `${(2 + (116 * n) / Math.max(1, trend.length - 1)).toFixed(1)} ${(29 - (26 * (values[series] - lo)) / size).toFixed(1)}`;
    const places = trend.map(place);
    // One point becomes a line of length 0, which a round cap draws as a dot.
    return places.length ? `M${places[0]}L${(places.length > 1 ? places.slice(1) : places).join("L")}` : "";
  };
  svg.querySelector(".in-loop").setAttribute("d", line(0));
  svg.querySelector(".heldout").setAttribute("d", line(1));
  const said = trend.length
    ? `in-loop reward from ${trend[0][0]} to ${trend.at(-1)[0]}, held-out score from ${trend[0][1]} to ${trend.at(-1)[1]}`
    : `no evaluation round yet`;
  svg.setAttribute("aria-label", `${said}; now ${short(reward)} and ${short(heldout)} at step ${step ?? "—"}`);
}

// -- filtering ------------------------------------------------------------------------------------------------

const fields = $("filter").elements;

function options(name, values) {
  const counts = new Map();
  for (const value of values) counts.set(value, (counts.get(value) ?? 0) + 1);
  const wanted = [...counts].sort(([a], [b]) => a.localeCompare(b));
  const chosen = fields[name].value;
  if (chosen && !counts.has(chosen)) wanted.push([chosen, 0]); // a choice stays although its last job is gone
  fields[name].replaceChildren(fields[name].options[0], ...wanted.map(([value, count]) => new Option(`${value} (${count})`, value)));
  fields[name].value = chosen;
}

/** A filter is in the address, so that it can be sent to others. */
function readFilter() {
  const given = new URLSearchParams(location.search);
  for (const name of ["q", "namespace", "phase", "state"]) {
    const value = given.get(name) ?? "";
    if (value && name !== "q" && ![...fields[name].options].some((option) => option.value === value)) fields[name].add(new Option(`${value} (0)`, value));
    fields[name].value = value;
  }
}

function filter() {
  const [q, namespace, phase, state] = ["q", "namespace", "phase", "state"].map((name) => fields[name].value);
  const words = q.toLowerCase().split(/\s+/).filter(Boolean);
  let count = 0;
  for (const { node, job } of shown.values()) {
    const text = `${job.namespace}/${job.name} ${job.verdict}`.toLowerCase();
    const fits =
      (!namespace || job.namespace === namespace) && (!phase || job.phase === phase) && (!state || job.state === state) && words.every((word) => text.includes(word));
    if (node.hidden === fits) node.hidden = !fits;
    count += fits;
  }
  setText($("count"), `${count.toLocaleString("en")} of ${shown.size.toLocaleString("en")} jobs`);
  $("none").hidden = count > 0;
}

$("filter").addEventListener("input", () => {
  const given = new URLSearchParams([...new FormData($("filter"))].filter(([, value]) => value));
  history.replaceState(null, "", `${location.pathname}${given.size ? `?${given}` : ""}`);
  filter();
});
$("filter").addEventListener("submit", (event) => event.preventDefault());

// -- one job --------------------------------------------------------------------------------------------------

async function showMore(uid) {
  const { node, job } = shown.get(uid);
  const more = node.querySelector(".more");
  try {
    const known = await get(`v1/jobs/${encodeURIComponent(job.namespace)}/${encodeURIComponent(job.name)}`);
    more.replaceChildren(pairs(known), conditions(known.conditions), commands(known));
  } catch (error) {
    if (error.needsToken) return askForToken();
    more.replaceChildren(make("p", error instanceof Refused ? error.message : "The operator does not respond."));
  }
}

function pairs({ step, reward, heldout, gap, kl, checkpoints, best }) {
  const counts = Object.entries(checkpoints).filter(([, count]) => count !== null).map(([name, count]) => `${count.toLocaleString("en")} ${name}`);
  const list = document.createElement("dl");
  list.className = "pairs";
  for (const [name, value] of [
    ["Step", step?.toLocaleString("en") ?? "—"],
    ["In-loop reward", short(reward)],
    ["Held-out score", short(heldout)],
    ["Hacking Gap", short(gap)],
    ["KL to the reference", short(kl)],
    ["Checkpoints", counts.join(", ") || "—"],
    ["Last good checkpoint", best ? `step ${best.step}, held-out ${short(best.score)}: ${best.path}` : "—"],
  ]) list.append(make("dt", name), make("dd", value));
  return list;
}

function conditions(all) {
  const list = document.createElement("ul");
  list.className = "conditions";
  for (const { type, status, reason, message } of all) {
    list.append(make("li", make("code", `${type}=${status}`), ` ${reason}: `, message));
  }
  return list;
}

function commands({ namespace, name, evidence }) {
  const lines = [`rlguard status ${name} -n ${namespace}`, ...(evidence ? [`kubectl -n ${namespace} get configmap ${evidence} -o yaml`] : [])];
  const box = make("div", make("p", evidence ? "The evidence is in a ConfigMap:" : "There is no evidence yet."));
  box.append(make("pre", lines.join("\n")));
  return box;
}

// -- small things ---------------------------------------------------------------------------------------------

/** An element with children; a string becomes text, whatever it holds. */
function make(name, ...children) {
  const node = document.createElement(name);
  node.append(...children);
  return node;
}

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function short(value) {
  return typeof value === "number" ? String(Number(value.toPrecision(3))) : "—";
}

function span(seconds) {
  for (const [size, unit] of [[86_400, "d"], [3600, "h"], [60, "min"]]) {
    if (seconds >= size) return `${Math.floor(seconds / size)} ${unit}`;
  }
  return `${Math.max(0, Math.floor(seconds))} s`;
}

takeTokenFromLink();
poll();
