// Texts of messages as DOM. The server parses Markdown; without its nodes a text is shown as it is.

import { build, h } from "../lib/dom.js";

/** Return the text of a row. */
export function markdown(row) {
  const nodes = row.nodes ?? [["p", [row.text ?? ""], { class: "plain" }]];
  return h("div", { class: "markdown" }, build(nodes));
}
