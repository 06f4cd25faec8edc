"use strict";
// Shows each stage: its watermarks and the largest event time over the last hours, and what holds it back.
// Data from the server is inserted as text, never as markup.

const POLL_INTERVAL_MS = 2000;
const SVG = "http://www.w3.org/2000/svg";
const byId = (id) => document.getElementById(id);
let token = sessionStorage.getItem("token") || "";
let timer = 0;

async function request(path) {
  const app = byId("app").value;
  if (app && path !== "/v1/apps") path += `${path.includes("?") ? "&" : "?"}app=${encodeURIComponent(app)}`;
  const response = await fetch(path, { headers: token ? { Authorization: `Bearer ${token}` } : {} });
  const body = await response.json();
  if (response.ok) return body;
  throw Object.assign(new Error(`${body.error} (${body.where}): ${body.remedy}`), { status: response.status });
}

function createElement(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  Object.assign(element, properties);
  element.append(...children);
  return element;
}

function createSvgElement(tag, attributes, text) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

function formatTime(us, seconds = true) {
  if (us === null) return "unknown";
  const date = new Date(us / 1000);
  if (Number.isNaN(date.getTime())) return `${us} us`;
  const text = date.toISOString();
  return text.slice(0, 10) + " " + text.slice(11, seconds ? 19 : 16);
}

function formatDuration(us) {
  if (us === null) return "unknown";
  const units = [["d", 86400e6], ["h", 3600e6], ["min", 60e6], ["s", 1e6], ["ms", 1e3]];
  const [name, size] = units.find(([, size]) => Math.abs(us) >= size) || ["us", 1];
  return `${(us / size).toFixed(us % size && Math.abs(us) < 10 * size ? 1 : 0)} ${name}`;
}

function plot(history) {
  const width = 960, height = 220, left = 120, right = 10, top = 10, bottom = 24;
  const svg = createSvgElement("svg", { viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": `watermarks and largest event time of ${history.stage}` });
  const times = [history.front, history.output_low, history.input_low].flat().filter((time) => time !== null);
  if (history.at_us.length < 2 || !times.length) {
    svg.append(createSvgElement("text", { x: left, y: height / 2 }, "no history yet"));
    return svg;
  }
  const from = history.at_us[0], to = history.at_us.at(-1);
  let low = times.reduce((a, b) => Math.min(a, b)), high = times.reduce((a, b) => Math.max(a, b));
  if (low === high) { low -= 1e6; high += 1e6; }
  const x = (at) => left + (at - from) / (to - from) * (width - left - right);
  const y = (time) => height - bottom - (time - low) / (high - low) * (height - top - bottom);
  for (let part = 0; part <= 4; part++) {
    const time = low + (high - low) * part / 4, at = from + (to - from) * part / 4;
    svg.append(createSvgElement("line", { class: "rule", x1: left, x2: width - right, y1: y(time), y2: y(time) }));
    svg.append(createSvgElement("text", { x: 0, y: y(time) + 4 }, formatTime(time)));
    const anchor = ["start", "middle", "middle", "middle", "end"][part];
    svg.append(createSvgElement("text", { x: x(at), y: height - 6, "text-anchor": anchor }, formatTime(at).slice(11)));
  }
  const points = (column) => column.map((time, row) => [history.at_us[row], time]).filter(([, time]) => time !== null);
  const line = (points) => points.map(([at, time]) => `${x(at).toFixed(1)},${y(time).toFixed(1)}`).join(" ");
  const between = history.at_us.map((at, row) => [at, history.output_low[row], history.front[row]])
    .filter(([, a, b]) => a !== null && b !== null);
  svg.append(createSvgElement("polygon", { class: "gap",
    points: line(between.map(([at, a]) => [at, a])) + " " + line(between.map(([at, , b]) => [at, b]).reverse()) }));
  for (const [name, column] of [["front", history.front], ["in", history.input_low], ["low", history.output_low]])
    svg.append(createSvgElement("polyline", { class: name, points: line(points(column)) }));
  return svg;
}

function legend() {
  const entry = (color, text) => {
    const mark = createElement("i");
    mark.style.borderColor = `var(--${color})`;
    return createElement("span", { className: "soft" }, mark, text);
  };
  const keys = [entry("front", "largest event time seen"), entry("in", "input low"), entry("low", "output low")];
  return createElement("div", { className: "facts key" }, ...keys);
}

function heldBack(state) {
  const { by, names, count, since_us, behind_us } = state.held;
  const more = count > 5 ? ` and ${count - 5} more` : "";
  const which = names.length ? `: ${names.slice(0, 5).join(", ")}${more}` : "";
  const since = since_us === null ? "never moved" : `last moved ${formatTime(since_us)}`;
  return `${by === "nothing" ? "waiting" : `held back by ${by}`}${which}; ${since}; ${behind_us === null ? "lag unknown" : formatDuration(behind_us) + " behind the largest event time"}`;
}

function origins(health) {
  const lagging = health.slowest.slice(0, 12);
  if (!lagging.length) return "";
  const head = createElement("tr", {}, ...["slowest origins", "progress", "behind", "last progress at"].map((text) => createElement("th", { textContent: text })));
  const rows = lagging.map((each) => createElement("tr", {}, ...[
    each.origin + (each.counted ? "" : " (idle)"), formatTime(each.progress),
    each.progress === null ? "no report yet" : formatDuration(each.behind_us),
    each.since_us === null ? "never" : formatTime(each.since_us),
  ].map((text) => createElement("td", { textContent: text }))));
  return createElement("table", {}, createElement("thead", {}, head), createElement("tbody", {}, ...rows));
}

function section(state, health, history) {
  const facts = [
    `output low ${formatTime(state.output_low)}`, `input low ${formatTime(state.input_low)}`,
    state.upstream.length ? `reads ${state.upstream.join(", ")}` : "",
    state.completeness ? `${state.origins} origins, ${state.idle} idle, ${state.may_lag} may lag (${state.completeness})` : "",
    state.partitions.length ? `${state.partitions.length} input partition${state.partitions.length > 1 ? "s" : ""}` : "",
  ].filter(Boolean).map((text) => createElement("span", { textContent: text }));
  const errors = state.faults.map((text) => createElement("p", { className: "warn", textContent: text }));
  return createElement("section", { id: `stage-${state.stage}` }, createElement("h2", { textContent: state.stage }),
    createElement("div", { className: "facts" }, ...facts), createElement("p", { className: "soft", textContent: heldBack(state) }),
    ...errors, plot(history), legend(), origins(health));
}

async function showApps() {
  const { apps } = await request("/v1/apps"), chosen = byId("app").value || apps[0];
  byId("app").replaceChildren(...apps.map((name) => createElement("option", { value: name, textContent: name })));
  byId("app").value = apps.includes(chosen) ? chosen : apps[0];
  byId("apps").hidden = apps.length < 2;
}

async function refresh() {
  clearTimeout(timer);
  try {
    await showApps();
    const seconds = Math.round(byId("hours").value * 3600);
    const [table, health] = await Promise.all([request("/v1/stages"), request("/v1/health")]);
    const path = (state) => `/v1/stages/${encodeURIComponent(state.stage)}/history?seconds=${seconds}`;
    const histories = await Promise.all(table.stages.map((state) => request(path(state))));
    const healthOf = Object.fromEntries(health.stages.map((stage) => [stage.stage, stage]));
    byId("stages").replaceChildren(...table.stages.map((state, row) => section(state, healthOf[state.stage], histories[row])));
    byId("global").textContent = `global ${formatTime(table.global_low)}, at ${formatTime(table.at_us)} UTC`;
    byId("trouble").hidden = !health.faults.length;
    byId("trouble").textContent = health.faults.join("; ");
    byId("login").hidden = true;
  } catch (error) {
    byId("trouble").hidden = false;
    byId("trouble").textContent = error.message;
    if (error.status === 401) {
      byId("login").hidden = false;
      return;
    }
  }
  timer = setTimeout(refresh, POLL_INTERVAL_MS);
}

byId("hours").addEventListener("change", refresh);
byId("app").addEventListener("change", refresh);
byId("login").addEventListener("submit", (event) => {
  event.preventDefault();
  token = byId("token").value;
  sessionStorage.setItem("token", token);
  refresh();
});
refresh();
