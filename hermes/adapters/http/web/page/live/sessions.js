// What the sessions of a conversation are made of: their lineage, and the cache of their prompts.

import { get } from "../lib/api.js";
import { h, icon, replace, set } from "../lib/dom.js";
import * as format from "../lib/format.js";
import { link } from "../lib/router.js";
import { announce, fail } from "../lib/status.js";
import { badge, bar, cachedShare, cards, conversation, counted, draw, fetching, input, ratio, stat, table, to, total } from "./live.js";

const { count, dateTime, plural } = format;

// The lineage: a drawing beside a list, a row per session, the oldest first. A compression continues
// its line; a branch or a fork begins another one.

const ROW = 56;
const STEP = 22;
const SIGNS = {
  new: "M6 0A6 6 0 1 1-6 0A6 6 0 1 1 6 0", compression: "M0-7L7 0L0 7L-7 0Z", branch: "M-6 5L0-6L6 5Z",
  fork: "M-5-5H5V5H-5Z",
};
const sign = (kind) => draw("path", { d: SIGNS[kind] ?? SIGNS.new, class: `sign ${kind}` });

export function lineage(root, state, key) {
  if (!key) return choose(root, state);
  const map = h("div", { class: "map" });
  const list = h("ol", { class: "sessions" });
  const detail = h("section", { class: "card detail", "aria-label": "The session" });
  root.append(h("p", null, conversation(key), " · ", to("Cache", "live", "cache", key)),
    h("ul", { class: "legend", "aria-hidden": "true" }, Object.keys(SIGNS).map((kind) => h("li", null,
      draw("svg", { width: 18, height: 18, viewBox: "-9 -9 18 18" }, sign(kind)), kind))),
    h("div", { class: "lineage" }, map, list, detail));
  let sessions = [];
  let selected = null;
  const read = fetching(() => get(`/api/live/lineage/${encodeURIComponent(key)}`), (found) => {
    const before = JSON.stringify(sessions);
    sessions = found.sessions;
    if (JSON.stringify(sessions) !== before || !before[2]) show(found.current);
  });
  return { render() {
    const actor = state.actors.get(key);
    read(`${actor?.session_id} ${actor?.used_at}`);
  } };

  function show(current) {
    const focused = document.activeElement?.dataset.session;
    replace(map, sessions.length && picture(sessions, select));
    replace(list, sessions.length ? sessions.map((each) => h("li", null, h("button", { type: "button",
      "data-session": each.session_id, onclick: () => select(each.session_id) },
    h("b", null, each.title || each.session_id), each.current && badge("tip", "accent"),
    h("small", null, `${each.kind} · ${plural(each.messages, "message")}`,
      each.summary && ` · replaced ${count(each.summary.count)}`)))) : h("li", null, "Nothing of this conversation is stored yet."));
    list.querySelector(`[data-session="${CSS.escape(focused ?? "")}"]`)?.focus();
    const each = sessions.find(({ session_id: id }) => id === selected) ?? sessions.find((one) =>
      one.session_id === current) ?? sessions.at(-1);
    if (each) select(each.session_id, false);
  }

  async function select(id, asked = true) {
    selected = id;
    for (const each of root.querySelectorAll("[data-session]")) {
      set(each, { "aria-current": each.dataset.session === id && "true" });
    }
    const each = sessions.find((one) => one.session_id === id);
    const summary = h("div");
    const facts = { Session: h("code", null, id), Parent: each.parent, Messages: count(each.messages),
      Cost: format.money(each.cost), Began: dateTime(each.started_at),
      Ended: each.ended_at && `${dateTime(each.ended_at)}: ${each.end_reason}`,
      "Continues here": each.keys.length > 0 && h("span", null, each.keys.map(conversation)) };
    replace(detail, h("h2", null, each.title || id, " ", badge(each.kind)), h("dl", null, Object.entries(facts)
      .filter(([, value]) => value).map(([name, value]) => [h("dt", null, name), h("dd", null, value)])), summary);
    if (!each.summary) return;
    try {
      replace(summary, replacement(await get(`/api/live/summaries/${encodeURIComponent(id)}`)));
      if (asked) announce(`The summary replaced ${plural(each.summary.count, "message")}.`);
    } catch (error) {
      fail(error);
    }
  }
}

/** Before a conversation is chosen. */
function choose(root, state) {
  const keys = h("datalist", { id: "live-keys" });
  const field = h("input", { class: "field", required: true, placeholder: "Session key", "aria-label": "Session key",
    list: "live-keys", autocomplete: "off" });
  root.append(h("form", { class: "filters", onsubmit(event) {
    event.preventDefault();
    location.hash = link("live", "lineage", field.value);
  } }, field, keys, h("button", { class: "button primary" }, "Show the lineage")));
  return { render() {
    if (!keys.firstChild) replace(keys, [...state.actors.keys()].slice(0, 200).map((value) => h("option", { value })));
  } };
}

function picture(sessions, select) {
  const places = new Map();
  let columns = 0;
  const lines = sessions.map((each, row) => {
    const parent = places.get(each.parent);
    const continues = parent && each.kind === "compression" && !parent.continued;
    if (continues) parent.continued = true;
    const [x, y] = [continues ? parent.x : 12 + STEP * Math.min(7, columns++), (row + 0.5) * ROW];
    places.set(each.session_id, { x, y, each });
    if (!parent) return null;
    return draw("path", { class: `line ${each.kind}`, d: `M${parent.x} ${parent.y}`
      + (continues ? `V${y}` : `C${parent.x} ${y} ${x} ${parent.y} ${x} ${y}`) });
  });
  const width = 2 * 12 + STEP * Math.min(7, columns - 1);
  return draw("svg", { width, height: sessions.length * ROW, "aria-hidden": "true" }, ...lines,
    ...[...places.values()].map(({ x, y, each }) => draw("g", { transform: `translate(${x} ${y})`,
      "data-session": each.session_id, onclick: () => select(each.session_id) },
    draw("rect", { x: -11, y: -22, width: 22, height: 44 }), each.current && draw("circle", { r: 11 }), sign(each.kind))));
}

const replacement = ({ replaced, summary, rows }) => [
  h("h3", null, `The summary replaced ${plural(replaced.count, "message")}`),
  h("p", { class: "muted small-text" }, replaced.count > 0 && `Rows ${replaced.first} to ${replaced.last}. `,
    `The summary is row ${replaced.message}.`, rows.length < replaced.count && ` The first ${rows.length} are listed.`),
  h("blockquote", { tabindex: 0 }, summary.text),
  h("ol", { class: "replaced", tabindex: 0, "aria-label": "Replaced messages" }, rows.map((row) => h("li", null,
    badge(row.role), h("time", { class: "muted", title: dateTime(row.timestamp) }, format.when(row.timestamp)),
    h("p", null, (row.text || row.tool_calls.map(({ name }) => name).join(", ")).slice(0, 300))))),
];

// The cached share of each model call, and why agents were built anew

const REASONS = {
  cold: "there was none in memory", signature: "its description changed",
  "foreign-write": "another process wrote to the session", evicted: "the cache was full",
  abandoned: "the earlier one did not stop in time",
};
const share = (each) => bar(cachedShare(each), ratio(cachedShare(each)));

export const cache = (root, state, key) => (key ? one : all)(root, state, key);

function all(root, state) {
  const top = cards(root);
  const seen = () => state.runtime.cache;
  let found = [];
  const list = table(root, "Cached input by conversation", "No conversation has called a model yet.",
    (each) => each.session_key, [
      ["Conversation", (each) => to(each.title || each.session_key, "live", "cache", each.session_key), "wide"],
      ["Cached", share],
      ["Calls", (each) => counted(each.calls, "live", "cache", each.session_key), "number"],
      ["Input tokens", (each) => format.shortCount(input(each)), "number"],
      ["Used", (each) => format.relative(each.last_active), "number"],
    ], () => found);
  const read = fetching(() => get("/api/live/cache"), ({ conversations }) => { found = conversations; list(); });
  const shows = [
    stat(top, "Turns with a cached agent", null, () => [ratio(seen().hit_rate), `${count(seen().hits)} of ${count(seen().hits + seen().misses)}`]),
    stat(top, "Input from provider caches", null, () => [ratio(seen().cached_token_share), "since the start"]),
    stat(top, "Cached agents", link("live", "actors"), () => [count(seen().agents), `at most ${count(seen().agent_limit)}`]),
    stat(top, "Transcripts in memory", link("live", "actors"), () => [format.bytes(seen().transcript_bytes), `at most ${format.bytes(seen().transcript_limit)}`]),
    table(root, "Agents built since the start", "No agent was built yet.", ([reason]) => reason, [
      ["Reason", ([reason]) => reason], ["Because", ([reason]) => REASONS[reason], "wide"],
      ["Agents", ([, number]) => count(number), "number"],
    ], () => Object.entries(seen().rebuilds)),
    list,
    () => read(JSON.stringify([seen().hits, seen().misses, state.runtime.turns])),
  ];
  return { render: () => shows.forEach((show) => show()) };
}

function one(root, state, key) {
  const chart = h("div", { class: "chart", "aria-hidden": "true" });
  const said = h("p", { class: "muted small-text" });
  const list = h("ol", { class: "calls" });
  root.append(h("p", null, conversation(key), " · ", to("Lineage", "live", "lineage", key)),
    h("section", { class: "card" }, h("h2", null, "Cached share of the input tokens of each call"), chart, said),
    h("section", { class: "card" }, h("h2", null, "Calls and rebuilds, the latest first"), list));
  const read = fetching(() => get(`/api/live/cache/${encodeURIComponent(key)}`), show);
  return { render() {
    const actor = state.actors.get(key);
    read(`${actor?.turn_id} ${actor?.used_at}`);
  } };

  function show({ calls, rebuilds }) {
    replace(chart, [...calls].reverse().map((each) => {
      const element = h("i");
      element.style.setProperty("--share", `${2 + (cachedShare(each) ?? 0) * 98}%`);
      return element;
    }));
    const whole = calls.reduce((sum, each) => sum + input(each), 0);
    said.textContent = whole ? `${format.percent(total(calls, "cache_read_tokens") / whole)} of the input of the latest `
      + `${plural(calls.length, "call")} came from the provider's cache.` : "This conversation has called no model yet.";
    const rest = new Set(rebuilds);
    replace(list, calls.map((call, at) => {
      const first = call.build_reason && calls[at + 1]?.turn_id !== call.turn_id;
      const rebuild = first && rebuilds.find((each) => rest.has(each) && each.reason === call.build_reason
        && each.at <= call.created_at + 1);
      rest.delete(rebuild);
      return [row(key, call), first && built(key, call.build_reason, rebuild, call.turn_id)];
    }), [...rest].map((each) => built(key, each.reason, each)));
  }
}

const row = (key, call) => h("li", { class: "call" }, share(call),
  h("span", null, `${count(call.cache_read_tokens)} of ${count(input(call))}`),
  h("span", { class: "muted" }, [call.purpose, call.model].filter(Boolean).join(" · ")),
  call.turn_id ? to(`turn ${call.turn_id}`, "turns", key, call.turn_id) : h("span"),
  h("time", { class: "muted", title: format.dateTime(call.created_at) }, format.when(call.created_at)));

const prompts = new Map(); // comparisons by conversation and turn

/** Why an agent was built, and what differs: of the prompts if they were recorded. */
function built(key, reason, rebuild, turn) {
  const shown = h("div", null, described(rebuild));
  const path = `/api/live/cache/${encodeURIComponent(key)}/turns/${turn}`;
  if (turn && !prompts.has(path)) prompts.set(path, get(path).catch(() => ({})));
  prompts.get(path)?.then(({ difference: found, extended, exact, reasons }) => found && replace(shown,
    extended ? h("p", { class: "small-text" }, `The prompt continues the earlier one: ${count(found.offset)} bytes are the same.`)
      : difference(found), !exact && h("p", { class: "muted small-text" }, `Not exact: ${reasons.join("; ")}.`)));
  return h("li", { class: "built" }, icon("retry"), h("div", null, h("p", null,
    h("strong", null, `The agent was built: ${reason}`), `, because ${REASONS[reason]}.`), shown));
}

function described(rebuild) {
  if (rebuild?.difference) return difference(rebuild.difference);
  return h("p", { class: "muted small-text" }, rebuild
    ? "Model, tools, prompt and settings are the same. The bytes of the prompts are unknown."
    : "What it replaced is not known.");
}

/** The first byte that differs, with what is around it. */
function difference(found) {
  const line = (kind, text) => {
    const same = new TextDecoder().decode(new TextEncoder().encode(text).slice(0, found.offset - found.shown_from));
    const [first, ...others] = text.slice(same.length);
    return h("div", { class: kind }, h("code", null, kind === "old" ? "− " : "+ ", found.shown_from > 0 && "…", same,
      h("mark", null, first ?? "␃"), others.join("")));
  };
  return h("div", null, h("p", { class: "small-text" }, badge(found.part), ` first differing byte: ${count(found.offset)}`),
    (found.before || found.after) && [line("old", found.before), line("new", found.after)]);
}
