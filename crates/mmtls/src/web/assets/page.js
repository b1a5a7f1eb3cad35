// The page: asks the run what it does, about once a second, and shows it.

import { Lines, Times, within } from "./plots.js";
import { Table, age, bar, bytes, clock, count, duration, element, opener, prefixed } from "./tables.js";

const OUTCOMES = [
  ["decrypted", "decrypted", undefined, "records were opened"],
  ["missing_key", "missing key", [6, 4], "records passed, and no keys came"],
  ["exempt", "exempt", [2, 3], "the endpoint refused to share its keys, or the name is exempt"],
  ["failed", "failed", [10, 3, 2, 3], "it could not be followed, or a record did not open"],
  ["nothing_opened", "nothing to open", [1, 4], "there was nothing to decrypt"],
];
const SAMPLES = 600;
const LIMIT = 200;
const TOKEN = "mmtls-token";

const $ = (id) => document.getElementById(id);
let token = location.hash.slice(1) || sessionStorage.getItem(TOKEN) || "";
if (location.hash) {
  sessionStorage.setItem(TOKEN, token);
  // Not to be seen in the address any more, nor kept in the browser's history.
  history.replaceState(null, "", location.pathname);
}

class Refused extends Error {}

/** An answer. */
async function ask(what) {
  const headers = { Authorization: `Bearer ${token}` };
  const answer = await fetch(`/api/${what}`, { headers, cache: "no-store", signal: AbortSignal.timeout(25000) });
  if (answer.status === 401) throw new Refused();
  if (!answer.ok) throw new Error(`${answer.status}`);
  return answer.json();
}

/** The token is asked for, until one is taken. */
function login(message) {
  $("main").hidden = true;
  $("login").hidden = false;
  $("connection").textContent = "";
  $("refused").textContent = message;
  $("token").focus();
}

$("login").addEventListener("submit", (event) => {
  event.preventDefault();
  // The whole address may have been copied.
  token = $("token").value.trim().split("#").at(-1);
  // Otherwise the browser would refuse to send it.
  if (!/^[\w.~-]+$/.test(token)) return login("That is no token.");
  sessionStorage.setItem(TOKEN, token);
  $("token").value = "";
  $("login").hidden = true;
  start();
});

const sum = (sessions) => OUTCOMES.reduce((all, [name]) => all + (sessions[name] ?? 0), 0);
/** Decrypted of those that had something to decrypt. */
function share(sessions) {
  const all = sum(sessions) - (sessions.nothing_opened ?? 0);
  return all > 0 ? `${Math.floor(100 * sessions.decrypted / all)} %` : "–";
}
const inWords = (sessions) => OUTCOMES.filter(([name]) => sessions[name] > 0)
  .map(([name, label]) => `${count(sessions[name])} ${label}`).join(", ");

const throughput = new Lines("throughput", [
  { name: "left", label: "left" },
  { name: "right", label: "right", dash: [6, 4] },
], "bit/s");
const outcomes = new Lines("outcomes", OUTCOMES.map(([name, label, dash]) => ({ name, label, dash })), "/s");
const stalls = new Times("stalls", "stalls");
const held = new Times("held", "frames");

let agents = new Set();
const covered = [
  { title: "Sessions", kind: "number", cell: (row) => count(sum(row.sessions)) },
  { title: "Decrypted", kind: "number", cell: (row) => share(row.sessions) },
  { title: "By outcome", cell: ({ sessions }) => bar(OUTCOMES.map(([name]) => [name, sessions[name]]), sum(sessions), inWords(sessions)) },
];
const clients = new Table("clients", [
  { title: "Client", kind: "code", cell: (row) => row.name },
  { title: "Agent", cell: (row) => row.name === "others" ? "" : agents.has(row.name) ? "connected" : "none" },
  ...covered,
], { empty: "No session has ended yet." });
const programs = new Table("programs", [
  { title: "JA4", kind: "code", cell: (row) => row.name }, ...covered,
], { empty: "No session has ended yet." });
const alerts = new Table("alerts", [
  { title: "Time", cell: (row) => clock(row.time_ms) },
  { title: "Alert", kind: "text", cell: (row) => row.signature },
  { title: "Action", cell: (row) => row.action },
  { title: "Client", kind: "code", cell: (row) => row.client },
  { title: "Server", kind: "code", cell: (row) => row.server },
  { title: "Request", kind: "text", cell: (row) => row.url === null ? row.app_proto : `${row.host ?? ""}${row.url}` },
  { title: "Session", cell: (row) => opener(row.id, "show", open) },
], { empty: "No alert." });
const drops = new Table("drops", [
  { title: "Cause", kind: "code", cell: (row) => row[0] },
  { title: "Count", kind: "number", cell: (row) => count(row[2]) },
  { title: "What it counts", kind: "text", cell: (row) => row[1] },
], { empty: "None." });

const named = [
  { title: "Client", kind: "code", cell: (row) => row.client },
  { title: "Server", kind: "code", cell: (row) => row.server },
  { title: "Name", kind: "text", cell: (row) => row.name },
  { title: "Version", cell: (row) => row.version },
];
const LIVE = [
  { title: "Session", cell: (row) => opener(row.id, "show", open), key: (row) => row.id },
  ...named,
  { title: "Keys", cell: (row) => row.keys.replace("_", " ") },
  { title: "Decrypted", cell: (row) => row.decrypted ? "yes" : "no" },
  { title: "To server", kind: "number", cell: (row) => bytes(row.bytes_toserver), key: (row) => row.bytes_toserver },
  { title: "To client", kind: "number", cell: (row) => bytes(row.bytes_toclient), key: (row) => row.bytes_toclient },
  { title: "Held", kind: "number", cell: (row) => count(row.held_frames), key: (row) => row.held_frames },
  { title: "Age", kind: "number", cell: (row) => age(row.age_seconds), key: (row) => row.age_seconds },
];
const ENDED = [
  { title: "Session", cell: (row) => opener(row.id, "show", open), key: (row) => row.id },
  { title: "Ended", cell: (row) => clock(row.time_ms), key: (row) => row.time_ms },
  { title: "Outcome", cell: (row) => row.outcome.replace("_", " ") },
  ...named,
  { title: "Why", kind: "text", cell: (row) => row.why },
  { title: "Plaintext", kind: "number", cell: (row) => bytes(row.plaintext_bytes), key: (row) => row.plaintext_bytes },
  { title: "Waited", kind: "number", cell: (row) => row.stall_us ? duration(row.stall_us) : "", key: (row) => row.stall_us ?? -1 },
];
const which = () => document.querySelector("input[name=which]:checked").value;
const tables = () => new Table("sessions", which() === "live" ? LIVE : ENDED, {
  empty: which() === "live" ? "No live session fits." : "No ended session fits.", sorts: true,
});
let sessions = tables();
let listed = { live: [], ended: [], total: 0, before: 0 };

function list() {
  const words = $("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const rows = listed[which()];
  const fits = (row) => {
    const text = Object.values(row).join(" ").toLowerCase();
    return words.every((word) => text.includes(word));
  };
  const fitting = rows.filter(fits);
  sessions.show(fitting);
  const all = which() === "live" ? listed.total : listed.ended.length + listed.before;
  const of = rows.length < all ? ` of the last ${count(rows.length)} (${count(all)} in all)` : ` of ${count(all)}`;
  $("shown").textContent = `${count(fitting.length)}${of}`;
}

$("filter").addEventListener("input", list);
for (const radio of document.querySelectorAll("input[name=which]")) {
  radio.addEventListener("change", () => {
    sessions = tables();
    list();
  });
}

let opened = null;
const seconds = (number) => number === 0 ? "0 s" : age(number);
const milliseconds = (number) => duration(1000 * number);
/** What is said of a session, in this order; what is not among them comes behind. */
const FACTS = {
  client: ["Client"], server: ["Server"], name: ["Server name"], version: ["Version"], cipher_suite: ["Cipher suite"], alpn: ["ALPN"],
  outcome: ["Outcome"], time_ms: ["Ended", clock], end_reason: ["End"], keys: ["Keys"], decrypted: ["Decrypted"],
  waits_milliseconds: ["Waits for keys since", milliseconds], stall_us: ["Waited for keys", duration],
  age_seconds: ["Age", seconds], idle_seconds: ["Idle for", seconds],
  bytes_toserver: ["Bytes to server", bytes], bytes_toclient: ["Bytes to client", bytes],
  packets_toserver: ["Packets to server"], packets_toclient: ["Packets to client"],
  records_seen: ["Records seen"], records_opened: ["Records opened"],
  records_seen_toserver: ["Records to server"], records_opened_toserver: ["Opened of them"],
  records_seen_toclient: ["Records to client"], records_opened_toclient: ["Opened of them"],
  plaintext_bytes: ["Plaintext", bytes], plaintext_toserver: ["Plaintext to server", bytes], plaintext_toclient: ["Plaintext to client", bytes],
  held_frames: ["Frames held"], kept_bytes: ["Bytes kept", bytes], worker: ["Worker"], client_random: ["Client random"],
};

/** A fact as text. */
function said(value) {
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value === "number") return count(value);
  return typeof value === "object" ? Object.values(value).join(", ") : String(value);
}

/** Everything about one session, and why it is not decrypted. */
async function show(isNew) {
  const id = opened;
  if (id === null) return;
  const answer = await ask(`session?id=${id}`);
  const ended = listed.ended.find((row) => row.id === id);
  if (opened !== id) return;
  // What it was, where it is over.
  const known = answer.ok !== false && (!answer.session.end_reason || !ended) ? answer.session : ended;
  const why = known && known === ended ? ended.why : answer.why;
  $("detail").hidden = false;
  $("detail-title").textContent = `Session ${id}${ended ? ", ended" : ""}`;
  $("why").textContent = why ?? "It is over, and not among the last ones any more.";
  const names = [...Object.keys(FACTS), ...Object.keys(known ?? {}).filter((name) => !(name in FACTS) && name !== "why" && name !== "id")];
  const facts = names.flatMap((name) => {
    const value = known?.[name];
    if (value === null || value === undefined || Array.isArray(value) && value.length === 0) return [];
    const [label, text = said] = FACTS[name] ?? [name.replaceAll("_", " ")];
    return [element("div", {}, element("dt", {}, label), element("dd", {}, text(value)))];
  });
  $("facts").replaceChildren(...facts);
  if (isNew) {
    $("detail").scrollIntoView({ block: "nearest" });
    $("detail-title").focus({ preventScroll: true });
  }
}

function open(id) {
  opened = id;
  show(true).catch(failed);
}

$("close").addEventListener("click", () => {
  opened = null;
  $("detail").hidden = true;
});

let samples = [];
let next = 0;

function draw({ fields, samples: more, next: following }) {
  // Another run.
  if (following < next) samples = [];
  next = following;
  samples = samples.concat(more).slice(-SAMPLES);
  const at = Object.fromEntries(fields.map((name, place) => [name, place]));
  const column = (name) => samples.map((sample) => sample[at[name]]);
  const seconds = column("time_ms").map((ms) => ms / 1000);
  throughput.set([seconds, column("left_bits"), column("right_bits")]);
  outcomes.set([seconds, ...OUTCOMES.map(([name]) => column(name))]);
  const last = samples.at(-1);
  return last ? last[at.left_bits] + last[at.right_bits] : 0;
}

function tile(label, value, more) {
  return element("div", {}, element("dt", {}, label), element("dd", {}, value, element("span", { class: "more" }, more)));
}

function tiles(status, numbers, bits) {
  const { sessions, frames, keys } = status;
  $("run").textContent = `${status.version}, ${status.mode} on ${status.interfaces.join(" and ")}, ${status.workers.length} `
    + `${status.workers.length === 1 ? "worker" : "workers"}, up ${age(status.uptime_seconds)}${status.draining ? ", draining" : ""}`;
  const [left, right] = status.interfaces;
  if (throughput.series[0].label !== left) {
    throughput.series[0].label = left;
    throughput.series[1].label = right ?? "–";
    throughput.draw();
  }
  $("tiles").replaceChildren(
    tile("Throughput", `${prefixed(bits)}bit/s`, "both directions"),
    tile("Live sessions", count(sessions.live), `${count(sessions.begun)} begun`),
    tile("Decrypted", share(numbers.outcomes), `${count(sessions.decrypted)} ended sessions`),
    tile("Alerts", count(sessions.alerts), `${count(sessions.resets)} resets`),
    tile("Agents", count(keys.connections), `${count(keys.accepted)} keys taken, ${count(keys.refused)} refused`),
    tile("Frames dropped", count(frames.dropped), `${count(frames.lost_by_kernel)} lost by the kernel`),
  );
}

function latency(id, plot, times, none) {
  plot.show(times);
  const mean = duration(times.count ? times.sum_ns / times.count / 1000 : 0);
  const text = times.count === 0 ? none : `${count(times.count)} in all; half of them ${within(times, 0.5)}, 99 % ${within(times, 0.99)}; mean ${mean}`;
  $(`${id}-note`).textContent = text;
  $(id).setAttribute("aria-label", text);
}

function figures(numbers, status) {
  $("totals").replaceChildren(...OUTCOMES.map(([name, label, , what]) => {
    const mark = element("span", { class: `mark ${name}` });
    return element("li", { title: what }, mark, `${label} ${count(numbers.outcomes[name])}`);
  }));
  $("outcomes").setAttribute("aria-label", inWords(numbers.outcomes));
  const causes = Object.entries({ ...numbers.why_not.anomalies, ...numbers.why_not.uninspected });
  $("causes").textContent = causes.length === 0 ? "No anomaly."
    : `Anomalies and what was not inspected: ${causes.map(([name, number]) => `${name} ${count(number)}`).join(", ")}`;
  latency("stalls", stalls, numbers.stalls, "No record has waited for keys.");
  latency("held", held, numbers.held, "No frame was held.");
  const rows = numbers.drops.filter(([, , number]) => number > 0);
  drops.show(rows.sort((a, b) => b[2] - a[2]));
  $("no-drops").textContent = `${numbers.drops.length - rows.length} others are at 0. Of dropped, repetitions of what is held and what a policy drops have no row of their own.`;
  $("caps").replaceChildren(...numbers.caps.map(([name, what, used, most]) => {
    const shown = name.includes("bytes") ? bytes : count;
    const text = `${what}: ${shown(used)} of ${shown(most)} (limits.${name})`;
    return element("li", {}, text, bar([["used", used]], most, text));
  }));
  $("resident").textContent = `Memory of the process: ${bytes(status.memory.resident_bytes)}`;
}

function lately(recent, keys, live) {
  agents = new Set(keys.agents.map(({ address }) => address.replace(/:\d+$/, "").replace(/^\[(.*)\]$/, "$1")));
  for (const [table, { rows, others }] of [[clients, recent.clients], [programs, recent.programs]]) {
    table.show(rows, sum(others) > 0 ? [{ name: "others", sessions: others }] : []);
  }
  alerts.show(recent.alerts);
  listed = { live: live.sessions ?? [], ended: recent.ended, total: live.total ?? 0, before: recent.ended_before };
  list();
}

let answered = Date.now();
let run = 0;

function failed(error) {
  if (error instanceof Refused) {
    run += 1;
    login(token ? "That token is not the one of this run." : "");
    return;
  }
  $("connection").className = "lost";
  $("connection").textContent = `no answer since ${clock(answered)}`;
}

/** Once; the rest of it every second time. */
async function turn(number) {
  const [samples, numbers, status] = await Promise.all([ask(`history?since=${next}`), ask("numbers"), ask("status")]);
  // A figure that is not shown has no width.
  $("main").hidden = false;
  tiles(status, numbers, draw(samples));
  figures(numbers, status);
  if (number % 2 === 0) {
    lately(...await Promise.all([ask("recent"), ask("keys"), ask(`sessions?limit=${LIMIT}`)]));
    await show(false);
  }
  answered = Date.now();
  $("connection").className = "";
  $("connection").textContent = "live";
}

async function start() {
  const own = ++run;
  for (let number = 0; own === run; number += 1) {
    // The run keeps ten minutes for who looks again.
    if (!document.hidden || number === 0) await turn(number).catch(failed);
    await new Promise((done) => setTimeout(done, 1000));
  }
}

if (token) start();
else login("");
