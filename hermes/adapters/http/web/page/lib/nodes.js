// DOM from the nodes of parsed Markdown (see hermes/adapters/http/markdown/nodes.py). No HTML: only
// known tags, attributes and addresses, also if the server were wrong.

import { url } from "./api.js";
import { button, h, text } from "./dom.js";

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
  const copy = button("Copy", { class: "quiet small copy", onclick: () => copyText(copy, pre) }, "copy", true);
  return h("figure", { class: "code" },
    h("figcaption", null, h("span", { class: "language" }, language), copy), pre);
}

async function copyText(element, pre) {
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
