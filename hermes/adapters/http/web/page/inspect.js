// What can be looked into: the live view of operators, and recorded turns.

import { conversation, get, post, serverNow, subscribe } from "./lib/api.js";
import {
  announce, attempt, button, bytes, count, countdown, dateTime, duration, go, h, icon, keyed, link,
  money, narrow, openDialog, percent, plural, pretty, relative, replace, set, shortCount,
  showConnection, text, when,
} from "./lib/dom.js";

// The live view: one stream brings the state of the runtime and then what changes.

const TABS = {
  overview: ["Overview", overview],
  actors: ["Conversations", conversations],
  lineage: ["Lineage", lineage],
  cache: ["Cache", cache],
  delivery: ["Delivery", delivery],
  store: ["Store", store],
  limits: ["Limits", limits],
  nodes: ["Nodes", nodes],
};
const KEYS = { actors: "session_key", lanes: "lane", claims: "session_key" };

/** Open the view. The route is `#/live/<tab>/<name>`. */
export async function openLive(container, params) {
  const state = {};
  const links = Object.entries(TABS).map(([id, [label]]) => h("a", { href: link("live", id) }, label));
  links.at(-1).hidden = true; // until it is known that there are nodes
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
      links.at(-1).hidden = !data.nodes.length;
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

// Parts that the tabs share

const SVG = "http://www.w3.org/2000/svg";

/** Create an element of a drawing. */
function draw(tag, props, ...children) {
  const element = set(document.createElementNS(SVG, tag), props);
  element.append(...children.filter(Boolean));
  return element;
}

/** A card with `[value, note, warns, chart]`, which links to what it counts. */
function stat(root, label, href, values) {
  const parts = ["label", "value", "note", "chart"].map((name) => h("span", { class: `stat-${name}` }));
  const element = h(href ? "a" : "div", { class: "card stat", href }, parts);
  text(parts[0], label);
  root.append(element);
  return () => {
    const [value, note = "", warns = false, chart] = values();
    text(parts[1], String(value));
    text(parts[2], note);
    set(parts[2], { "data-warns": warns > 0 });
    if (chart) parts[3].replaceChildren(chart);
  };
}

function sparkline(values, label) {
  const top = Math.max(1, ...values);
  const at = values.map((each, index) => `${index * 2},${28 - (each / top) * 26}`).join(" ");
  return draw("svg", { viewBox: "0 0 118 28", class: "spark", role: "img", "aria-label": label,
    preserveAspectRatio: "none" }, draw("polyline", { points: at }));
}

/** A share as a bar, with a text. */
function bar(share, said) {
  const element = h("span", { class: "share" }, h("i"), h("span", null, said));
  element.firstChild.style.setProperty("--share", `${Math.min(1, share || 0) * 100}%`);
  return element;
}

/** A table in a card. Columns are `[title, cell(item), class]`; a cell is a text or a node. */
function table(root, title, none, keyOf, columns, items) {
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
function put(element, value) {
  const old = element.firstChild;
  if (!(value instanceof Node)) text(element, String(value ?? ""));
  else if (old?.tagName === "A" && value.tagName === "A") {
    set(old, { href: value.getAttribute("href") });
    if (!old.isEqualNode(value)) old.replaceChildren(...value.childNodes);
  } else if (!old?.isEqualNode?.(value)) element.replaceChildren(value);
}

/** Return a function that fetches when its argument has changed, one request at a time. */
function fetching(get, show) {
  let seen;
  return async (now) => {
    if (seen === now || seen === fetching) return;
    seen = fetching;
    await attempt(async () => show(await get()));
    seen = now;
  };
}

const cards = (root) => root.appendChild(h("div", { class: "stats" }));
const to = (label, ...parts) => h("a", { href: link(...parts), class: "to" }, label);
/** A number that opens what it counts; a zero opens nothing. */
const counted = (value, ...parts) => (value ? to(count(value), ...parts) : "0");
const chatOf = (key) => to(key, "c", key);
const badge = (label, tone = "") => h("span", { class: `badge ${tone}` }, label);
function age(since) {
  const seconds = Math.max(0, Math.floor(serverNow() - since));
  return seconds < 60 ? `${seconds} s` : duration(seconds);
}
const stateOf = (actor) => (actor.turn_id ? "running" : actor.mailbox ? "waiting" : "idle");
const ratio = (share) => (share === null ? "–" : percent(share));
const total = (items, name) => items.reduce((sum, each) => sum + each[name], 0);
/** The input tokens of a call, and the share that came from the cache; null without input. */
const input = (call) => call.input_tokens + call.cache_read_tokens + call.cache_write_tokens;
const cachedShare = (call) => (input(call) ? call.cache_read_tokens / input(call) : null);

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
      state.runtime.cache.hit_rate === null ? "–" : percent(state.runtime.cache.hit_rate),
      plural(state.runtime.cache.misses, "build")]),
    stat(top, "Search index backlog", live("store"), () => [count(state.store?.unindexed ?? 0), "messages"]),
    stat(top, "Spent today", live("limits"), () => [money(state.costs.today.total),
      state.costs.budgets?.day ? `of ${money(state.costs.budgets.day)}` : "no daily limit"]),
    () => attention(notes, state, lanes),
    dots(root, state),
    table(root, "Longest running turns", "No turn is running.", (each) => each.session_key, [
      ["Conversation", (each) => chatOf(each.session_key), "wide"],
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

const MAX_DOTS = 2000;
const SPACE = 14; // pixels from one dot to the next

/** Each conversation in memory as a dot that keeps its place, with the colour of its state. */
function dots(root, state) {
  const said = STATES.map((name) => h("a", { href: live("actors", name), class: "state to", "data-state": name }));
  const paths = STATES.map((name) => draw("path", { class: name }));
  const map = draw("svg", { "aria-hidden": "true" }, ...paths);
  root.append(h("section", { class: "card dot-map" }, h("h2", null, "Conversations in memory"), h("p", null, said), map));
  return () => {
    const columns = Math.max(1, Math.floor(map.clientWidth / SPACE));
    const [lines, counts] = [{}, {}];
    let at = 0;
    for (const name of [...state.actors.values()].map(stateOf)) {
      counts[name] = (counts[name] ?? 0) + 1;
      if (at < MAX_DOTS) lines[name] = `${lines[name] ?? ""}M${(at % columns + 0.5) * SPACE} ${(Math.floor(at / columns) + 0.5) * SPACE}h0`;
      at += 1;
    }
    set(map, { height: SPACE * Math.ceil(Math.min(at, MAX_DOTS) / columns) });
    STATES.forEach((name, number) => {
      set(paths[number], { d: lines[name] ?? "" });
      text(said[number], `${count(counts[name] ?? 0)} ${name}`);
    });
  };
}

function delivery(root, state, name) {
  const lanes = () => [...state.lanes.values()];
  const number = (title, field) => [title, (each) => counted(each[field], "live", "delivery", each.lane), "number"];
  const oldest = ["Since", (each) => age(each.created_at ?? each.oldest_at), "number"];
  const owner = ["Conversation", (each) => chatOf(each.session_key), "wide"];
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
  const used = (now, limit) => bar(now / limit, `${percent(now / limit)} of ${count(limit)}`);
  return all([
    stat(top, "Turns committed per second", null, () => commits(state)),
    stat(top, "Commit, median", null, times("p50")),
    stat(top, "Commit, 99th percentile", null, times("p99")),
    stat(top, "Longest commit", null, times("longest")),
    stat(top, "Commits", null, writer((each) => [count(each.commits), `${plural(each.requests, "request")}, at most ${each.largest_batch} in one`])),
    stat(top, "Flushes to disk", null, writer((each) => [count(each.flushes), "commits that waited for the disk"])),
    stat(top, "Write-ahead log", null, () => [bytes(state.store?.wal_bytes ?? 0), "since the page was opened",
      false, sparkline(state.wal, "Size of the write-ahead log")]),
    stat(top, "Search index backlog", null, () => [count(state.store?.unindexed ?? 0), "since the page was opened",
      false, sparkline(state.backlog, "Messages that are not indexed yet")]),
    table(root, "Queues and sizes", "The store does not answer.", ([name]) => name, [
      ["What", ([name]) => name, "wide"], ["Now", ([, now]) => now, "number"], ["Limit", ([, , limit]) => limit ?? ""],
    ], () => (state.store ? sizes(state.store, used) : [])),
    table(root, "Duration of commits, since the start", "No turn was committed yet.", ([label]) => label, [
      ["Up to", ([label]) => label], ["Commits", ([, number]) => count(number), "number"],
      ["Share", ([, number, sum]) => bar(number / sum, percent(number / sum || 0))],
    ], () => state.runtime.commits.counts.map((number, at) => [
      at < state.commit_bounds.length ? ms(state.commit_bounds[at]) : "longer", number, state.runtime.commits.count])
      .filter(([, number]) => number)),
  ]);
}

const sizes = (store, used) => [
  ["Requests that wait for a commit", count(store.writer.waiting), used(store.writer.waiting, store.queue_limit)],
  ["Write-ahead log", bytes(store.wal_bytes), bar(store.wal_bytes / store.wal_limit,
    `${percent(store.wal_bytes / store.wal_limit)} of ${bytes(store.wal_limit)}`)],
  ["Database", bytes(store.database_bytes)],
  ["Messages without an answer", counted(store.inbox_open, "live", "actors", "busy")],
  ["Session boundaries whose hooks have not run", count(store.hooks_open)],
  ["Replies given up within a day", counted(store.dead, "live", "delivery", "*")],
];

const ms = (seconds) => (seconds < 0.01 ? `${(seconds * 1000).toFixed(1)} ms` : duration(seconds));

function limits(root, state) {
  const halves = root.appendChild(h("div", { class: "halves" }));
  const budget = (name, spent) => ["Budget", (each) => {
    const limit = state.costs.budgets?.[name];
    return limit ? bar(spent(each) / limit, `${percent(spent(each) / limit)} of ${money(limit)}`) : "no limit";
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
        ["Ends in", (each) => countdown(each.expires_at - serverNow()), "number"]], () => state.leases),
    table(halves, "Rate limits", "No sender is limited.", (each) => each.platform + each.account + each.sender, [
      ["Sender", (each) => `${each.platform} ${each.account} ${each.sender}`, "wide"],
      ["Messages left", (each) => String(Math.floor(each.left)), "number"],
      ["State", (each) => (each.left < 1 ? badge("must wait", "warn") : "may send")],
    ], () => rates()?.lowest ?? []),
    table(halves, "Paused conversations", "No conversation is paused.", (each) => each,
      [["Conversation", chatOf, "wide"], ["State", () => badge("failed repeatedly", "danger")]],
      () => state.runtime.quarantined),
    () => {
      said.textContent = rates() ? `Senders may send ${count(rates().per_minute)} messages a minute, ${rates().burst} at once. `
        + `${plural(rates().refused, "message")} refused so far.` : "";
    },
  ];
  root.append(said);
  return all(shows);
}

// The cluster: its nodes, and which of them serves which conversation

function nodes(root, state, only) {
  const label = (each) => `${each.node}: ${each.name}`;
  const named = (id) => state.nodes.filter((each) => each.node === id).map(label)[0] ?? `node ${id}`;
  const number = (each) => each.moved_at ?? 0;
  return all([
    table(root, "Nodes", "This process has its store for itself.", (each) => each.node, [
      ["Node", label, "wide"],
      ["State", (each) => (each.draining ? badge("handing over", "warn") : badge(each.here ? "this page" : "running",
        each.here && "accent"))],
      ["Conversations", (each) => counted(each.owned, "live", "nodes", each.node), "number"],
      ["Lease ends in", (each) => countdown(each.lease_until - serverNow()), "number"],
      ["Roles", (each) => each.roles.join(", ") || "–", "wide"],
    ], () => state.nodes),
    table(root, only ? `Conversations of ${named(Number(only))}` : "Conversations, those that moved last first",
      "No node serves a conversation.", (each) => each.session_key, [
        ["Conversation", (each) => chatOf(each.session_key), "wide"],
        ["Node", (each) => to(named(each.node), "live", "nodes", each.node)],
        ["Moved", (each) => (each.moved_at ? `from ${named(each.before)}, ${relative(each.moved_at, serverNow())}` : "–")],
      ], () => [...state.claims.values()].filter((each) => !only || each.node === Number(only))
        .sort((a, b) => number(b) - number(a)).slice(0, 200)),
  ]);
}

// The conversations in memory: a table of any length, of which only the rows in sight are built

const STATES = ["running", "waiting", "idle"];
const CHOICES = ["", "busy", ...STATES];
// Each column: its title, its value for sorting, and its cell.
const COLUMNS = [
  ["Conversation", (each) => each.session_key, (each) => chatOf(each.session_key)],
  ["State", (each) => STATES.indexOf(stateOf(each)), (each) => h("span",
    { class: "state", "data-state": stateOf(each) }, stateOf(each))],
  ["Mailbox", (each) => -each.mailbox, (each) => count(each.mailbox)],
  ["Turn", (each) => each.turn_started ?? Infinity, (each) => (each.turn_id
    ? to(age(each.turn_started), "turns", each.session_key, each.turn_id) : "–")],
  ["Agent", (each) => `${each.agent ? 0 : 1}${each.last_build ?? "~"}`, (each) => to(
    [each.agent ? "cached" : "none", each.last_build].filter(Boolean).join(" · "), "live", "cache", each.session_key)],
  ["Transcript", (each) => -each.transcript_bytes, (each) => bytes(each.transcript_bytes)],
  ["Used", (each) => -each.used_at, (each) => relative(each.used_at, serverNow())],
  ["Lineage", null, (each) => h("a", { href: link("live", "lineage", each.session_key), title: "Lineage",
    "aria-label": `Lineage of ${each.session_key}` }, icon("branch"))],
];
const kept = { column: 6, reverse: false, words: "" }; // also after the tab was left

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
    text(said, `${count(found.length)} of ${count(state.actors.size)}`);
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

// What the sessions of a conversation are made of: their lineage, and the cache of their prompts.

// The lineage: a drawing beside a list, a row per session, the oldest first. A compression continues
// its line; a branch or a fork begins another one.

const ROW = 56;
const STEP = 22;
const SIGNS = {
  new: "M6 0A6 6 0 1 1-6 0A6 6 0 1 1 6 0", compression: "M0-7L7 0L0 7L-7 0Z", branch: "M-6 5L0-6L6 5Z",
  fork: "M-5-5H5V5H-5Z",
};
const sign = (kind) => draw("path", { d: SIGNS[kind] ?? SIGNS.new, class: `sign ${kind}` });

function lineage(root, state, key) {
  if (!key) return choose(root, state);
  const map = h("div", { class: "map" });
  const list = h("ol", { class: "sessions" });
  const detail = h("section", { class: "card detail", "aria-label": "The session" });
  root.append(h("p", null, chatOf(key), " · ", to("Cache", "live", "cache", key)),
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
      Cost: money(each.cost), Began: dateTime(each.started_at),
      Ended: each.ended_at && `${dateTime(each.ended_at)}: ${each.end_reason}`,
      "Continues here": each.keys.length > 0 && h("span", null, each.keys.map(chatOf)) };
    replace(detail, h("h2", null, each.title || id, " ", badge(each.kind)), h("dl", null, Object.entries(facts)
      .filter(([, value]) => value).map(([name, value]) => [h("dt", null, name), h("dd", null, value)])), summary);
    if (!each.summary) return;
    await attempt(async () => {
      replace(summary, replacement(await get(`/api/live/summaries/${encodeURIComponent(id)}`)));
      if (asked) announce(`The summary replaced ${plural(each.summary.count, "message")}.`);
    });
  }
}

/** Before a conversation is chosen. */
function choose(root, state) {
  const field = h("input", { class: "field", required: true, placeholder: "Session key", "aria-label": "Session key",
    autocomplete: "off" });
  root.append(h("form", { class: "filters", onsubmit(event) {
    event.preventDefault();
    location.hash = link("live", "lineage", field.value);
  } }, field, h("button", { class: "button primary" }, "Show the lineage")));
  return all([table(root, "Conversations in memory, the latest first", "There is none.", (each) => each.session_key, [
    ["Conversation", (each) => to(each.session_key, "live", "lineage", each.session_key), "wide"],
    ["Used", (each) => relative(each.used_at, serverNow()), "number"],
  ], () => [...state.actors.values()].sort((a, b) => b.used_at - a.used_at).slice(0, 50))]);
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
    badge(row.role), h("time", { class: "muted", title: dateTime(row.timestamp) }, when(row.timestamp)),
    h("p", null, (row.text || row.tool_calls.map(({ name }) => name).join(", ")).slice(0, 300))))),
];

// The cached share of each model call, and why agents were built anew

const REASONS = {
  cold: "there was none in memory", signature: "its description changed",
  "foreign-write": "another process wrote to the session", evicted: "the cache was full",
  abandoned: "the earlier one did not stop in time",
};
const share = (each) => bar(cachedShare(each), ratio(cachedShare(each)));

function cache(root, state, key) {
  return (key ? cacheOfOne : cacheOfAll)(root, state, key);
}

function cacheOfAll(root, state) {
  const top = cards(root);
  const seen = () => state.runtime.cache;
  let found = [];
  const list = table(root, "Cached input by conversation", "No conversation has called a model yet.",
    (each) => each.session_key, [
      ["Conversation", (each) => to(each.title || each.session_key, "live", "cache", each.session_key), "wide"],
      ["Cached", share],
      ["Calls", (each) => counted(each.calls, "live", "cache", each.session_key), "number"],
      ["Input tokens", (each) => shortCount(input(each)), "number"],
      ["Used", (each) => relative(each.last_active), "number"],
    ], () => found);
  const read = fetching(() => get("/api/live/cache"), ({ conversations }) => { found = conversations; list(); });
  const shows = [
    stat(top, "Turns with a cached agent", null, () => [ratio(seen().hit_rate), `${count(seen().hits)} of ${count(seen().hits + seen().misses)}`]),
    stat(top, "Input from provider caches", null, () => [ratio(seen().cached_token_share), "since the start"]),
    stat(top, "Cached agents", link("live", "actors"), () => [count(seen().agents), `at most ${count(seen().agent_limit)}`]),
    stat(top, "Transcripts in memory", link("live", "actors"), () => [bytes(seen().transcript_bytes), `at most ${bytes(seen().transcript_limit)}`]),
    table(root, "Agents built since the start", "No agent was built yet.", ([reason]) => reason, [
      ["Reason", ([reason]) => reason], ["Because", ([reason]) => REASONS[reason], "wide"],
      ["Agents", ([, number]) => count(number), "number"],
    ], () => Object.entries(seen().rebuilds)),
    list,
    () => read(JSON.stringify([seen().hits, seen().misses, state.runtime.turns])),
  ];
  return all(shows);
}

function cacheOfOne(root, state, key) {
  const chart = h("div", { class: "chart", "aria-hidden": "true" });
  const said = h("p", { class: "muted small-text" });
  const list = h("ol", { class: "calls" });
  root.append(h("p", null, chatOf(key), " · ", to("Lineage", "live", "lineage", key)),
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
    said.textContent = whole ? `${percent(total(calls, "cache_read_tokens") / whole)} of the input of the latest `
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
  h("time", { class: "muted", title: dateTime(call.created_at) }, when(call.created_at)));

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

// One recorded turn: what the agent was given, what it answered, and the same turn run again.

const VERDICTS = {
  same: ["ok", "check", "These are the bytes that were sent: the hash is the same."],
  different: ["warn", "warning", "This is not exactly what was sent: the hash differs."],
  unknown: ["warn", "warning", "Whether this is what was sent is unknown."],
};
const OUTCOMES = { complete: "ok", partial: "warn", interrupted: "warn", failed: "danger" };
const EVENTS = { tool: "tool", retry: "retry", steered: "steer", approval: "key" };

/** Open a recorded turn of a conversation. */
export async function openTurn(container, [key, id]) {
  const page = h("div", { class: "page turn-page" });
  const leaving = new AbortController();
  replace(container, page);
  replace(page, h("div", { class: "skeleton turn-wait", role: "status" },
    h("span", { class: "visually-hidden" }, "The turn is loading.")));
  let turn;
  try {
    turn = await get(conversation(key, `/turns/${encodeURIComponent(id)}`), null,
      { signal: leaving.signal });
    await show(page, key, turn, leaving.signal);
  } catch (error) {
    if (error.name !== "AbortError") replace(page, missing(error, key));
  }
  return () => leaving.abort();
}

async function show(page, key, turn, signal) {
  const original = turn.repeats?.conversation ? await get(
    conversation(turn.repeats.conversation, `/turns/${turn.repeats.turn_id}`), null, { signal },
  ).catch(() => null) : null;
  const title = h("h1", { tabindex: "-1" }, original ? "Original and branch" : "Past turn");
  const again = button("Run again", { class: "primary",
    onclick: () => runAgain(key, turn) }, "retry", true);
  replace(page,
    h("header", { class: "turn-head" },
      h("div", null, title, h("p", { class: "muted small-text" },
        `Turn ${turn.turn_id}, ${dateTime(turn.started_at)}`)),
      h("div", { class: "turn-actions" },
        h("a", { class: "button", href: link("c", key) }, icon("chat"), "Open the chat"), again)),
    original ? compared(key, original, turn) : [summary(turn), ...sections(key, turn)]);
  title.focus();
  announce(original ? "The original and its branch are shown side by side." : "The turn is shown.");
}

function missing(error, key) {
  const gone = error.status === 404;
  return h("div", { class: "empty", role: "alert" }, icon("history"),
    h("h1", null, gone ? "This turn is not recorded" : "The turn cannot be shown"),
    h("p", null, gone ? "It is older than recording, recording is off, or its conversation was "
      + "deleted." : error.message),
    h("a", { class: "button", href: link("c", key) }, "Back to the chat"));
}

// The figures of a turn

function summary(turn) {
  const figures = [
    ["Outcome", badge(turn.status, OUTCOMES[turn.status])],
    ["Duration", duration(turn.ended_at - turn.started_at)],
    ["Model", turn.models.join(", ") || "unknown"],
    turn.agent && ["Agent", turn.agent],
    ["Model calls", count(turn.calls)],
    turn.calls && ["Input", inputOf(turn, "token")],
    turn.calls && ["Output", plural(turn.output_tokens, "token")],
    turn.cost !== null && ["Cost", money(turn.cost)],
  ].filter(Boolean);
  return [h("dl", { class: "card turn-figures numbers" }, figures.map(([name, value]) =>
    h("div", null, h("dt", null, name), h("dd", null, value)))),
  turn.error && note("error", "warning", turn.error)];
}

const inputOf = (used, what) =>
  `${plural(input(used), what)}, ${percent(cachedShare(used) ?? 0)} from the cache`;

const note = (kind, sign, text) => h("p", { class: `note ${kind}` }, icon(sign), h("span", null, text));

function sections(key, turn) {
  return [
    turn.model_calls.length ? turn.model_calls.map((call) => callCard(key, turn, call))
      : note("", "history", "This agent does not use the model client of Hermes. Its messages are "
        + "below; what it has sent to a model is unknown."),
    timeline(turn),
    h("section", null, h("h2", null, "What the agent answered"), missingRows(turn.missing),
      messageList(turn.messages)),
  ];
}

const missingRows = (number) => number > 0 && note("warn", "warning",
  `${plural(number, "message")} of this turn no longer exist.`);

function messageList(rows, marked = new Map()) {
  return h("ol", { class: "turn-messages" }, rows.map((row) => message(row, marked.get(row))));
}

function message(row, marks) {
  return h("li", { class: "turn-message", "data-role": row.role },
    badge(row.tool_name ? `${row.role}: ${row.tool_name}` : row.role),
    row.reasoning && fold("Reasoning", row.reasoning),
    row.text && h("div", { class: "turn-text" }, marks ?? row.text),
    (row.tool_calls ?? []).map((call) => h("p", { class: "turn-call" }, icon("tool"),
      h("code", null, `${call.name} ${call.arguments}`))),
    (row.parts ?? []).map((part) => h("p", { class: "turn-call" }, icon("file"),
      part.name || part.media_type || "file")));
}

// A call of the model

function callCard(key, turn, call) {
  const [kind, sign, text] = VERDICTS[call.verdict];
  const base = `/turns/${turn.turn_id}/calls/${call.number}`;
  const given = h("div", { class: "turn-given" });
  const body = h("div", null);
  return h("section", { class: "card turn-call-card", "aria-label": `Model call ${call.number + 1}` },
    h("h2", null, `Model call ${call.number + 1}`,
      badge(call.model ?? "unknown model"),
      call.error && badge(call.error, "danger")),
    h("p", { class: `turn-verdict ${kind}` }, icon(sign), h("span", null, text,
      call.reasons.length > 0 && ` ${sentence(call.reasons.join("; "))}`)),
    h("p", { class: "muted small-text numbers" }, usage(call)),
    call.system && fold("System prompt", call.system),
    call.tools.length > 0 && h("details", { class: "turn-fold" },
      h("summary", null, `Tools (${count(call.tools.length)})`), call.tools.map(toolEntry)),
    call.injected.map((each) => fold(`Injected (${each.role})`, each.content ?? "")),
    lazy(`Messages (${count(call.earlier + call.rows)})`, given, async () => {
      const found = await get(conversation(key, `${base}/messages`));
      replace(given, found.left_out > 0 && h("p", { class: "muted small-text" },
        `${plural(found.left_out, "earlier message")} are in the request, too.`),
      missingRows(found.missing), messageList(found.messages));
    }),
    fold("Settings", JSON.stringify(call.settings, null, 2)),
    lazy("Request body", body, async () => {
      const value = await get(conversation(key, `${base}/body`), null, { asText: true });
      replace(body, h("p", { class: "muted small-text" }, `SHA-256 when it was sent: `,
        h("code", { class: "turn-hash" }, call.digest ?? "unknown")),
      h("pre", { class: "turn-code", tabindex: "0" }, pretty(value)));
    }));
}

const sentence = (text) => `${text[0].toUpperCase()}${text.slice(1)}.`;

function usage(call) {
  const { usage: used } = call;
  const facts = [`took ${duration(call.duration / 1000)}`];
  if (call.first !== null) facts.push(`first token after ${duration((call.first - call.started) / 1000)}`);
  if (used) {
    facts.push(inputOf(used, "input token"), plural(used.output_tokens, "output token"));
    if (used.cost !== null) facts.push(money(used.cost));
  }
  return sentence(facts.join(" · ")).slice(0, -1);
}

function toolEntry(tool) {
  const made = tool.function ?? tool;
  return h("div", { class: "turn-tool" }, h("h3", null, made.name),
    h("p", { class: "muted small-text" }, made.description ?? ""),
    h("pre", { class: "turn-code", tabindex: "0" },
      JSON.stringify(made.parameters ?? made.input_schema ?? {}, null, 2)));
}

const fold = (title, text) => h("details", { class: "turn-fold" }, h("summary", null, title),
  h("pre", { class: "turn-code", tabindex: "0" }, text));

/** A fold whose content is loaded when it is opened for the first time. */
function lazy(title, content, load) {
  let asked = false;
  return h("details", { class: "turn-fold", ontoggle: async (event) => {
    if (asked || !event.target.open) return;
    asked = true;
    try {
      await load();
    } catch (error) {
      asked = false;
      replace(content, note("error", "warning", error.message));
    }
  } }, h("summary", null, title), content);
}

// Events on a line of time

function timeline(turn) {
  const total = Math.max(1, (turn.ended_at - turn.started_at) * 1000,
    ...turn.model_calls.map((call) => call.started + call.duration));
  const spans = [
    ...turn.model_calls.map((call) => ["spark", `Model call ${call.number + 1}`, call.started,
      call.duration, Boolean(call.error), "model"]),
    ...turn.events.map((event) => [EVENTS[event.kind] ?? "history", event.name || event.kind,
      event.started, event.duration, event.failed, event.kind]),
  ].sort((a, b) => a[2] - b[2]);
  if (!spans.length) return null;
  return h("section", null, h("h2", null, "Time line"),
    h("ol", { class: "card turn-line numbers" }, spans.map(([sign, name, start, length, bad, kind]) => {
      const bar = h("span", { class: "turn-bar", "data-kind": bad ? "bad" : kind });
      bar.style.left = `${Math.min(99, (start / total) * 100)}%`;
      bar.style.width = `${Math.max(0.6, ((length ?? 0) / total) * 100)}%`;
      return h("li", null,
        h("span", { class: "turn-what" }, icon(sign), name, bad && badge("failed", "danger")),
        h("span", { class: "turn-track", "aria-hidden": "true" }, bar),
        h("span", { class: "muted small-text turn-when" }, `at ${duration(start / 1000)}`,
          length !== null && `, ${duration(length / 1000)}`));
    })));
}

// Original and branch

function compared(key, original, turn) {
  const [left, right] = differences(original.messages, turn.messages);
  const column = (title, each, href, marks) => h("section", { class: "turn-side", "aria-label": title },
    h("h2", null, title, href && h("a", { class: "small-text", href }, "Open")), summary(each),
    each.model_calls[0]?.injected.map((text) => fold(`Injected (${text.role})`, text.content ?? "")),
    messageList(each.messages, marks));
  return [
    h("p", { class: "muted small-text" }, parts(left, right)),
    h("div", { class: "turn-sides" },
      column("Original", original, link("turns", turn.repeats.conversation, turn.repeats.turn_id), left),
      column("Branch", turn, null, right)),
    h("details", { class: "turn-fold" }, h("summary", null, "Everything about the branch"),
      h("div", { class: "turn-page" }, sections(key, turn))),
  ];
}

// The dialog that runs a turn again, in a branch.

const WAIT = 1000; // milliseconds between two looks at the turn that runs

/** Ask how to run a turn again, and open the result beside the original. */
function runAgain(key, turn) {
  const question = turn.messages.find((row) => row.role === "user")?.text ?? "";
  const text = h("textarea", { class: "field", id: "again-text", rows: 4, value: question });
  const model = h("input", { class: "field", id: "again-model", maxlength: 200, autocomplete: "off",
    placeholder: turn.models[0] ?? "the same" });
  const more = h("textarea", { class: "field", id: "again-more", rows: 3, maxlength: 100000 });
  const status = h("p", { class: "small-text", role: "status" });
  const start = button("Run again", { class: "primary", type: "submit" });
  const form = h("form", { class: "again", onsubmit: (event) => {
    event.preventDefault();
    send();
  } },
  h("p", { class: "muted small-text" }, "The turn runs in a branch before it; the original stays as "
    + "it is. Tools are not called again: their recorded results are used, and other calls need "
    + "your approval."),
  h("label", { for: "again-text" }, "Question"), text,
  h("label", { for: "again-model" }, "Model"), model,
  h("label", { for: "again-more" }, "Instructions for this turn"), more, status,
  h("div", { class: "actions" }, button("Cancel", { onclick: () => dialog.close() }), start));
  const dialog = openDialog("Run again from here", form);
  let closed = false;
  dialog.addEventListener("close", () => { closed = true; });

  async function send() {
    start.disabled = true;
    replace(status, "Starting …");
    const body = {};
    if (text.value.trim() && text.value !== question) body.text = text.value;
    if (model.value.trim()) body.model = model.value.trim();
    if (more.value.trim()) body.instructions = more.value.trim();
    try {
      const begun = await post(conversation(key, `/turns/${turn.turn_id}/repeat`), body);
      replace(status, "The agent answers …");
      await finished(begun);
      if (closed) return;
      dialog.close();
      go(link("turns", begun.conversation, begun.turn_id).slice(1));
    } catch (error) {
      start.disabled = false;
      replace(status, error.message);
    }
  }

  async function finished({ conversation: name, turn_id: id }) {
    while (!closed) {
      const { state } = await get(conversation(name, `/messages/${id}`));
      if (state !== "open") return;
      await new Promise((resolve) => setTimeout(resolve, WAIT));
    }
  }
}

// Differences between the messages of two turns, word by word.

const MAX_WORDS = 1500; // of a text; longer ones are marked as a whole

/** Return for each side a map from its rows to nodes in which other words are marked. */
function differences(left, right) {
  const marks = [new Map(), new Map()];
  for (const [a, b] of pairs(left, right)) {
    if (a?.text === b?.text) continue;
    const [first, second] = compare(a?.text ?? "", b?.text ?? "");
    if (a?.text) marks[0].set(a, first.map(([text, other]) => (other ? h("del", null, text) : text)));
    if (b?.text) marks[1].set(b, second.map(([text, other]) => (other ? h("ins", null, text) : text)));
  }
  return marks;
}

/** Say how many messages differ. */
function parts(left, right) {
  const number = Math.max(left.size, right.size);
  return number ? `${number === 1 ? "One message differs" : `${number} messages differ`}; `
    + "other words are marked." : "Both have the same messages.";
}

function* pairs(left, right) {
  for (let n = 0; n < Math.max(left.length, right.length); n += 1) yield [left[n], right[n]];
}

const words = (text) => text.match(/\s+|[^\s]+/g) ?? [];

/** Return both texts as runs `[text, differs]`, by their longest common words. */
function compare(a, b) {
  const [x, y] = [words(a), words(b)];
  if (x.length > MAX_WORDS || y.length > MAX_WORDS) return [[[a, true]], [[b, true]]];
  const width = y.length + 1;
  const table = new Uint16Array((x.length + 1) * width);
  for (let i = x.length - 1; i >= 0; i -= 1) {
    for (let j = y.length - 1; j >= 0; j -= 1) {
      table[i * width + j] = x[i] === y[j] ? table[(i + 1) * width + j + 1] + 1
        : Math.max(table[(i + 1) * width + j], table[i * width + j + 1]);
    }
  }
  const [first, second] = [[], []];
  let [i, j] = [0, 0];
  while (i < x.length || j < y.length) {
    if (i < x.length && j < y.length && x[i] === y[j]) {
      add(first, x[i++], false);
      add(second, y[j++], false);
    } else if (j >= y.length || (i < x.length
      && table[(i + 1) * width + j] >= table[i * width + j + 1])) add(first, x[i++], true);
    else add(second, y[j++], true);
  }
  return [first, second];
}

function add(runs, text, differs) {
  const last = runs.at(-1);
  if (last?.[1] === differs) last[0] += text;
  else runs.push([text, differs]);
}
