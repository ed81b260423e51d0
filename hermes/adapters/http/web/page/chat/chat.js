// The chat: the list of conversations, and the one that is open.

import { h } from "../lib/dom.js";

/** Open the chat. */
export function open(container) {
  container.append(h("div", { class: "empty" }, h("h1", null, "Hermes")));
  return { close: () => container.replaceChildren(), update: () => {} };
}
