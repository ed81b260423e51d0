// The live view of operators: one stream brings the state of the runtime and then what changes.

import { get, serverNow } from "../lib/api.js";
import { h, icon, keyed, replace, set, text } from "../lib/dom.js";
import * as format from "../lib/format.js";
import { link } from "../lib/router.js";
import { fail, showConnection } from "../lib/status.js";
import { subscribe } from "../lib/streams.js";

const { count, money, plural } = format;
const sessions = (name) => async (...given) => (await import("./sessions.js"))[name](...given);
const TABS = {
  overview: ["Overview", overview],
  actors: ["Conversations", conversations],
  lineage: ["Lineage", sessions("lineage")],
  cache: ["Cache", sessions("cache")],
  delivery: ["Delivery", delivery],
  store: ["Store", store],
  limits: ["Limits", limits],
};
const KEYS = { actors: "session_key", lanes: "lane" };

/** Open the view. The route is `#/live/<tab>/<name>`. */
export async function open(container, params) {
  await style();
  const state = {};
  const links = Object.entries(TABS).map(([id, [label]]) => h("a", { href: link("live", id) }, label));
  const root = h("section", { class: "live-panel" });
  replace(container, h("div", { class: "live" }, h("h1", { class: "visually-hidden" }, "Live view"),
    h("nav", { class: "live-tabs", "aria-label": "Live view" }, links), root));
  let tab = null;
  let frame = 0;
  let newest = 0;
  const end = subscribe("/api/live/events", {
    onReset(data) {
      Object.assign(state, data);
      for (const [name, key] of Object.entries(KEYS)) {
        state[name] = new Map(data[name].map((each) => [each[key], each]));
      }
      state.count = data.runtime.commits.count;
      state.wal ??= [];
      state.backlog ??= [];
      render();
    },
    onEvent(_, data) {
      for (const [name, value] of Object.entries(data)) {
        if (KEYS[name]) for (const each of value) state[name].set(each[KEYS[name]], each);
        else if (name.endsWith("_gone")) for (const key of value) state[name.slice(0, -5)].delete(key);
        else state[name] = value;
      }
      render();
    },
    onState: showConnection,
  });
  const clock = setInterval(() => { // ages grow, and so do the lines of the store
    if (!state.at) return;
    const { runtime: { commits: { count } }, store } = state;
    const note = (name, value) => { state[name] = [...state[name].slice(-59), value]; };
    note("commits", Math.max(0, count - state.count));
    note("wal", store?.wal_bytes ?? 0);
    note("backlog", store?.unindexed ?? 0);
    state.count = count;
    if (!document.hidden) render();
  }, 1000);
  await update(params);
  return { update, close() {
    newest += 1;
    clearInterval(clock);
    cancelAnimationFrame(frame);
    end();
    tab?.close?.();
    showConnection("idle");
  } };

  async function update([route]) {
    const [given, ...rest] = (route ?? "").split("/");
    const id = TABS[given] ? given : "overview";
    Object.keys(TABS).forEach((each, at) => set(links[at], { "aria-current": each === id && "page" }));
    links[Object.keys(TABS).indexOf(id)].scrollIntoView({ block: "nearest", inline: "center" });
    const mine = newest += 1;
    tab?.close?.();
    const opened = await TABS[id][1](replace(root), state, rest.join("/"));
    if (mine !== newest) return;
    tab = opened;
    render();
  }

  function render() {
    cancelAnimationFrame(frame);
    frame = requestAnimationFrame(() => state.at && tab?.render());
  }
}

function style() {
  const { href } = new URL("live.css", import.meta.url);
  return document.querySelector(`link[href="${href}"]`) ?? new Promise((done) => {
    document.head.append(h("link", { rel: "stylesheet", href, onload: done, onerror: done }));
  });
}

// Parts that the tabs share

const SVG = "http://www.w3.org/2000/svg";

/** Create an element of a drawing. */
export function draw(tag, props, ...children) {
  const element = set(document.createElementNS(SVG, tag), props);
  element.append(...children.filter(Boolean));
  return element;
}

/** A card with `[value, note, warns, chart]`, which links to what it counts. */
export function stat(root, label, href, values) {
  const parts = ["label", "value", "note", "chart"].map((name) => h("span", { class: `stat-${name}` }));
  const element = h(href ? "a" : "div", { class: "card stat", href }, parts);
  text(parts[0], label);
  root.append(element);
  return () => {
    const [value, note = "", warns = false, chart] = values();
    text(parts[1], String(value));
    text(parts[2], note);
    set(parts[2], { "data-warns": warns });
    if (chart) parts[3].replaceChildren(chart);
  };
}

export function sparkline(values, label) {
  const top = Math.max(1, ...values);
  const at = values.map((each, index) => `${index * 2},${28 - (each / top) * 26}`).join(" ");
  return draw("svg", { viewBox: "0 0 118 28", class: "spark", role: "img", "aria-label": label,
    preserveAspectRatio: "none" }, draw("polyline", { points: at }));
}

/** A share as a bar, with a text. */
export function bar(share, said) {
  const element = h("span", { class: "share" }, h("i"), h("span", null, said));
  element.firstChild.style.setProperty("--share", `${Math.min(1, share || 0) * 100}%`);
  return element;
}

/** A table in a card. Columns are `[title, cell(item), class]`; a cell is a text or a node. */
export function table(root, title, none, keyOf, columns, items) {
  const body = h("tbody");
  const empty = h("p", { class: "muted small-text" }, none);
  const box = h("div", { class: "table-box", tabindex: 0, role: "region", "aria-label": title },
    h("table", { class: "table" }, h("thead", null, h("tr", null, columns.map(([name, , kind]) =>
      h("th", { scope: "col", class: kind }, name)))), body));
  root.append(h("section", { class: "card" }, h("h2", null, title), box, empty));
  return () => {
    const found = items();
    keyed(body, found, keyOf, () => h("tr", null, columns.map(([, , kind]) => h("td", { class: kind }))),
      (row, item) => columns.forEach(([, cell], at) => put(row.cells[at], cell(item))));
    box.hidden = !found.length;
    empty.hidden = found.length > 0;
  };
}

/** Put a text or a node into an element. A link keeps the focus if only its text has changed. */
export function put(element, value) {
  const old = element.firstChild;
  if (!(value instanceof Node)) text(element, String(value ?? ""));
  else if (old?.tagName === "A" && value.tagName === "A") {
    set(old, { href: value.getAttribute("href") });
    if (!old.isEqualNode(value)) old.replaceChildren(...value.childNodes);
  } else if (!old?.isEqualNode?.(value)) element.replaceChildren(value);
}

/** Return a function that fetches when its argument has changed, one request at a time. */
export function fetching(get, show) {
  let seen;
  return async (now) => {
    if (seen === now || seen === fetching) return;
    seen = fetching;
    try {
      show(await get());
    } catch (error) {
      fail(error);
    }
    seen = now;
  };
}

export const cards = (root) => root.appendChild(h("div", { class: "stats" }));
export const to = (label, ...parts) => h("a", { href: link(...parts), class: "to" }, label);
/** A number that opens what it counts; a zero opens nothing. */
export const counted = (value, ...parts) => (value ? to(format.count(value), ...parts) : "0");
export const conversation = (key) => to(key, "c", key);
export const badge = (label, tone = "") => h("span", { class: `badge ${tone}` }, label);
export function age(since) {
  const seconds = Math.max(0, Math.floor(serverNow() - since));
  return seconds < 60 ? `${seconds} s` : format.duration(seconds);
}
export const stateOf = (actor) => (actor.turn_id ? "running" : actor.mailbox ? "waiting" : "idle");
export const ratio = (share) => (share === null ? "–" : format.percent(share));
export const total = (items, name) => items.reduce((sum, each) => sum + each[name], 0);
/** The input tokens of a call, and the share that came from the cache; null without input. */
export const input = (call) => call.input_tokens + call.cache_read_tokens + call.cache_write_tokens;
export const cachedShare = (call) => (input(call) ? call.cache_read_tokens / input(call) : null);

// Tabs that have cards and tables only

const live = (...parts) => link("live", ...parts);
const all = (shows) => ({ render: () => shows.forEach((show) => show()) });
const commits = (state) => [(state.commits.slice(-10).reduce((a, b) => a + b) / 10).toFixed(1),
  "mean of 10 seconds", false, sparkline(state.commits, "Commits in each of the last 60 seconds")];

function overview(root, state) {
  const top = cards(root);
  const notes = h("ul", { class: "attention" });
  const actors = (name) => [...state.actors.values()].filter((each) => stateOf(each) === name);
  const lanes = (name) => total([...state.lanes.values()], name);
  const running = () => actors("running").sort((a, b) => a.turn_started - b.turn_started);
  root.append(h("section", { class: "card" }, h("h2", null, "Attention"), notes));
  return all([
    stat(top, "Running turns", live("actors", "running"), () => [count(running().length),
      running().length ? `longest ${age(running()[0].turn_started)}` : ""]),
    stat(top, "Conversations in memory", live("actors"), () => [count(state.actors.size),
      plural(state.runtime.cache.agents, "cached agent")]),
    stat(top, "Messages without an answer", live("actors", "busy"), () => [
      count(state.store?.inbox_open ?? 0),
      state.store?.inbox_oldest_at ? `oldest ${age(state.store.inbox_oldest_at)}` : ""]),
    stat(top, "Undelivered replies", live("delivery"), () => [count(lanes("pending") + lanes("sending")),
      `${count(lanes("retried"))} retried, ${count(lanes("unknown"))} unknown`, lanes("unknown")]),
    stat(top, "Commits per second", live("store"), () => commits(state)),
    stat(top, "Turns with a cached agent", live("cache"), () => [
      state.runtime.cache.hit_rate === null ? "–" : format.percent(state.runtime.cache.hit_rate),
      plural(state.runtime.cache.misses, "build")]),
    stat(top, "Search index backlog", live("store"), () => [count(state.store?.unindexed ?? 0), "messages"]),
    stat(top, "Spent today", live("limits"), () => [money(state.costs.today.total),
      state.costs.budgets?.day ? `of ${money(state.costs.budgets.day)}` : "no daily limit"]),
    () => attention(notes, state, lanes),
    table(root, "Longest running turns", "No turn is running.", (each) => each.session_key, [
      ["Conversation", (each) => conversation(each.session_key), "wide"],
      ["Running for", (each) => to(age(each.turn_started), "turns", each.session_key, each.turn_id), "number"],
      ["Waiting", (each) => count(each.mailbox), "number"],
    ], () => running().slice(0, 8)),
  ]);
}

function attention(notes, { runtime, store, costs: { today, budgets }, actors }, lanes) {
  const slow = [...actors.values()].filter((each) => serverNow() - each.turn_started > 300
    && each.turn_id).length;
  const spent = today.total >= (budgets?.day ?? Infinity) * 0.8;
  const found = [
    [runtime.draining, "The runtime is ending and accepts nothing new.", "overview"],
    [!store, "The store does not answer.", "store"],
    [runtime.quarantined.length, `${plural(runtime.quarantined.length, "conversation")} paused after repeated failures`, "limits"],
    [lanes("unknown"), `${plural(lanes("unknown"), "reply", "replies")} with an unknown outcome`, "delivery"],
    [lanes("retried"), plural(lanes("retried"), "retry", "retries"), "delivery"],
    [store?.dead, `${plural(store?.dead, "reply", "replies")} given up within a day`, "delivery", "*"],
    [store?.wal_bytes > store?.wal_limit / 2, "The write-ahead log is more than half full", "store"],
    [spent, "The budget of the day is nearly spent", "limits"],
    [runtime.admission?.exhausted, `${plural(runtime.admission?.exhausted, "sender")} must wait for the rate limit`, "limits"],
    [slow, `${plural(slow, "turn")} running for more than five minutes`, "actors", "running"],
  ].filter(([condition]) => condition);
  const said = String(found);
  if (notes.dataset.said === said) return;
  notes.dataset.said = said;
  replace(notes, found.length ? found.map(([, text, ...parts]) => h("li", null, icon("warning"),
    to(text, "live", ...parts))) : h("li", { class: "fine" }, icon("check"), "Nothing needs attention."));
}

function delivery(root, state, name) {
  const lanes = () => [...state.lanes.values()];
  const number = (title, field) => [title, (each) => counted(each[field], "live", "delivery", each.lane), "number"];
  const oldest = ["Since", (each) => age(each.created_at ?? each.oldest_at), "number"];
  const owner = ["Conversation", (each) => conversation(each.session_key), "wide"];
  const shows = [table(root, "Chats with undelivered replies", "Every reply was delivered.", (each) => each.lane, [
    ["Chat", (each) => to(each.lane, "live", "delivery", each.lane), "wide"],
    number("Pending", "pending"), number("Sending", "sending"), number("Retries", "retried"),
    number("Unknown outcome", "unknown"), number("Attempts", "attempts"), oldest, owner,
  ], lanes)];
  const given = h("p", { class: "small-text" });
  root.append(given);
  shows.push(() => replace(given, to(`All undelivered replies, and ${count(state.store?.dead ?? 0)} given up within a day`,
    "live", "delivery", "*")));
  if (!name) return all(shows);
  let rows = [];
  const show = table(root, name === "*" ? "All replies" : `Replies to ${name}`, "No reply waits here.",
    (each) => each.outbox_id, [
      ["Reply", (each) => count(each.outbox_id), "number"],
      ["State", (each) => badge(each.state === "dead" ? "given up" : each.state, each.state === "dead" && "danger")],
      ["Outcome", (each) => (each.unknown ? badge("unknown", "warn") : "known")],
      ["Attempts", (each) => count(each.attempts), "number"], oldest,
      ["Text", (each) => each.preview, "wide"], ["Why", (each) => each.note ?? "–", "wide"], owner,
    ], () => rows);
  const read = fetching(() => get("/api/live/outbox", name === "*" ? {} : { lane: name }), (found) => {
    rows = found.rows;
    show();
  });
  shows.push(() => read(JSON.stringify([name === "*" ? lanes() : state.lanes.get(name), state.store?.dead])));
  return all(shows);
}

function store(root, state) {
  const top = cards(root);
  const times = (name) => () => [ms(state.runtime.commits[name]), "of the last minute"];
  const writer = (show) => () => (state.store ? show(state.store.writer) : ["–"]);
  const used = (now, limit) => bar(now / limit, `${format.percent(now / limit)} of ${count(limit)}`);
  return all([
    stat(top, "Turns committed per second", null, () => commits(state)),
    stat(top, "Commit, median", null, times("p50")),
    stat(top, "Commit, 99th percentile", null, times("p99")),
    stat(top, "Longest commit", null, times("longest")),
    stat(top, "Commits", null, writer((each) => [count(each.commits), `${plural(each.requests, "request")}, at most ${each.largest_batch} in one`])),
    stat(top, "Flushes to disk", null, writer((each) => [count(each.flushes), "commits that waited for the disk"])),
    stat(top, "Write-ahead log", null, () => [format.bytes(state.store?.wal_bytes ?? 0), "since the page was opened",
      false, sparkline(state.wal, "Size of the write-ahead log")]),
    stat(top, "Search index backlog", null, () => [count(state.store?.unindexed ?? 0), "since the page was opened",
      false, sparkline(state.backlog, "Messages that are not indexed yet")]),
    table(root, "Queues and sizes", "The store does not answer.", ([name]) => name, [
      ["What", ([name]) => name, "wide"], ["Now", ([, now]) => now, "number"], ["Limit", ([, , limit]) => limit ?? ""],
    ], () => (state.store ? sizes(state.store, used) : [])),
    table(root, "Duration of commits, since the start", "No turn was committed yet.", ([label]) => label, [
      ["Up to", ([label]) => label], ["Commits", ([, number]) => count(number), "number"],
      ["Share", ([, number, sum]) => bar(number / sum, format.percent(number / sum || 0))],
    ], () => state.runtime.commits.counts.map((number, at) => [
      at < state.commit_bounds.length ? ms(state.commit_bounds[at]) : "longer", number, state.runtime.commits.count])
      .filter(([, number]) => number)),
  ]);
}

const sizes = (store, used) => [
  ["Requests that wait for a commit", count(store.writer.waiting), used(store.writer.waiting, store.queue_limit)],
  ["Write-ahead log", format.bytes(store.wal_bytes), bar(store.wal_bytes / store.wal_limit,
    `${format.percent(store.wal_bytes / store.wal_limit)} of ${format.bytes(store.wal_limit)}`)],
  ["Database", format.bytes(store.database_bytes)],
  ["Messages without an answer", counted(store.inbox_open, "live", "actors", "busy")],
  ["Session boundaries whose hooks have not run", count(store.hooks_open)],
  ["Replies given up within a day", counted(store.dead, "live", "delivery", "*")],
];

const ms = (seconds) => (seconds < 0.01 ? `${(seconds * 1000).toFixed(1)} ms` : format.duration(seconds));

function limits(root, state) {
  const halves = root.appendChild(h("div", { class: "halves" }));
  const budget = (name, spent) => ["Budget", (each) => {
    const limit = state.costs.budgets?.[name];
    return limit ? bar(spent(each) / limit, `${format.percent(spent(each) / limit)} of ${money(limit)}`) : "no limit";
  }];
  const cost = ["Spent", (each) => money(each.cost), "number"];
  const owner = ["Conversation", (each) => (each.session_key ? to(each.session_key, "live", "lineage", each.session_key)
    : each.session_id), "wide"];
  const today = () => state.costs.today;
  const rates = () => state.runtime.admission;
  const said = h("p", { class: "muted small-text" });
  const shows = [
    table(halves, "Budget of the day", "", () => 0, [["Who", () => "everybody"], cost, budget("day", (each) => each.cost)],
      () => [{ cost: today().total }]),
    table(halves, "Users who spent most today", "Nobody has spent anything today.", (each) => each.payer,
      [["User", (each) => each.payer, "wide"], cost, budget("principal", (each) => each.cost)], () => today().payers),
    table(halves, "Sessions that cost most", "No session has spent anything today.", (each) => each.session_id,
      [owner, cost, budget("session", (each) => each.cost)], () => today().sessions),
    table(halves, "Running compressions", "No conversation is being compressed.", (each) => each.session_id,
      [owner, ["Holder of the lease", (each) => each.holder, "wide"],
        ["Ends in", (each) => format.countdown(each.expires_at - serverNow()), "number"]], () => state.leases),
    table(halves, "Rate limits", "No sender is limited.", (each) => each.platform + each.account + each.sender, [
      ["Sender", (each) => `${each.platform} ${each.account} ${each.sender}`, "wide"],
      ["Messages left", (each) => String(Math.floor(each.left)), "number"],
      ["State", (each) => (each.left < 1 ? badge("must wait", "warn") : "may send")],
    ], () => rates()?.lowest ?? []),
    table(halves, "Paused conversations", "No conversation is paused.", (each) => each,
      [["Conversation", conversation, "wide"], ["State", () => badge("failed repeatedly", "danger")]],
      () => state.runtime.quarantined),
    () => {
      said.textContent = rates() ? `Senders may send ${count(rates().per_minute)} messages a minute, ${rates().burst} at once. `
        + `${plural(rates().refused, "message")} refused so far.` : "";
    },
  ];
  root.append(said);
  return all(shows);
}

// The conversations in memory: a table of any length, of which only the rows in sight are built

const STATES = ["running", "waiting", "idle"];
const CHOICES = ["", "busy", ...STATES];
// Each column: its title, its value for sorting, and its cell.
const COLUMNS = [
  ["Conversation", (each) => each.session_key, (each) => conversation(each.session_key)],
  ["State", (each) => STATES.indexOf(stateOf(each)), (each) => h("span",
    { class: "state", "data-state": stateOf(each) }, stateOf(each))],
  ["Mailbox", (each) => -each.mailbox, (each) => format.count(each.mailbox)],
  ["Turn", (each) => each.turn_started ?? Infinity, (each) => (each.turn_id
    ? to(age(each.turn_started), "turns", each.session_key, each.turn_id) : "–")],
  ["Agent", (each) => `${each.agent ? 0 : 1}${each.last_build ?? "~"}`, (each) => to(
    [each.agent ? "cached" : "none", each.last_build].filter(Boolean).join(" · "), "live", "cache", each.session_key)],
  ["Transcript", (each) => -each.transcript_bytes, (each) => format.bytes(each.transcript_bytes)],
  ["Used", (each) => -each.used_at, (each) => format.relative(each.used_at, serverNow())],
  ["Lineage", null, (each) => h("a", { href: link("live", "lineage", each.session_key), title: "Lineage",
    "aria-label": `Lineage of ${each.session_key}` }, icon("branch"))],
];
const kept = { column: 6, reverse: false, words: "" }; // also after the tab was left
const narrow = matchMedia("(max-width: 760px)");

function conversations(root, state, only) {
  const said = h("p", { class: "muted small-text", role: "status" });
  const words = h("input", { class: "field", type: "search", placeholder: "Filter by key", value: kept.words,
    "aria-label": "Filter by key", oninput() { kept.words = words.value; box.scrollTop = 0; render(); } });
  const choice = h("select", { class: "field", "aria-label": "State", onchange() {
    location.hash = link("live", "actors", choice.value);
  } }, CHOICES.map((each) => h("option", { value: each, selected: each === only }, each || "All states")));
  const heads = COLUMNS.map(([title, value], at) => h("div", { role: "columnheader" }, value ? h("button",
    { type: "button", onclick: () => sort(at) }, title) : h("span", { class: "visually-hidden" }, title)));
  const rows = h("div", { role: "rowgroup", class: "actors" });
  const box = h("div", { class: "actor-box", role: "table", "aria-label": "Conversations in memory", tabindex: 0,
    onscroll: show }, h("div", { role: "rowgroup", class: "actor-head" }, h("div", { role: "row", class: "actor" }, heads)), rows);
  root.append(h("div", { class: "filters" }, words, choice, said), box);
  const resized = new ResizeObserver(show);
  resized.observe(box);
  let found = [];
  return { render, close: () => resized.disconnect() };

  function sort(column) {
    Object.assign(kept, { column, reverse: kept.column === column && !kept.reverse });
    render();
  }

  function render() {
    const value = COLUMNS[kept.column][1];
    const order = kept.reverse ? -1 : 1;
    found = [...state.actors.values()].filter((each) => (!only || (only === "busy" ? stateOf(each) !== "idle" : stateOf(each) === only))
      && each.session_key.toLowerCase().includes(kept.words.toLowerCase()))
      .map((each) => [value(each), each])
      .sort(([a, x], [b, y]) => order * (a < b ? -1 : a > b ? 1 : x.session_key < y.session_key ? -1 : 1));
    heads.forEach((each, at) => set(each, { "aria-sort": at === kept.column
      && (kept.reverse ? "descending" : "ascending") }));
    text(said, `${format.count(found.length)} of ${format.count(state.actors.size)}`);
    show();
  }

  /** Build the rows in sight, and keep the one that has the focus. */
  function show() {
    const height = narrow.matches ? 64 : 38;
    const first = box.scrollTop / height - 5;
    const last = (box.scrollTop + box.clientHeight) / height + 5;
    const focused = document.activeElement?.closest(".actor")?.dataset.key;
    const seen = found.map(([, each], at) => [each, at]).filter(([each, at]) =>
      (at > first && at < last) || each.session_key === focused);
    rows.style.height = `${found.length * height}px`;
    set(box, { "aria-rowcount": found.length + 1 });
    keyed(rows, seen, ([each]) => each.session_key, ([each]) => h("div",
      { role: "row", class: "actor", "data-key": each.session_key }, COLUMNS.map(() => h("div", { role: "cell" }))),
    (row, [each, at]) => {
      set(row, { "aria-rowindex": at + 2 });
      row.style.transform = `translateY(${at * height}px)`;
      COLUMNS.forEach(([, , cell], column) => put(row.children[column], cell(each)));
    });
  }
}
