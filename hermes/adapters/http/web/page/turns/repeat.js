// The dialog that runs a turn again, in a branch.

import { openDialog } from "../chat/dialogs.js";
import { conversation, get, post } from "../lib/api.js";
import { button, h, replace } from "../lib/dom.js";
import { go, link } from "../lib/router.js";

const WAIT = 700; // milliseconds between two looks at the turn that runs

/** Ask how to run a turn again, and open the result beside the original. */
export function runAgain(key, turn) {
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
