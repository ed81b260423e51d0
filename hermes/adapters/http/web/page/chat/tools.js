// Tool calls as cards that can be unfolded: name, arguments, result, duration, errors.

import { button, duration, h, icon, replace, text } from "../lib/dom.js";
import { files } from "./attachments.js";
import { copyText } from "./messages.js";

const SHOWN = 4000;
const INTERRUPTED = "[interrupted before it answered]";

/** Create a card. `update` brings it up to date. */
export function createTool() {
  const parts = {
    name: h("code", { class: "tool-name" }),
    brief: h("span", { class: "tool-brief" }),
    time: h("span", { class: "tool-time numbers" }),
    state: h("span", { class: "tool-state" }),
    body: h("div", { class: "tool-body" }),
  };
  const card = h("details", { class: "tool", ontoggle: () => card.open && fill(card) },
    h("summary", null, parts.state, parts.name, parts.brief, parts.time, icon("chevron")), parts.body);
  card.parts = parts;
  return card;
}

/** Show a call: `{call, finished, failed, content, parts, seconds}`. */
export function updateTool(card, tool, name) {
  const { parts } = card;
  const kind = !tool.finished ? "running" : tool.failed ? "failed"
    : tool.content === INTERRUPTED ? "stopped" : "done";
  if (card.dataset.state !== kind) {
    card.dataset.state = kind;
    replace(parts.state, icon({ running: "tool", failed: "warning", stopped: "stop", done: "check" }[kind]),
      h("span", { class: "visually-hidden" }, LABELS[kind]));
  }
  text(parts.name, tool.call.name);
  text(parts.brief, brief(tool.call.arguments));
  text(parts.time, tool.seconds ? duration(tool.seconds) : kind === "failed" ? "failed" : "");
  card.tool = tool;
  card.conversation = name;
  if (card.open) fill(card);
}

const LABELS = { running: "Running:", failed: "Failed:", stopped: "Stopped:", done: "Done:" };

function fill(card) {
  const { tool, parts } = card;
  const signature = `${tool.call.arguments.length} ${tool.finished} ${tool.content?.length}`;
  if (card.dataset.filled === signature) return;
  card.dataset.filled = signature;
  replace(parts.body,
    section("Arguments", pretty(tool.call.arguments)),
    !tool.finished ? h("p", { class: "muted" }, "It is still running.")
      : section(tool.failed ? "Error" : "Result", pretty(tool.content ?? "")),
    files(tool.parts ?? [], card.conversation));
}

function section(title, content) {
  const shown = content.length > SHOWN ? content.slice(0, SHOWN) : content;
  const code = h("pre", { tabIndex: 0, "aria-label": title }, shown || "(nothing)");
  const more = shown !== content && button(`Show all ${content.length.toLocaleString()} characters`, {
    class: "small",
    onclick: (event) => { code.textContent = content; event.currentTarget.remove(); },
  });
  return h("section", null, h("header", null, h("h4", null, title),
    button(`Copy ${title.toLowerCase()}`, { class: "quiet small", onclick: () => copyText(content) }, "copy")),
  code, more);
}

/** Return JSON with line breaks, and other text as it is. */
export function pretty(content) {
  try {
    const value = JSON.parse(content);
    return typeof value === "object" ? JSON.stringify(value, null, 2) : content;
  } catch {
    return content;
  }
}

/** Return the most telling argument in one line. */
function brief(json) {
  try {
    const values = Object.values(JSON.parse(json));
    const found = values.find((each) => typeof each === "string") ?? values[0];
    return found === undefined ? "" : String(typeof found === "object" ? JSON.stringify(found) : found)
      .slice(0, 160).replace(/\s+/g, " ");
  } catch {
    return json.slice(0, 160);
  }
}
