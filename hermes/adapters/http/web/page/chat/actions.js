// What can be done with a conversation and its messages. The stream shows the results.

import { conversation, del, get, newKey, patch, post, url } from "../lib/api.js";
import {
  ask, button, confirm, dateTime, fail, go, h, icon, link, openDialog, plural, toast, when,
} from "../lib/dom.js";

/** Run an action, and say why if it fails. Returns its result. */
export async function attempt(run) {
  try {
    return await run();
  } catch (error) {
    fail(error);
    return null;
  }
}

/** Ask for a title, and set it. */
export async function rename(key, title) {
  const found = await ask("Rename conversation", "Title", title ?? "", "Rename");
  if (found && found !== title) await attempt(() => patch(conversation(key), { title: found }));
}

/** Archive a conversation, or take it back. */
async function archive(key, archived) {
  const done = await attempt(() => patch(conversation(key), { archived }));
  if (done) {
    toast(archived ? "Archived." : "It is in the list again.",
      archived ? { action: { label: "Undo", run: () => archive(key, false) } } : {});
  }
}

/** Delete a conversation, after a question; whether it was deleted. */
async function remove(key, title) {
  const sure = await confirm("Delete this conversation?",
    `“${title}” and all of its messages are deleted for good.`, "Delete");
  if (!sure) return false;
  const done = await attempt(() => del(conversation(key)));
  if (done) toast("Deleted.");
  return Boolean(done);
}

/** The menu of a conversation: `found` is its entry in the list. */
export function entries(found, { onDeleted = () => {} } = {}) {
  const key = found.session_key;
  const title = found.title || found.preview || "New conversation";
  const download = (format) => ({ label: `Download as ${format === "json" ? "JSON" : "Markdown"}`,
    icon: "download", href: url(conversation(key, "/export"), { format }), download: "" });
  return [
    { label: "Rename", icon: "edit", run: () => rename(key, found.title) },
    { label: found.archived ? "Take out of the archive" : "Archive", icon: "archive",
      run: () => archive(key, !found.archived) },
    download("markdown"), download("json"), null,
    { label: "Delete", icon: "trash", danger: true,
      run: async () => { if (await remove(key, title)) onDeleted(); } },
  ];
}

/** Copy a conversation up to a message, which is included, and open the copy. */
export async function branchAfter(view, row) {
  const { rows, session_id } = view.state;
  const at = rows.findIndex((each) => each.id === row.id);
  let next = at + 1;
  while (rows[next]?.role === "tool") next += 1; // results belong to the message with the calls
  const to = `conv_${newKey()}`;
  const body = { to, session_id, title: `${view.title()} (branch)`.slice(0, 1000) };
  if (rows[next]) body.before = rows[next].id;
  const change = await attempt(() => post(conversation(view.name, "/branch"), body));
  if (change) {
    go(link("c", change.session_key).slice(1));
    toast("This is a branch: the original stays as it is.");
  }
}

/** Take back the last message of the user and its answer. */
export async function undo(view) {
  const { rows, session_id } = view.state;
  const last = rows.at(-1)?.id;
  const text = rows.findLast((row) => row.role === "user")?.text ?? "";
  const done = await attempt(() => post(conversation(view.name, "/undo"), { session_id, last }));
  if (done?.changed) {
    if (!view.composer.input.value) view.composer.fill(text);
    toast("Taken back. The text is in the field below.");
  }
}

const KINDS = { branch: "Branch", compression: "After a summary", fork: "Fork", import: "Imported", new: "" };

/** Show the sessions of a conversation: branches, and what came before. One can go on with each. */
export async function showBranches(view) {
  const found = await attempt(() => get(conversation(view.name, "/sessions")));
  if (!found) return;
  const current = view.state.session_id;
  const entry = ({ session, preview }) => h("li", { class: session.id === current ? "current" : "" },
    h("div", null, h("strong", null, session.title || preview || "Without a title"),
      h("span", { class: "muted small-text", title: dateTime(session.last_active) }, [KINDS[session.kind],
        plural(session.message_count, "message"), when(session.last_active)].filter(Boolean).join(" · "))),
    session.id === current ? h("span", { class: "badge accent" }, icon("check"), "Open")
      : button(`Go on with this`, { class: "small", onclick: async () => {
        const body = { target: session.id, session_id: current };
        if (await attempt(() => post(conversation(view.name, "/switch"), body))) dialog.close();
      } }));
  const dialog = openDialog("Branches and earlier sessions", [
    h("p", { class: "muted small-text" }, "An edited message makes a branch; the older version is kept here."),
    h("ul", { class: "branches" }, found.sessions.map(entry)),
    h("div", { class: "actions" }, button("Close", { onclick: () => dialog.close() })),
  ], { wide: true });
}
