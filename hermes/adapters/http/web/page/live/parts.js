// Parts that the tabs share.

import { serverNow } from "../lib/api.js";
import { h, keyed, set, text } from "../lib/dom.js";
import * as format from "../lib/format.js";
import { link } from "../lib/router.js";
import { fail } from "../lib/status.js";

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
  const element = h("span", { class: "bar", "data-full": share >= 0.8 }, h("i"), h("span", null, said));
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
export const age = (since) => format.duration(Math.max(0, Math.floor(serverNow() - since)));
export const stateOf = (actor) => (actor.turn_id ? "running" : actor.mailbox ? "waiting" : "idle");
export const ratio = (share) => (share === null ? "–" : format.percent(share));
export const total = (items, name) => items.reduce((sum, each) => sum + each[name], 0);
/** The input tokens of a call, and the share that came from the cache; null without input. */
export const input = (call) => call.input_tokens + call.cache_read_tokens + call.cache_write_tokens;
export const cachedShare = (call) => (input(call) ? call.cache_read_tokens / input(call) : null);
