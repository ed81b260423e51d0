// The document: elements, icons, Markdown, notes, dialogs and routes, and how values are written.

import { url } from "./api.js";

// DOM without HTML strings: `h` creates an element, `keyed` keeps the nodes of a list.

const PROPERTIES = new Set(["value", "checked", "disabled", "hidden", "open", "selected",
  "textContent", "indeterminate", "readOnly", "multiple", "inert"]);
const lists = new WeakMap();

/** Create an element. `props`: attributes, `class`, `on*` listeners, `ref` (called with it). */
export function h(tag, props, ...children) {
  const element = document.createElement(tag);
  if (props) set(element, props);
  element.append(...nodes(children));
  return element;
}

/** Set attributes, properties and listeners; null and false remove an attribute. */
export function set(element, props) {
  for (const [name, value] of Object.entries(props)) {
    if (name === "ref") value(element);
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (PROPERTIES.has(name)) {
      if (element[name] !== value) element[name] = value ?? "";
    } else if (value === null || value === undefined || value === false) {
      element.removeAttribute(name);
    } else {
      const text = value === true ? "" : String(value);
      if (element.getAttribute(name) !== text) element.setAttribute(name, text);
    }
  }
  return element;
}

/** Replace the children of an element. */
export function replace(parent, ...children) {
  parent.replaceChildren(...nodes(children));
  lists.delete(parent);
  return parent;
}

/** Set the text of an element, only if it differs. */
export function text(element, value) {
  if (element.textContent !== value) element.textContent = value;
}

/**
 * Make the children of `parent` one node per item, in order. `create(item)` returns a new node,
 * `update(node, item)` brings one up to date. Nodes of the same key stay, with focus and scroll.
 */
export function keyed(parent, items, keyOf, create, update = () => {}) {
  const old = lists.get(parent) ?? new Map();
  const kept = new Map();
  for (const item of items) {
    const key = keyOf(item);
    const node = old.get(key) ?? create(item);
    kept.set(key, node);
    update(node, item);
  }
  for (const [key, node] of old) if (kept.get(key) !== node) node.remove();
  let cursor = parent.firstChild;
  for (const node of kept.values()) {
    if (node === cursor) cursor = cursor.nextSibling;
    else place(parent, node, cursor);
  }
  lists.set(parent, kept);
}

function place(parent, node, before) {
  if (parent.moveBefore && node.parentNode === parent) parent.moveBefore(node, before);
  else parent.insertBefore(node, before);
}

function nodes(children) {
  return children.flat(Infinity).filter((each) => each !== null && each !== undefined
    && each !== false).map((each) => (each instanceof Node ? each : String(each)));
}

const SVG = "http://www.w3.org/2000/svg";
const ICONS = {
  archive: "M4 5h16v4H4zM6 9v10h12V9M10 13h4",
  arrowDown: "M12 5v14M6 13l6 6 6-6",
  arrowUp: "M12 19V5M6 11l6-6 6 6",
  attach: "M20 11l-8.5 8.5a5 5 0 0 1-7-7L13 4a3.5 3.5 0 0 1 5 5l-8.5 8.5a2 2 0 0 1-3-3L14 7",
  branch: "M7 4v16M7 9h6a4 4 0 0 0 4-4V4M4.5 17.5L7 20l2.5-2.5",
  chat: "M4 5h16v11H9l-5 4z",
  check: "M5 12.5l4.5 4.5L19 7.5",
  chevron: "M9 6l6 6-6 6",
  close: "M6 6l12 12M18 6L6 18",
  copy: "M9 9h11v11H9zM5 15H4V4h11v1",
  download: "M12 4v11M7 11l5 5 5-5M5 20h14",
  edit: "M4 20l1-4L16 5l3 3L8 19zM13.5 7.5l3 3",
  file: "M6 3h8l4 4v14H6zM14 3v4h4",
  history: "M4 12a8 8 0 1 1 2.5 5.8M4 12V7M4 12h5M12 8v4l3 2",
  key: "M8 11.5a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM11 12.5L19.5 4M16 7.5l3 3",
  live: "M3 12h4l3-8 4 16 3-8h4",
  menu: "M4 7h16M4 12h16M4 17h16",
  moon: "M20 14A8 8 0 0 1 10 4a8 8 0 1 0 10 10z",
  more: "M5.5 12h.01M12 12h.01M18.5 12h.01",
  plus: "M12 5v14M5 12h14",
  queue: "M5 6h14M5 12h14M5 18h8",
  retry: "M20 12a8 8 0 1 1-2.5-5.8M20 4v5h-5",
  search: "M11 4a7 7 0 1 0 0 14 7 7 0 0 0 0-14zM16 16l4.5 4.5",
  settings: "M4 7h10M18 7h2M4 17h2M10 17h10M16 4.5v5M8 14.5v5",
  spark: "M12 4l1.8 5.2L19 11l-5.2 1.8L12 18l-1.8-5.2L5 11l5.2-1.8z",
  steer: "M5 5v6a4 4 0 0 0 4 4h10M15 11l4 4-4 4",
  stop: "M7 7h10v10H7z",
  sun: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 2v2M12 20v2M2 12h2M20 12h2M5 5l1.4 1.4M17.6 17.6L19 19M19 5l-1.4 1.4M6.4 17.6L5 19",
  system: "M4 5h16v11H4zM9 20h6M12 16v4",
  tool: "M14.5 6a4.5 4.5 0 0 1 5.5 5.5l-2.5-2.5-2.5.5-.5 2.5 2 2a4.5 4.5 0 0 1-5-1.5L6 18l-2-2 5.5-5.5A4.5 4.5 0 0 1 11 5z",
  trash: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13M10.5 11v5M13.5 11v5",
  undo: "M9 6L5 10l4 4M5 10h9a5 5 0 0 1 0 10h-3",
  warning: "M12 4l9 16H3zM12 10v4M12 17h.01",
};

/** Return an icon that screen readers skip. */
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  const path = document.createElementNS(SVG, "path");
  path.setAttribute("d", ICONS[name]);
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  svg.append(path);
  return svg;
}

/** Return a button. With an icon alone, `label` is its accessible name and its tooltip. */
export function button(label, props = {}, iconName = null, visible = !iconName) {
  const { class: given = "", ...rest } = props;
  return h("button", {
    type: "button", class: `button ${visible ? "" : "icon-only"} ${given}`,
    "aria-label": visible ? null : label, title: visible ? null : label, ...rest,
  }, iconName && icon(iconName), visible && h("span", { class: "label" }, label));
}

/** Whether the window is as narrow as that of a phone; the style has the same width. */
export const narrow = matchMedia("(max-width: 760px)");

// Numbers and times as people read them. Times are seconds since 1970, as in the API.

// The texts of the page are English, so dates are, too: in the variant of the reader. Some systems
// name a language that Intl refuses, such as "en-US@posix".
const locale = navigator.languages.find((each) => /^en(-[a-z0-9]{2,8})*$/i.test(each)) ?? "en-GB";
const clock = new Intl.DateTimeFormat(locale, { hour: "numeric", minute: "2-digit" });
const exact = new Intl.DateTimeFormat(locale, { dateStyle: "full", timeStyle: "medium" });
const short = new Intl.DateTimeFormat(locale, { day: "numeric", month: "short" });
const long = new Intl.DateTimeFormat(locale, { day: "numeric", month: "short", year: "numeric" });
const weekday = new Intl.DateTimeFormat(locale, { weekday: "long" });
const month = new Intl.DateTimeFormat(locale, { month: "long", year: "numeric" });
const ago = new Intl.RelativeTimeFormat(locale, { numeric: "auto", style: "short" });
const compact = new Intl.NumberFormat(locale, { notation: "compact", maximumFractionDigits: 1 });
const whole = new Intl.NumberFormat(locale);
const DAY = 86400;

const date = (seconds) => new Date(seconds * 1000);
const midnight = (value) => new Date(value).setHours(0, 0, 0, 0);
const daysAgo = (seconds) => Math.round((midnight(Date.now()) - midnight(seconds * 1000)) / 864e5);

/** "14:05" */
export const time = (seconds) => clock.format(date(seconds));

/** "Wednesday, 18 November 2026 at 14:05:12", for tooltips. */
export const dateTime = (seconds) => exact.format(date(seconds));

/** "Today", "Yesterday", a weekday, or a date. */
export function day(seconds) {
  const days = daysAgo(seconds);
  if (days <= 0) return "Today";
  if (days === 1) return "Yesterday";
  return days < 7 ? weekday.format(date(seconds)) : shortDate(seconds);
}

/** The heading under which a list by date shows this: a day, "Last 30 days", or a month. */
export function period(seconds) {
  const days = daysAgo(seconds);
  if (days < 7) return day(seconds);
  return days < 30 ? "Last 30 days" : month.format(date(seconds));
}

/** "18 Nov", with the year if it is another one. */
export const shortDate = (seconds) => (date(seconds).getFullYear() === new Date().getFullYear()
  ? short : long).format(date(seconds));

/** The time if it is today, else the date. */
export const when = (seconds) => (daysAgo(seconds) <= 0 ? time(seconds) : shortDate(seconds));

/** "5 min. ago" */
export function relative(seconds, now = Date.now() / 1000) {
  const past = seconds - now;
  for (const [unit, size] of [["day", DAY], ["hour", 3600], ["minute", 60]]) {
    if (Math.abs(past) >= size) return ago.format(Math.round(past / size), unit);
  }
  return Math.abs(past) < 10 ? "just now" : ago.format(Math.round(past), "second");
}

/** "340 ms", "4.2 s", "3 min 20 s", "2 h 5 min", "3 d 4 h" */
export function duration(seconds) {
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  const rest = Math.round(seconds);
  if (rest < 60) return `${rest} s`;
  const [name, size, minor, part] = rest < 3600 ? ["min", 60, "s", 1]
    : rest < DAY ? ["h", 3600, "min", 60] : ["d", DAY, "h", 3600];
  const left = Math.floor((rest % size) / part);
  return `${Math.floor(rest / size)} ${name}${left ? ` ${left} ${minor}` : ""}`;
}

/** "4:09", for what is counted down. */
export function countdown(seconds) {
  const left = Math.max(0, Math.ceil(seconds));
  return `${Math.floor(left / 60)}:${String(left % 60).padStart(2, "0")}`;
}

/** "1.4 MB" */
export function bytes(size) {
  if (size < 1000) return `${size} B`;
  const power = Math.min(4, Math.floor(Math.log10(size) / 3));
  const value = size / 1000 ** power;
  return `${value.toFixed(value < 10 ? 1 : 0)} ${["", "kB", "MB", "GB", "TB"][power]}`;
}

/** "12,408" */
export const count = (value) => whole.format(value);

/** "12.4K" */
export const shortCount = (value) => compact.format(value);

/** "1 message", "2 messages" */
export const plural = (value, one, many = `${one}s`) => `${count(value)} ${value === 1 ? one : many}`;

/** "38%" */
export const percent = (share) => `${Math.round(share * 100)}%`;

/** "$0.0042": costs are in dollars, and often small. */
export function money(value) {
  if (!value) return "$0";
  if (value < 0.0001) return "<$0.0001";
  return `$${value < 0.01 ? value.toFixed(4) : value < 1 ? value.toFixed(3) : value.toFixed(2)}`;
}

/** Return JSON with line breaks, and other text as it is. Numbers and names stay as they are written. */
export function pretty(content) {
  try {
    if (typeof JSON.parse(content) !== "object") return content;
  } catch {
    return content;
  }
  let depth = 0;
  const line = (by) => `\n${"  ".repeat(depth += by)}`;
  return content.replace(/"(?:\\.|[^"\\])*"|\{\s*\}|\[\s*\]|\s+|[{}[\],:]/g, (token) => {
    if (/^[{[]$/.test(token)) return token + line(1);
    if (/^[}\]]$/.test(token)) return line(-1) + token;
    return { ",": `,${line(0)}`, ":": ": " }[token] ?? (token[0] === "\"" ? token : token.trim());
  });
}

// DOM from the nodes of parsed Markdown (see hermes/adapters/http/markdown/nodes.py). No HTML: only
// known tags, attributes and addresses, also if the server were wrong.

const TAGS = new Set(("p h1 h2 h3 h4 h5 h6 ul ol li blockquote pre code table thead tbody tr th td "
  + "em strong del a br hr img input span").split(" "));
const EMPTY = new Set(["br", "hr", "img", "input"]);
const LINK = /^(?:https?:\/\/|mailto:)[!-~]+$/i;
const FILE = /^\/api\/conversations\/(?!\.)[\w.~:@%-]+\/files\/[\w-]+$/;
const DATA = /^data:image\/(?:png|jpeg|gif|webp);base64,[A-Za-z0-9+/]+={0,2}$/;
const MAX_DEPTH = 100;

/** Return nodes as a fragment with one DOM node for each. */
export function build(nodes, depth = 0) {
  const fragment = document.createDocumentFragment();
  for (const node of nodes) fragment.append(one(node, depth));
  return fragment;
}

function one(node, depth) {
  if (!Array.isArray(node)) return document.createTextNode(typeof node === "string" ? node : "");
  const [name, children = [], given = {}] = node;
  const tag = TAGS.has(name) ? name : "span";
  const element = document.createElement(tag);
  ATTRIBUTES[tag]?.(element, given);
  if (EMPTY.has(tag)) return element;
  if (depth < MAX_DEPTH) element.append(build(children, depth + 1));
  if (tag === "pre") return codeBlock(element, children[0]?.[2]?.language);
  if (tag !== "table") return element;
  return h("div", { class: "table", tabindex: "0", role: "group", "aria-label": "Table" }, element);
}

const align = (element, given) => {
  if (/^(?:left|center|right)$/.test(given.align)) element.style.textAlign = given.align;
};

const ATTRIBUTES = {
  a(element, { href }) {
    if (!LINK.test(href)) return;
    element.href = href;
    element.target = "_blank";
    element.rel = "noopener noreferrer";
  },
  img(element, { src, alt }) {
    element.alt = alt ?? "";
    element.loading = "lazy";
    if (DATA.test(src)) element.src = src;
    else if (FILE.test(src) && !/%2e/i.test(src)) element.src = url(src);
  },
  input(element, { checked }) {
    element.type = "checkbox";
    element.disabled = true;
    element.checked = checked === "true";
    element.ariaLabel = element.checked ? "Done" : "To do";
  },
  ol(element, { start }) {
    if (/^\d{1,9}$/.test(start)) element.start = Number(start);
  },
  p(element, given) {
    if (given.class === "plain") element.className = "plain";
  },
  span(element, given) {
    if (/^[a-z][a-z0-9]{0,3}$/.test(given.class)) element.className = given.class;
  },
  td: align,
  th: align,
};

function codeBlock(pre, language) {
  pre.tabIndex = 0; // it scrolls
  const copy = button("Copy", { class: "quiet small copy", onclick: () => copyCode(copy, pre) }, "copy", true);
  return h("figure", { class: "code" },
    h("figcaption", null, h("span", { class: "language" }, language), copy), pre);
}

async function copyCode(element, pre) {
  const label = element.querySelector(".label");
  try {
    await navigator.clipboard.writeText(pre.textContent);
    label.textContent = "Copied";
  } catch { // no secure context, or not allowed: then it is selected
    getSelection().selectAllChildren(pre);
    label.textContent = "Selected";
  }
  setTimeout(() => { label.textContent = "Copy"; }, 2000);
}

/**
 * Shows a text while it arrives. `element` must have no other children. Finished blocks are not
 * touched again, and of open ones only what differs. `nodes` are the blocks as they are now.
 */
export class GrowingView {
  constructor({ finished = [], open = [] } = {}) {
    this.nodes = [...finished, ...open];
    this.finished = finished.length;
    this.element = h("div", { class: "markdown" }, build(this.nodes));
  }

  /** Apply an update of a text part: `patch` changes the open blocks; `finished` of them are final. */
  update({ patch, finished = 0 }) {
    apply(this.element, this.nodes, this.finished, patch);
    this.finished += finished;
  }
}

// Of the nodes after `start`, keep the first ones, change the next one, and replace the others.
function apply(parent, nodes, start, [keep, change, rest]) {
  let end = start + keep;
  if (change !== null) {
    const dom = parent.childNodes[end];
    if (typeof change === "string") {
      nodes[end] += change;
      dom.appendData(change);
    } else {
      apply(inside(dom), nodes[end][1], 0, change);
      if (dom.tagName === "FIGURE") name(dom, nodes[end]);
    }
    end += 1;
  }
  nodes.splice(end, nodes.length, ...rest);
  while (parent.childNodes.length > end) parent.lastChild.remove();
  parent.append(build(rest));
}

// Label code with its language, which arrives after the fence.
function name(figure, [, children]) {
  text(figure.querySelector(".language"), children[0]?.[2]?.language ?? "");
}

// The element of a node whose children are those of the node: the others are wrappers.
const inside = (dom) => (/^(?:DIV|FIGURE)$/.test(dom.tagName) ? dom.lastChild : dom);

// What the page says beside its content: notes, the state of the connection, and what screen
// readers announce.

const TOAST_SECONDS = 6;
const regions = {};

/** Return the regions that `main.js` puts into the page. */
export function statusRegions() {
  regions.polite = h("div", { class: "visually-hidden", role: "status", "aria-live": "polite" });
  regions.toasts = h("div", { class: "toasts", role: "region", "aria-label": "Notifications" });
  regions.connection = h("div", { class: "connection", role: "status", "data-state": "idle" });
  return regions;
}

/** Let a screen reader say a text. */
export function announce(message) {
  text(regions.polite, "");
  setTimeout(() => text(regions.polite, message), 50);
}

/** Show a note for some seconds; an error stays until it is closed. */
export function toast(message, { error = false, action = null } = {}) {
  const close = () => note.remove();
  const note = h("div", { class: `toast ${error ? "error" : ""}`, role: error ? "alert" : "status" },
    icon(error ? "warning" : "check"), h("p", null, message),
    action && button(action.label, { class: "quiet small", onclick: () => { close(); action.run(); } }),
    button("Close", { class: "quiet small", onclick: close }, "close"));
  regions.toasts.append(note);
  while (regions.toasts.children.length > 3) regions.toasts.firstChild.remove();
  if (!error) setTimeout(close, TOAST_SECONDS * 1000);
}

/** Say why something failed, unless it was cancelled or the sign-in is shown instead. */
export function fail(error) {
  if (error?.name === "AbortError" || error?.status === 401) return;
  console.error(error);
  toast(error?.message ?? String(error), { error: true });
}

/** Run an action, and say why if it fails. Returns its result. */
export async function attempt(run) {
  try {
    return await run();
  } catch (error) {
    fail(error);
    return null;
  }
}

/** Copy a text to the clipboard, and say so. */
export async function copyText(value) {
  try {
    await navigator.clipboard.writeText(value);
    toast("Copied.");
  } catch {
    fail(new Error("The browser does not allow copying here. Select the text instead."));
  }
}

/** Show the state of the connection: "live", "connecting", "offline" or "idle". */
export function showConnection(state, message = "") {
  const { connection } = regions;
  if (connection.dataset.state === state && connection.title === message) return;
  connection.dataset.state = state;
  connection.title = message;
  connection.replaceChildren(h("span", { class: "dot" }),
    h("span", { class: "label" }, message || LABELS[state]));
}

const LABELS = { live: "Connected", connecting: "Connecting …", offline: "Offline", idle: "" };

// Dialogs, menus and enlarged images. Focus returns to where it was.

/** Show a dialog with these children; returns it. It is removed when it closes. */
export function openDialog(title, children, { wide = false } = {}) {
  const dialog = showDialog({
    class: wide ? "wide" : "", "aria-labelledby": "dialog-title",
    onclick: (event) => event.target === dialog && outside(event, dialog) && dialog.close(),
  }, h("h2", { id: "dialog-title" }, title), children,
  wide && button("Close", { class: "quiet corner", onclick: () => dialog.close() }, "close"));
  return dialog;
}

function showDialog(props, ...children) {
  const before = document.activeElement;
  const dialog = h("dialog", {
    ...props,
    onclose: () => {
      dialog.remove();
      if (before?.isConnected) before.focus();
    },
  }, children);
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

function outside(event, dialog) {
  const box = dialog.getBoundingClientRect();
  return event.clientX < box.left || event.clientX > box.right
    || event.clientY < box.top || event.clientY > box.bottom;
}

/** Ask for a confirmation; resolves to whether it was given. */
export function confirm(title, text, action) {
  return new Promise((resolve) => {
    const cancel = button("Cancel", { onclick: () => dialog.close(), autofocus: true });
    const agree = button(action, {
      class: "danger primary",
      onclick: () => { resolve(true); dialog.close(); },
    });
    const dialog = openDialog(title, [h("p", null, text),
      h("div", { class: "actions" }, cancel, agree)]);
    dialog.addEventListener("close", () => resolve(false));
  });
}

/** Ask for a line of text; resolves to it, or to null. */
export function ask(title, label, value, action) {
  return new Promise((resolve) => {
    const input = h("input", { class: "field", id: "dialog-input", value, maxlength: 1000,
      autocomplete: "off", autofocus: true });
    const form = h("form", {
      method: "dialog",
      onsubmit: () => resolve(input.value.trim() || null),
    }, h("label", { for: "dialog-input" }, label), input,
    h("div", { class: "actions" }, button("Cancel", { onclick: () => dialog.close() }),
      h("button", { type: "submit", class: "button primary" }, action)));
    const dialog = openDialog(title, form);
    input.select();
    dialog.addEventListener("close", () => resolve(null));
  });
}

/** Open a menu at a button. Items: `{label, icon, run, danger, href, download}`, or null for a line. */
export function openMenu(anchor, items) {
  const menu = h("div", { class: "menu", role: "menu", popover: "auto" }, items.map((item) => {
    if (!item) return h("hr");
    const props = { role: "menuitem", tabIndex: -1, class: item.danger ? "danger" : "" };
    const content = [icon(item.icon), item.label];
    if (item.href) {
      return h("a", { ...props, href: item.href, download: item.download, onclick: close }, content);
    }
    return h("button", { ...props, type: "button", onclick: () => { close(); item.run(); } }, content);
  }));
  const entries = [...menu.querySelectorAll("[role=menuitem]")];
  menu.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step && event.key !== "Home" && event.key !== "End" && event.key !== "Tab") return;
    event.preventDefault();
    event.stopPropagation();
    if (event.key === "Tab") close();
    const at = entries.indexOf(document.activeElement);
    const next = step ? (at + step + entries.length) % entries.length
      : event.key === "Home" ? 0 : entries.length - 1;
    entries[next].focus();
  });
  menu.addEventListener("toggle", (event) => {
    if (event.newState !== "closed") return;
    anchor.setAttribute("aria-expanded", "false");
    const inside = menu.contains(document.activeElement);
    menu.remove();
    if (inside && anchor.isConnected) anchor.focus();
  });
  document.body.append(menu);
  menu.showPopover();
  anchor.setAttribute("aria-expanded", "true");
  placeMenu(menu, anchor.getBoundingClientRect());
  entries[0].focus({ preventScroll: true });

  function close() {
    menu.hidePopover();
    if (anchor.isConnected) anchor.focus();
  }
}

function placeMenu(menu, box) {
  const { width, height } = menu.getBoundingClientRect();
  const below = box.bottom + 4 + height < innerHeight;
  menu.style.left = `${Math.max(8, Math.min(box.right - width, innerWidth - width - 8))}px`;
  menu.style.top = `${below ? box.bottom + 4 : Math.max(8, box.top - height - 4)}px`;
}

/** Show an image as large as the window allows. */
export function openImage(src, name) {
  const dialog = showDialog({
    class: "lightbox", "aria-label": name, onclick: () => dialog.close(),
  }, h("img", { src, alt: name }), button("Close", { class: "quiet corner", autofocus: true }, "close"));
}

// Routes in the fragment of the address, such as `#/c/name:trip`. A view is opened by a function
// `open(container, params)`. It returns a function that closes it, or an object with `close` and
// `update(params)`, which is called instead if the next route has the same view.

let routes = [];
let container = null;
let current = null;
let generation = 0;

/** Serve routes: `[pattern, load, name]`; `load()` returns the function that opens the view. */
export function startRouter(table, element, onRoute = () => {}) {
  routes = table;
  container = element;
  const show = () => openView(onRoute);
  addEventListener("hashchange", show);
  show();
}

/** Go to a route, such as `/settings`. */
export function go(path, { replace = false } = {}) {
  const address = `#${path}`;
  if (replace) history.replaceState(null, "", address);
  else if (location.hash === address) return;
  else history.pushState(null, "", address);
  // At once: what is typed next must not go to the view that is left.
  dispatchEvent(new HashChangeEvent("hashchange"));
}

/** Return a route from its parts, percent-encoded. */
export const link = (...parts) => `#/${parts.map(encodeURIComponent).join("/")}`;

/** Close the view, for example because nobody is signed in any more. */
export function closeView() {
  generation += 1;
  current?.close();
  current = null;
}

/** Open the view of the current route again. */
export function reopenView() {
  closeView();
  dispatchEvent(new HashChangeEvent("hashchange"));
}

async function openView(onRoute) {
  const mine = ++generation;
  const [load, name, params] = match();
  onRoute(name, params);
  if (current?.name === name && current.update) {
    current.update(params);
    return;
  }
  current?.close();
  current = null;
  // A place of its own: a view that is still opening cannot replace the one that came after it.
  const place = document.createElement("div");
  place.className = "place";
  container.replaceChildren(place);
  try {
    const open = await load();
    if (mine !== generation) return;
    const opened = await open(place, params);
    const closing = typeof opened === "function" ? { name, close: opened } : { name, ...opened };
    if (mine === generation) current = closing;
    else closing.close();
  } catch (error) {
    if (mine !== generation) return;
    console.error(error);
    replace(container, h("div", { class: "empty", role: "alert" },
      `This view could not be opened: ${error.message} Reload the page.`));
  }
}

function match() {
  for (const [pattern, load, name] of routes) {
    const found = pattern.exec(location.hash.slice(1) || "/");
    if (found) return [load, name, found.slice(1).map(decode)];
  }
  const [, load, name] = routes[0];
  return [load, name, []];
}

function decode(part) {
  try {
    return part === undefined ? undefined : decodeURIComponent(part);
  } catch {
    return part;
  }
}
