// The status page: fetches ./status every two seconds and draws it. No libraries, no build step.
"use strict";

const ROUTES = ["unique", "duplicate", "expired", "error", "replay"];
const EVERY_MS = 2000;
const SVG = "http://www.w3.org/2000/svg";

const at = (id) => document.getElementById(id);
const whole = (n) => Math.round(n).toLocaleString("en-US");

function short(n) {
  for (const [size, unit] of [[1e9, " G"], [1e6, " M"], [1e4, " k"]]) {
    if (n >= size) return (n / (unit === " k" ? 1e3 : size)).toPrecision(3) + unit;
  }
  return whole(n);
}

function span(seconds) {
  if (seconds === null || seconds === undefined) return "-";
  if (seconds < 10) return seconds.toFixed(1) + " s";
  if (seconds < 120) return Math.round(seconds) + " s";
  if (seconds < 7200) return Math.round(seconds / 60) + " min";
  return (seconds / 3600).toFixed(1) + " h";
}

function bytes(n) {
  for (const [size, unit] of [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"]]) {
    if (n >= size) return (n / size).toFixed(1) + " " + unit;
  }
  return n + " B";
}

function put(parent, name, attributes, text) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  parent.append(element);
  return element;
}

function table(id, rows, heads) {
  const body = rows.map((cells) => {
    const row = document.createElement("tr");
    cells.forEach((cell, column) => {
      const item = document.createElement("td");
      if (column && !(cell instanceof Node)) item.className = "n";
      item.append(cell);
      row.append(item);
    });
    return row;
  });
  if (heads) {
    const row = document.createElement("tr");
    heads.forEach((text, column) => {
      const item = document.createElement("th");
      item.textContent = text;
      if (column && text) item.className = "n";
      row.append(item);
    });
    body.unshift(row);
  }
  at(id).replaceChildren(...body);
}

function bar(share) {
  const outer = document.createElement("div"), inner = document.createElement("i");
  outer.className = "bar";
  inner.style.width = Math.max(0, Math.min(1, share)) * 100 + "%";
  outer.append(inner);
  return outer;
}

// The smallest round number (1, 2 or 5 followed by zeros) that is not below n.
function ceiling(n) {
  const power = 10 ** Math.floor(Math.log10(n || 1));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= n) || 1;
}

// The history with one slot per time step up to now; null for steps without an entry.
function timeline(status) {
  const step = status.slot_seconds, last = Math.floor(status.now / step) * step;
  const known = new Map(status.history.map((slot) => [slot.at, slot]));
  const first = status.history.length ? status.history[0].at : last;
  const count = Math.max(30, Math.min(360, (last - first) / step + 1));
  return Array.from({ length: count }, (_, i) => known.get(last - (count - 1 - i) * step) || null);
}

// Draws stacked bars: stack(slot) returns a list of [value, colour].
function chart(id, status, slots, stack, format) {
  const svg = at(id), width = svg.clientWidth || 600, height = svg.clientHeight || 130;
  const left = 46, bottom = height - 18, inner = width - left;
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.replaceChildren();
  const stacks = slots.map((slot) => (slot ? stack(slot) : []));
  const top = ceiling(Math.max(0, ...stacks.map((parts) => parts.reduce((sum, [value]) => sum + value, 0))));
  for (const share of [0, 0.5, 1]) {
    const y = bottom - share * (bottom - 6);
    put(svg, "line", { x1: left, x2: width, y1: y, y2: y, stroke: "var(--line)" });
    put(svg, "text", { x: left - 6, y: y + 4, "text-anchor": "end" }, format(top * share));
  }
  const each = inner / slots.length;
  stacks.forEach((parts, i) => {
    let y = bottom;
    for (const [value, colour] of parts) {
      const tall = (value / top) * (bottom - 6);
      if (tall <= 0) continue;
      y -= tall;
      put(svg, "rect", {
        x: (left + i * each + each * 0.08).toFixed(2), y: y.toFixed(2),
        width: (each * 0.84).toFixed(2), height: tall.toFixed(2), fill: colour,
      });
    }
  });
  const minutes = (slots.length * status.slot_seconds) / 60;
  put(svg, "text", { x: left, y: height - 3 }, `${minutes.toFixed(0)} min ago`);
  put(svg, "text", { x: width, y: height - 3, "text-anchor": "end" }, "now");
}

function draw(status) {
  document.title = `${status.ready ? "" : "! "}${status.service}: replayfilter`;
  at("service").textContent = status.service;
  at("ready").textContent = status.ready ? "ready" : "not ready";
  at("ready").className = "pill " + (status.ready ? "good" : "bad");
  at("phase").textContent = `${status.phase}, up ${span(status.uptime_seconds)}` +
    (status.retries ? `; query restarts: ${whole(status.retries)}` : "");
  const old = status.ready && status.last_fault ? ["last error: " + status.last_fault] : [];
  at("reasons").className = status.ready ? "soft" : "";
  at("reasons").replaceChildren(...status.reasons.concat(old).map((reason) => {
    const item = document.createElement("li");
    item.textContent = reason;
    return item;
  }));

  const last = status.last_batch, state = status.state, waits = status.lag.map((lag) => lag.seconds || 0);
  at("age").textContent = last ? span(status.last_commit_age_seconds) + " ago" : "none yet";
  at("batches").textContent = `${whole(status.batches)} batches since the start`;
  at("rate").textContent = last ? short(last.records_per_second) + "/s" : "-";
  at("size").textContent = last ? `${whole(last.records)} records in ${span(last.seconds.total)}` : "";
  at("waiting").textContent = short(status.waiting);
  at("longest").textContent = `records; the oldest for ${span(Math.max(0, ...waits))}`;
  at("keys").textContent = last ? short(state.keys) : "-";
  const disk = status.sizes.disk;  // known only if the checkpoint is a local folder
  at("bytes").textContent = last ? `keys, ${bytes(state.bytes)} in ${whole(state.buckets)} buckets`
    + (disk === undefined ? "" : `, ${bytes(disk)} on disk`) : "";

  const slots = timeline(status);
  chart("routes", status, slots,
    (slot) => ROUTES.map((route) => [slot[route] / status.slot_seconds, `var(--${route})`]), short);
  chart("times", status, slots,
    (slot) => [[slot.batches ? slot.seconds / slot.batches : 0, "var(--unique)"]], (n) => n.toPrecision(2));
  chart("lags", status, slots, (slot) => [[slot.lag, "var(--duplicate)"]], short);
  at("legend").replaceChildren(...ROUTES.map((route) => {
    const item = document.createElement("span"), mark = document.createElement("i");
    mark.style.background = `var(--${route})`;
    const sum = document.createElement("b");
    sum.textContent = whole(status.totals[route]);
    item.append(mark, route + " ", sum);
    return item;
  }));

  const most = Math.max(1, ...status.lag.map((lag) => lag.records));
  table("lag", status.lag.map((lag) => [
    `${lag.topic}-${lag.partition}`, bar(lag.records / most), whole(lag.records), span(lag.seconds),
    lag.held_back ? `${whole(lag.held_back)} for ${span(lag.held_back_seconds)}` : "",
  ]), ["partition", "", "records", "waiting", "held back"]);
  const total = last ? last.seconds.total : 0;
  table("steps", (last ? Object.entries(last.seconds) : []).map(([step, seconds]) => [
    step, bar(total ? seconds / total : 0), seconds.toFixed(2) + " s",
  ]).concat((last ? Object.entries(last.work) : []).map(([stage, seconds]) => [
    `${stage}, all tasks`, bar(total ? seconds / total : 0), seconds.toFixed(2) + " s",
  ])));
  const sum = (name) => whole(status.counts[name] || 0);
  const low = status.watermark, held = status.laggards;
  table("state", [
    ...(low ? [["watermark", `${new Date(low * 1000).toLocaleString()}, ${span(status.now - low)} behind`]] : []),
    ...(held && held.origins.lagging ? [["held back by",
      `${whole(held.origins.lagging)} of ${whole(held.origins.expected)} origins (${whole(held.may_lag)} may lag), ` +
      `for ${span(held.still_seconds)}: ` + held.slowest.slice(0, 5).map(
        ({ origin, progress }) => `${origin} (${progress === null ? "not seen yet" : new Date(progress * 1000).toLocaleString()})`,
      ).join(", ") + (held.origins.lagging > 5 ? ` and ${whole(held.origins.lagging - 5)} more` : "")]] : []),
    ["marks (sources)", whole(state.sources || 0)], ["gaps", sum("state_gaps")],
    ["marks forgotten", sum("state_forgotten")], ["without a stamp", sum("unstamped")],
    ...(status.counts.conflict ? [["conflicts", sum("conflict")]] : []),
    ["keys expired", sum("state_evicted")], ["runs", whole(state.runs || 0)],
    ["cache hits, misses", `${sum("cache_hits")}, ${sum("cache_misses")}`],
    ["Bloom filter false positives", sum("state_false_hits")],
  ]);
  table("delivery", [
    ...Object.entries(status.errors).map(([reason, count]) => [`error: ${reason}`, whole(count)]),
    ["transactions", sum("transactions")], ["lanes taken over", sum("takeovers")], ["fences", sum("fences")],
    ["retried steps", sum("retries")], ["skipped: already delivered", sum("skipped")],
  ]);
  const { below_seconds: bounds, ...lengths } = status.lengths, columns = Object.values(lengths);
  const used = bounds.concat(Infinity).findLastIndex((_, i) => columns.some((counts) => counts[i])) + 1;
  table("lengths", Array.from({ length: used }, (_, i) => [
    i < bounds.length ? "below " + span(bounds[i]) : "longer", ...columns.map((counts) => whole(counts[i])),
  ]), used ? ["", "unique, late", "duplicate, late", "expired, late", "duplicates apart"] : []);
  at("config").textContent = JSON.stringify(status.config, null, 2);
  at("updated").textContent = `As of ${new Date(status.now * 1000).toLocaleTimeString()};`;
}

async function refresh() {
  try {
    draw(await (await fetch("status", { cache: "no-store" })).json());
  } catch (error) {
    at("ready").textContent = "no answer";
    at("ready").className = "pill bad";
    at("phase").textContent = "the service does not answer; the data below is old";
  }
  setTimeout(refresh, EVERY_MS);
}

refresh();
