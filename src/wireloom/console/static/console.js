// The console's page: takes snapshots from the server and draws them. What peers sent is only ever set as text.

const KEEP = 1000;
const SHOW = 200;
const CUT = 30; // characters that a cell of a table always shows
const SILENCE = 4; // seconds without a snapshot, of which there is one a second
const SPAN = 5 * 60 * 1000; // of the latency plot
const $ = (selector) => document.querySelector(selector);

function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "class") element.className = value;
    else if (name in element) element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

const count = (n) => (n ?? 0).toLocaleString("en");
const some = (n, what) => `${count(n)} ${what}${n === 1 ? "" : "s"}`;
// The time of day in UTC, with the date unless that is today's.
function clock(iso) {
  const [date, time] = (iso ?? "").split("T");
  return !time ? "" : (date === new Date().toISOString().slice(0, 10) ? "" : `${date} `) + time.slice(0, 12);
}
function short(n) {
  if (n >= 1e6) return (n / 1e6).toFixed(1) + " M";
  if (n >= 1e4) return (n / 1e3).toFixed(1) + " k";
  return n >= 100 || Number.isInteger(n) ? n.toFixed(0) : n.toFixed(1);
}
function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (n >= 1024 && unit < units.length - 1) { n /= 1024; unit += 1; }
  return `${unit ? n.toFixed(1) : n} ${units[unit]}`;
}
function latency(us) {
  if (us === null || us === undefined) return "–";
  return us < 1000 ? `${us} µs` : us < 1e6 ? `${(us / 1000).toFixed(1)} ms` : `${(us / 1e6).toFixed(2)} s`;
}
function coloured(protocol) {
  const span = make("span", { class: "name" }, protocol);
  span.style.setProperty("--colour", `var(--${CSS.escape(protocol)}, var(--other))`);
  return span;
}

// --- what is known -----------------------------------------------------------------------------------

const known = { messages: [], exchanges: [], rejects: [], history: {}, latest: null, paused: null, skipped: 0, unseen: 0 };
let serial = 0;

function take(snapshot) {
  known.latest = snapshot;
  for (const name of ["messages", "exchanges", "rejects"]) {
    const fresh = snapshot[name] ?? [];
    for (const each of fresh) each.number = serial += 1;
    if (name === "messages" && known.paused) known.unseen += fresh.length;
    if (snapshot.history) known[name] = [];
    if (fresh.length) known[name] = fresh.slice().reverse().concat(known[name]).slice(0, KEEP);
  }
  known.skipped = snapshot.skipped ?? 0;
  if (snapshot.history) known.history = snapshot.history;
  for (const [protocol, rates] of snapshot.history ? [] : Object.entries(snapshot.rates ?? {})) {
    const past = (known.history[protocol] ??= []);
    past.push(rates?.in ?? 0);
    if (past.length > 300) past.shift();
  }
  draw();
}

function draw() {
  drawState();
  drawProtocols();
  const panel = document.querySelector("[data-panel]:not([hidden])").dataset.panel;
  drawCounts();
  ({ messages: drawMessages, topics: drawTopics, exchanges: drawExchanges, connections: drawConnections,
    rejects: drawRejects, findings: drawFindings, pipeline: drawPipeline, send: () => {} })[panel]();
}

// Rows that are there already stay: what somebody has selected, focused or is about to click does not go away.
function rows(table, items, key, cells, empty) {
  const body = table.tBodies[0];
  const old = table.known ?? new Map();
  table.known = new Map();
  if (!items.length) {
    body.replaceChildren(make("tr", {}, make("td", { class: "empty", colSpan: table.tHead.rows[0].cells.length }, make("p", {}, empty))));
    return;
  }
  const wanted = items.map((item) => {
    const fresh = cells(item).map((cell) => cell instanceof HTMLTableCellElement ? cell : make("td", {}, cell));
    for (const cell of fresh) if (cell.textContent.length > CUT) cell.title = cell.textContent; // the page may have cut it
    let row = old.get(item[key]);
    if (!row) row = item.hex === undefined ? make("tr", {}, ...fresh) : opens(make("tr", {}, ...fresh));
    else fresh.forEach((cell, at) => { if (!row.cells[at].isEqualNode(cell)) row.cells[at].replaceWith(cell); });
    row.item = item;
    table.known.set(item[key], row);
    return row;
  });
  const stay = new Set(wanted);
  for (const row of [...body.rows]) if (!stay.has(row)) row.remove();
  wanted.forEach((row, at) => { if (body.rows[at] !== row) body.insertBefore(row, body.rows[at] ?? null); });
}
function opens(row) {
  row.className = "opens";
  row.tabIndex = 0;
  row.addEventListener("click", () => { if (!String(getSelection())) open(row.item); });
  row.addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === " ") { event.preventDefault(); open(row.item); }
    const next = { ArrowDown: row.nextElementSibling, ArrowUp: row.previousElementSibling }[event.key];
    if (next) { event.preventDefault(); next.focus(); }
  });
  return row;
}
const number = (text) => make("td", { class: "number" }, text);

// --- the parts ---------------------------------------------------------------------------------------

function drawState() {
  const hub = known.latest.hub;
  $("#state").dataset.state = hub.up ? (hub.healthy ? "up" : "down") : "down";
  $("#state .text").textContent = !hub.up ? hub.why
    : !hub.healthy ? `the journal cannot be written (${hub.why}): nothing is acknowledged until it can; if the disk is full, make room`
    : `${some(hub.connections_open, "connection")}, ${some(hub.subscriptions, "subscription")}${archive(hub.archive)}`;
}

function archive(state) {
  if (!state || state.healthy) return "";
  return `; ${some(state.waiting_segments, "segment")} (${bytes(state.waiting_bytes)}) cannot be archived: ${state.why}`;
}

function drawProtocols() {
  const { rates, hub } = known.latest;
  const box = $("#protocols");
  for (const protocol of Object.keys(rates).sort()) {
    let tile = document.getElementById(`tile-${protocol}`);
    if (!tile) {
      tile = make("article", { class: "tile", id: `tile-${protocol}` });
      tile.style.setProperty("--colour", `var(--${CSS.escape(protocol)}, var(--other))`);
      const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
      svg.setAttribute("viewBox", "0 0 300 40");
      svg.setAttribute("preserveAspectRatio", "none");
      svg.setAttribute("aria-hidden", "true");
      svg.append(document.createElementNS("http://www.w3.org/2000/svg", "polyline"));
      tile.append(make("h2", {}, protocol, make("small")), make("p", { class: "rates" }), svg);
      tile.querySelector(".rates").style.margin = "4px 0 0";
      box.append(tile);
    }
    const rate = rates[protocol]; // null while nobody knows
    tile.querySelector("small").textContent = rate ? `${count(hub.protocols?.[protocol]?.open)} open` : "";
    tile.querySelector(".rates").replaceChildren(
      make("span", { title: "messages received a second" }, make("b", {}, rate ? short(rate.in) : "–"), " in/s"),
      make("span", { title: "messages sent a second: events, requests and answers" }, make("b", {}, rate ? short(rate.out) : "–"), " out/s"),
      make("span", { class: "hint", title: "bytes received a second" }, rate ? bytes(Math.round(rate.bytes)) + "/s" : ""));
    const past = known.history[protocol] ?? [];
    const top = Math.max(1, ...past);
    tile.querySelector("polyline").setAttribute("points",
      past.map((value, i) => `${300 - (past.length - 1 - i) * 300 / Math.max(60, past.length)},${38 - 36 * value / top}`).join(" "));
  }
}

function drawCounts() {
  const { findings, hub } = known.latest;
  const slow = (hub.connections ?? []).filter((each) => each.queued_bytes || each.lost).length;
  const set = (panel, value, bad) => {
    const badge = $(`#tab-${panel} .count`);
    badge.textContent = value ? short(value) : "";
    badge.hidden = !value;
    badge.classList.toggle("bad", bad);
  };
  set("rejects", known.rejects.length, true);
  set("findings", findings?.total ?? 0, (findings?.critical ?? 0) > 0);
  set("connections", slow, true);
}

function drawMessages() {
  const wanted = $("#filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const matches = (m) => { const text = `${m.protocol} ${m.kind} ${m.topic ?? m.operation ?? m.answers ?? ""} ${m.status ?? ""} ${m.text ?? ""}`.toLowerCase();
    return wanted.every((word) => text.includes(word)); };
  const messages = known.paused ?? known.messages;
  const shown = wanted.length ? messages.filter(matches) : messages;
  $("#skipped").textContent = known.paused ? (known.unseen ? `paused; ${count(known.unseen)} new` : "paused") : known.skipped ? `${bytes(known.skipped)} of traffic came too fast to show; the tables have all of it` : "";
  rows($("#messages"), shown.slice(0, SHOW), "number", (m) => [
    clock(m.time), coloured(m.protocol), m.direction === "s2c" ? "out" : "in", m.kind, m.topic ?? (m.operation ? `hub: ${m.operation}` : m.answers ? `re: ${m.answers}` : "–"), m.status ?? "",
    number(count(m.body_size)), make("td", { class: "body" }, m.text ?? "(bytes)")],
    wanted.length ? "Nothing matches the filter." : nothingYet());
}

function nothingYet() {
  const { hub, via } = known.latest;
  if (!hub.up) return "No message yet.";
  return "No message yet." + (via ? ` Publish one in the panel Send, or with: wireloom pub ${via} sensors/kitchen 21.5` : "");
}

function drawTopics() {
  rows($("#topics"), known.latest.topics, "topic", (t) => [make("td", { class: "wide" }, t.topic), t.protocols.join(", "), number(count(t.messages)), number(bytes(t.bytes)), clock(t.last)],
    "No topic yet.");
}

function drawExchanges() {
  rows($("#exchanges"), known.exchanges.slice(0, SHOW), "number", (e) => [
    clock(e.requested_at), coloured(e.protocol), e.verb, e.topic ?? (e.operation ? `hub: ${e.operation}` : "–"),
    make("span", { class: e.outcome === "done" ? "good" : e.outcome === "open" ? "" : "bad" }, e.outcome), e.status ?? "",
    number(latency(e.latency_us)), provider(e), number(count(e.progress_count))],
    "No request was answered yet.");
  drawLatency();
}

function provider(exchange) {
  if (exchange.passed_on) return "passed on"; // without its other half, which was not seen
  return exchange.provider ? make("td", {}, coloured(exchange.provider), `, ${latency(exchange.provider_us)}`) : "–";
}

function drawLatency() {
  const canvas = $("#latency");
  const scale = devicePixelRatio || 1;
  canvas.width = canvas.clientWidth * scale;
  canvas.height = 220 * scale;
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(`--${name}`).trim();
  const [left, right, top, bottom] = [64, canvas.clientWidth - 8, 8, 196];
  const answered = known.exchanges.filter((e) => e.latency_us > 0).map((e) => [Date.parse(e.requested_at), e.latency_us, e.protocol]);
  const points = answered.filter((p) => p[0] > answered[0][0] - SPAN);
  pen.font = "12px system-ui";
  pen.fillStyle = colour("soft");
  pen.strokeStyle = colour("line");
  const highest = Math.ceil(Math.log10(Math.max(1000, ...points.map((p) => p[1]))));
  const y = (us) => bottom - (bottom - top) * Math.max(0, (Math.log10(us) - 1) / (highest - 1));
  for (let power = 1; power <= highest; power += 1) {
    pen.beginPath(); pen.moveTo(left, y(10 ** power)); pen.lineTo(right, y(10 ** power)); pen.stroke();
    pen.fillText(latency(10 ** power).replace(/\.0+ /, " "), 4, y(10 ** power) + 4);
  }
  if (!points.length) { $("#percentiles").textContent = ""; canvas.ariaLabel = "Latency of requests over time"; return; }
  const last = Math.max(...points.map((p) => p[0]));
  const first = Math.min(last - 10000, ...points.map((p) => p[0]));
  const [from, to] = [first, last].map((time) => new Date(time).toISOString().slice(0, 19).replace("T", " "));
  const until = to.slice(0, 10) === from.slice(0, 10) ? to.slice(11) : to;
  pen.fillText(from, left, 214);
  pen.textAlign = "right";
  pen.fillText(until, right, 214);
  canvas.ariaLabel = `Latency of requests from ${from} to ${until}`;
  pen.globalAlpha = 0.75;
  for (const [time, us, protocol] of points) {
    pen.fillStyle = colour(protocol) || colour("other");
    pen.beginPath();
    pen.arc(left + (right - left) * (time - first) / (last - first), y(us), 3, 0, 7);
    pen.fill();
  }
  const sorted = points.map((p) => p[1]).sort((a, b) => a - b);
  const at = (share) => latency(sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))]);
  const shown = [...new Set(points.map((p) => p[2]))].sort();
  $("#percentiles").replaceChildren(`${count(points.length)} answered: p50 ${at(.5)}, p90 ${at(.9)}, p99 ${at(.99)}. `,
    ...shown.map(coloured));
}

function drawConnections() {
  const { up, connections: found = [] } = known.latest.hub;
  const slow = found.filter((each) => each.queued_bytes || each.lost);
  $("#slow").textContent = !up ? "" : slow.length ? `${slow.length} slow: events wait for them or were dropped` : "Nobody is slow.";
  rows($("#connections"), found, "id", (c) => [
    c.id.slice(-8), coloured(c.protocol), c.peer ?? "–", c.principal ?? "–", number(count(c.received)), number(count(c.delivered)),
    make("td", { class: c.queued_bytes ? "number warn" : "number" }, bytes(c.queued_bytes)),
    make("td", { class: c.lost ? "number bad" : "number" }, count(c.lost))], up ? "Nobody is connected." : "The hub does not answer: who is connected is not known.");
}

function drawRejects() {
  rows($("#rejects"), known.rejects.slice(0, SHOW), "number", (r) => [
    clock(r.time), coloured(r.protocol), r.source ?? "–", r.clause, make("td", { class: "wide" }, r.detail), number(count(r.size))],
    "Nothing was refused.");
}

function drawFindings() {
  const findings = known.latest.findings;
  findings?.rows.forEach((each, at) => { each.key = findings.total - at; });
  rows($("#findings"), findings?.rows ?? [], "key", (f) => [
    clock(f.time), make("span", { class: f.severity === "critical" ? "bad" : f.severity === "warning" ? "warn" : "" }, f.severity),
    f.rule, coloured(f.protocol), (f.connection ?? "").slice(-8), make("td", { class: "wide" }, f.detail ?? "")],
    known.latest.pipeline ? "The pipeline found nothing wrong." : "Findings come from the pipeline: start the console with --warehouse DIR.");
}

function drawPipeline() {
  const pipeline = known.latest.pipeline;
  const facts = !pipeline ? [["State", "no warehouse: start the console with --warehouse DIR"]] : [
    ["State", pipeline.why ?? (pipeline.running ? "running" : "not running")],
    ["Input rate", `${short(pipeline.rate ?? 0)} messages/s`],
    ["Behind the journal", pipeline.lag_bytes === null ? "–" : bytes(pipeline.lag_bytes)],
    ["Last commit", pipeline.last_commit ? `${clock(pipeline.last_commit)} (${pipeline.age_s.toFixed(0)} s ago)` : "–"]];
  $("#progress").replaceChildren(...facts.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]));
  rows($("#tables"), pipeline?.tables ?? [], "name", (t) => [t.name, number(count(t.rows)), number(count(t.files)), number(count(t.version)), clock(t.committed)],
    "No table yet.");
}

// --- one message -------------------------------------------------------------------------------------

function open(item) {
  const dialog = $("#detail");
  const hidden = new Set(["hex", "text", "number", "attributes"]);
  const facts = Object.entries(item).filter(([name, value]) => !hidden.has(name) && value !== null && value !== "");
  for (const [name, value] of Object.entries(item.attributes ?? {})) facts.push([name, value]);
  dialog.querySelector("dl").replaceChildren(...facts.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, String(value))]));
  const show = (asHex) => {
    $("#hex").setAttribute("aria-pressed", asHex);
    dialog.querySelector("pre").textContent = bodyText(item, asHex);
  };
  $("#hex").onclick = () => show($("#hex").getAttribute("aria-pressed") !== "true");
  show(isBytes(item));
  dialog.showModal();
}

const isBytes = (item) => item.text === null || item.text === undefined;
function bodyText(item, asHex = isBytes(item)) {
  if (!item.hex) return "(no body)";
  const left = (item.body_size ?? item.size ?? 0) - item.hex.length / 2;
  return (asHex ? dump(item.hex) : readable(item.text)) + (left > 0 ? `\n… and ${count(left)} more bytes, which the journal has` : "");
}

function readable(text) {
  try { return JSON.stringify(JSON.parse(text), null, 2); } catch { return text; }
}

function dump(hex) {
  const lines = [];
  for (let at = 0; at < hex.length; at += 32) {
    const pairs = hex.slice(at, at + 32).match(/../g) ?? [];
    const letters = pairs.map((pair) => { const code = parseInt(pair, 16); return code > 31 && code < 127 ? String.fromCharCode(code) : "."; });
    lines.push(`${(at / 2).toString(16).padStart(6, "0")}  ${pairs.join(" ").padEnd(47)}  ${letters.join("")}`);
  }
  return lines.join("\n");
}

// --- tabs, keys, theme, sending ----------------------------------------------------------------------

const panels = [...document.querySelectorAll("[data-panel]")];
function choose(name) {
  for (const panel of panels) {
    const chosen = panel.dataset.panel === name;
    panel.hidden = !chosen;
    const tab = document.getElementById(`tab-${panel.dataset.panel}`);
    tab.setAttribute("aria-selected", chosen);
    tab.tabIndex = chosen ? 0 : -1;
    if (chosen) tab.scrollIntoView({ block: "nearest", inline: "nearest" });
  }
  history.replaceState(null, "", `#${name}`);
  if (known.latest) draw();
}
for (const panel of panels) {
  const name = panel.dataset.panel;
  panel.id = `panel-${name}`;
  panel.setAttribute("role", "tabpanel");
  panel.setAttribute("aria-labelledby", `tab-${name}`);
  const tab = make("button", { id: `tab-${name}`, type: "button", role: "tab", "aria-controls": `panel-${name}` }, panel.dataset.title, make("span", { class: "count", hidden: true }));
  tab.addEventListener("click", () => choose(name));
  $("nav").append(tab);
}
$("nav").addEventListener("keydown", (event) => {
  const at = panels.findIndex((panel) => !panel.hidden);
  const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: -1 }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  const next = panels.at(to % panels.length).dataset.panel;
  choose(next);
  document.getElementById(`tab-${next}`).focus();
});
function pause() {
  known.paused = known.paused ? null : known.messages; // what stays on the page
  $("#pause").setAttribute("aria-pressed", known.paused !== null);
  $("#pause").textContent = known.paused ? "Go on" : "Pause";
  known.unseen = 0;
  if (known.latest) draw();
}
function theme() {
  const dark = document.documentElement.dataset.theme
    ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "light" : "dark";
  try { localStorage.setItem("theme", document.documentElement.dataset.theme); } catch { /* a private window keeps nothing */ }
  if (known.latest) draw();
}
$("#pause").addEventListener("click", pause);
$("#theme").addEventListener("click", theme);
$("#filter").addEventListener("input", () => { if (known.latest) draw(); });
$("#filter").form.addEventListener("submit", (event) => event.preventDefault());
document.addEventListener("keydown", (event) => {
  if (event.target.matches("input, textarea") || event.ctrlKey || event.metaKey || event.altKey || $("#detail").open) return;
  if (event.key === "/") { event.preventDefault(); choose("messages"); $("#filter").focus(); }
  else if (event.key === "p") pause();
  else if (event.key === "t") theme();
  else if (panels[Number(event.key) - 1]) choose(panels[Number(event.key) - 1].dataset.panel);
});
try { const chosen = localStorage.getItem("theme"); if (chosen) document.documentElement.dataset.theme = chosen; } catch { /* as above */ }

$("#send").addEventListener("submit", async (event) => {
  event.preventDefault();
  const form = event.target;
  const verb = event.submitter?.value ?? "publish";
  const answer = $("#answer");
  answer.textContent = verb === "request" ? "asking…" : "publishing…";
  answer.className = "";
  try {
    const response = await fetch(`api/${verb}`, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ topic: form.topic.value, body: form.body.value, content_type: form.content_type.value }),
    });
    const result = await response.json();
    answer.className = response.ok ? "good" : "bad";
    answer.textContent = !response.ok ? result.error : verb === "publish" ? result.text : result.hex ? bodyText(result) : "answered, without a body";
  } catch (error) {
    answer.className = "bad";
    answer.textContent = `the console does not answer: ${error.message}`;
  }
});

const asked = location.hash.slice(1);
choose(panels.some((panel) => panel.dataset.panel === asked) ? asked : "messages");

// EventSource comes back by itself when the console was restarted.
const source = new EventSource("api/stream");
let heard = performance.now();
source.onmessage = (event) => { heard = performance.now(); take(JSON.parse(event.data)); };
source.onerror = () => lost(source.readyState === EventSource.CLOSED
  ? "the console refuses this page: open it again, with its token if it has one" : "the console does not answer; trying again");
setInterval(() => {
  const silent = (performance.now() - heard) / 1000;
  if (silent > SILENCE && source.readyState === EventSource.OPEN) lost(`the console has said nothing for ${silent.toFixed(0)} s`);
}, 1000);
function lost(why) {
  $("#state").dataset.state = "down";
  $("#state .text").textContent = why;
}
