// The tabs that have cards and tables only.

import { get, serverNow } from "../lib/api.js";
import { h, icon, replace } from "../lib/dom.js";
import * as format from "../lib/format.js";
import { link } from "../lib/router.js";
import { age, badge, bar, cards, conversation, counted, fetching, sparkline, stat, stateOf, table, to, total } from "./parts.js";

const { count, money, plural } = format;
const LIVE = "live";
const live = (...parts) => link(LIVE, ...parts);
const all = (shows) => ({ render: () => shows.forEach((show) => show()) });
const commits = (state) => [(state.commits.slice(-10).reduce((a, b) => a + b) / 10).toFixed(1),
  "mean of 10 seconds", false, sparkline(state.commits, "Commits in each of the last 60 seconds")];

export function overview(root, state) {
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
    stat(top, "Messages without an answer", live("actors", "waiting"), () => [
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
    to(text, LIVE, ...parts))) : h("li", { class: "fine" }, icon("check"), "Nothing needs attention."));
}

export function delivery(root, state, name) {
  const lanes = () => [...state.lanes.values()];
  const number = (title, field) => [title, (each) => counted(each[field], LIVE, "delivery", each.lane), "number"];
  const oldest = ["Since", (each) => age(each.created_at ?? each.oldest_at), "number"];
  const owner = ["Conversation", (each) => conversation(each.session_key), "wide"];
  const shows = [table(root, "Chats with undelivered replies", "Every reply was delivered.", (each) => each.lane, [
    ["Chat", (each) => to(each.lane, LIVE, "delivery", each.lane), "wide"],
    number("Pending", "pending"), number("Sending", "sending"), number("Retries", "retried"),
    number("Unknown outcome", "unknown"), number("Attempts", "attempts"), oldest, owner,
  ], lanes)];
  const given = h("p", { class: "small-text" });
  root.append(given);
  shows.push(() => replace(given, to(`All undelivered replies, and ${count(state.store?.dead ?? 0)} given up within a day`,
    LIVE, "delivery", "*")));
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

export function store(root, state) {
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
    table(root, "Queues and sizes", "The store does not answer.", ([name]) => name, [
      ["What", ([name]) => name, "wide"], ["Now", ([, now]) => now, "number"], ["Limit", ([, , limit]) => limit ?? ""],
    ], () => (state.store ? sizes(state.store, used) : [])),
    table(root, "Duration of commits, since the start", "", ([label]) => label, [
      ["Up to", ([label]) => label], ["Commits", ([, number]) => count(number), "number"],
      ["Share", ([, number, sum]) => bar(number / sum, format.percent(number / sum || 0))],
    ], () => state.runtime.commits.counts.map((number, at) => [
      at < state.commit_bounds.length ? ms(state.commit_bounds[at]) : "longer", number, state.runtime.commits.count])),
  ]);
}

const sizes = (store, used) => [
  ["Requests that wait for a commit", count(store.writer.waiting), used(store.writer.waiting, store.queue_limit)],
  ["Write-ahead log", format.bytes(store.wal_bytes), bar(store.wal_bytes / store.wal_limit,
    `${format.percent(store.wal_bytes / store.wal_limit)} of ${format.bytes(store.wal_limit)}`)],
  ["Database", format.bytes(store.database_bytes)],
  ["Messages without an answer", counted(store.inbox_open, LIVE, "actors", "waiting")],
  ["Messages that are not indexed yet", count(store.unindexed)],
  ["Session boundaries whose hooks have not run", count(store.hooks_open)],
  ["Replies given up within a day", counted(store.dead, LIVE, "delivery", "*")],
];

const ms = (seconds) => (seconds < 0.01 ? `${(seconds * 1000).toFixed(1)} ms` : format.duration(seconds));

export function limits(root, state) {
  const halves = root.appendChild(h("div", { class: "halves" }));
  const budget = (name, spent) => ["Budget", (each) => {
    const limit = state.costs.budgets?.[name];
    return limit ? bar(spent(each) / limit, `${format.percent(spent(each) / limit)} of ${money(limit)}`) : "no limit";
  }];
  const cost = ["Spent", (each) => money(each.cost), "number"];
  const owner = ["Conversation", (each) => (each.session_key ? to(each.session_key, LIVE, "lineage", each.session_key)
    : each.session_id), "wide"];
  const today = () => state.costs.today;
  const rates = () => state.runtime.admission;
  const said = h("p", { class: "muted small-text" });
  const shows = [
    table(halves, "Budget of the day", "", () => 0, [cost, budget("day", (each) => each.cost)],
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
