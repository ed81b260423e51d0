// Keyboard shortcuts. Letters count only if nobody is typing.

import { h, openDialog } from "../lib/dom.js";

const KEYS = [
  ["Anywhere", [["?", "Show these shortcuts"], ["/", "Search conversations"], ["n", "New conversation"],
    ["i", "Write a message"], ["[ ]", "Previous or next conversation"],
    ["Esc", "Stop the answer, or close what is open"]]],
  ["Messages", [["j k", "Next or previous message"], ["g G", "First loaded or latest message"],
    ["c", "Copy"], ["e", "Edit your message"], ["b", "Branch from here"], ["r", "Answer again"],
    ["u", "Take back"]]],
  ["Writing", [["Enter", "Send, or queue while an answer runs"], ["Shift Enter", "New line"],
    ["Ctrl Enter", "Send into the running answer"], ["/", "Commands, at the beginning"],
    ["Tab", "Complete a command"]]],
];

/** Show all shortcuts. */
export function showShortcuts() {
  if (document.querySelector("dialog[open]")) return;
  const dialog = openDialog("Keyboard shortcuts", h("div", { class: "shortcuts" },
    KEYS.map(([title, keys]) => h("section", null, h("h3", { class: "muted" }, title),
      h("dl", null, keys.map(([key, what]) => h("div", null,
        h("dt", null, key.split(" ").map((each) => h("kbd", null, each))), h("dd", null, what))))))),
  { wide: true });
  dialog.tabIndex = 0; // it may scroll
  dialog.focus();
}

/** Call `actions[key]` for keys that are pressed outside of fields. Returns a function to end it. */
export function listen(actions) {
  const handle = (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    if (document.querySelector("dialog[open], .menu")) return;
    const typing = event.target.closest?.("input, textarea, select, [contenteditable]");
    if (typing && event.key !== "Escape") return;
    const run = actions[event.key];
    if (!run || (event.repeat && !"jk[]".includes(event.key))) return;
    event.preventDefault();
    run(event);
  };
  document.addEventListener("keydown", handle);
  return () => document.removeEventListener("keydown", handle);
}
