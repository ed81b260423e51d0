// Cache reuse: the cached share of each model call, and why agents were built anew.

import { get } from "../lib/api.js";
import { h, icon, replace } from "../lib/dom.js";
import * as format from "../lib/format.js";
import { link } from "../lib/router.js";
import { badge, bar, cachedShare, cards, conversation, counted, fetching, input, ratio, stat, table, to, total } from "./parts.js";

const { count, plural } = format;
const REASONS = {
  cold: "there was none in memory", signature: "its description changed",
  "foreign-write": "another process wrote to the session", evicted: "the cache was full",
  abandoned: "the earlier one did not stop in time",
};
const share = (each) => bar(cachedShare(each), ratio(cachedShare(each)));

export const open = (root, state, key) => (key ? one : all)(root, state, key);

function all(root, state) {
  const top = cards(root);
  const cache = () => state.runtime.cache;
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
    stat(top, "Turns with a cached agent", null, () => [ratio(cache().hit_rate), `${count(cache().hits)} of ${count(cache().hits + cache().misses)}`]),
    stat(top, "Input from provider caches", null, () => [ratio(cache().cached_token_share), "since the start"]),
    stat(top, "Cached agents", link("live", "actors"), () => [count(cache().agents), `at most ${count(cache().agent_limit)}`]),
    stat(top, "Transcripts in memory", link("live", "actors"), () => [format.bytes(cache().transcript_bytes), `at most ${format.bytes(cache().transcript_limit)}`]),
    table(root, "Agents built since the start", "No agent was built yet.", ([reason]) => reason, [
      ["Reason", ([reason]) => reason], ["Because", ([reason]) => REASONS[reason], "wide"],
      ["Agents", ([, number]) => count(number), "number"],
    ], () => Object.entries(cache().rebuilds)),
    list,
    () => read(JSON.stringify([cache().hits, cache().misses, state.runtime.turns])),
  ];
  return { render: () => shows.forEach((show) => show()) };
}

function one(root, state, key) {
  const chart = h("div", { class: "chart", "aria-hidden": "true" });
  const said = h("p", { class: "muted small-text" });
  const list = h("ol", { class: "calls" });
  root.append(h("p", null, conversation(key), " · ", to("Lineage", "live", "lineage", key)),
    h("section", { class: "card" }, h("h2", null, "Cached share of each call"), chart, said),
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
      return [row(key, call), first && built(call.build_reason, rebuild)];
    }), [...rest].map((each) => built(each.reason, each)));
  }
}

const row = (key, call) => h("li", { class: "call" }, share(call),
  h("span", null, `${count(call.cache_read_tokens)} of ${count(input(call))} tokens`),
  h("span", { class: "muted" }, [call.purpose, call.model].filter(Boolean).join(" · ")),
  call.turn_id ? to(`turn ${call.turn_id}`, "turns", key, call.turn_id) : h("span"),
  h("time", { class: "muted", title: format.dateTime(call.created_at) }, format.when(call.created_at)));

const built = (reason, rebuild) => h("li", { class: "built" }, icon("retry"), h("div", null,
  h("p", null, h("strong", null, `The agent was built: ${reason}`), `, because ${REASONS[reason]}.`), difference(rebuild)));

/** What differed, down to the first byte. */
function difference(rebuild) {
  const found = rebuild?.difference;
  if (!found) {
    return h("p", { class: "muted small-text" }, !rebuild ? "What it replaced is not known any more."
      : rebuild.compared === "prompts" ? "Its prompt begins like the earlier one."
        : "Model, tools, prompt and settings are the same. The bytes of the prompts are unknown.");
  }
  const line = (kind, text) => {
    const bytes = new TextEncoder().encode(text);
    const at = found.offset - found.shown_from;
    const same = new TextDecoder().decode(bytes.slice(0, at));
    const [first, ...others] = text.slice(same.length);
    return h("div", { class: kind }, h("code", null, kind === "old" ? "− " : "+ ", found.shown_from > 0 && "…", same,
      h("mark", null, first ?? "␃"), others.join("")));
  };
  return h("div", null, h("p", { class: "small-text" }, badge(found.part), ` first differing byte: ${count(found.offset)}`),
    (found.before || found.after) && [line("old", found.before), line("new", found.after)]);
}
