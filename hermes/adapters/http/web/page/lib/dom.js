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
  key: "M14 10a4 4 0 1 0-3.5 4L12 15.5h2V18h2.5l1-1v-2.5L14 11z",
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
