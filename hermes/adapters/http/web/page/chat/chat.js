// The chat: the list of conversations, and the one that is open.

import { newKey } from "../lib/api.js";
import { button, go, h, link, replace } from "../lib/dom.js";
import { ConversationView } from "./conversation.js";
import { List } from "./list.js";
import { listen, showShortcuts } from "./shortcuts.js";

const NEW = "hermes.new";

/** Open the chat; `params` has the name of a conversation, or nothing for a new one. */
export function open(container, params) {
  let view = null;
  const list = new List({ onNew, onDeleted, onChosen: () => drawer(false) });
  const main = h("div", { class: "chat-main" });
  const shade = h("div", { class: "shade", onclick: () => drawer(false) });
  const menu = button("Conversations", { class: "quiet drawer", "aria-expanded": "false",
    onclick: () => drawer(!root.classList.contains("drawer-open")) }, "menu");
  const help = button("Keyboard shortcuts", { class: "quiet help", onclick: showShortcuts });
  replace(help, "?");
  help.setAttribute("aria-label", "Keyboard shortcuts");
  help.title = "Keyboard shortcuts (?)";
  const root = h("div", { class: "chat" }, list.element, shade, main);
  const slot = document.getElementById("top-start");
  slot?.append(menu);
  list.element.querySelector(".list-end").append(help);
  container.append(root);
  const stopListening = listen({
    "?": showShortcuts, "/": search, n: onNew, i: () => view.composer.focus(),
    "[": () => step(-1), "]": () => step(1), j: () => view.messages.step(1), k: () => view.messages.step(-1),
    g: () => { view.messages.scroller.scrollTop = 0; }, G: () => view.messages.toEnd(),
    c: () => act("Copy message"), e: () => act("Edit message"), b: () => act("Branch from here"),
    r: () => act("Answer again"), u: () => act("Take back"), Escape: escape,
  });
  update(params);
  return { close, update };

  function update([name]) {
    const wanted = name || newName();
    if (view?.name === wanted || (view && name && view.state.session_key === name)) return;
    view?.end();
    view = new ConversationView(wanted, { list, onSent: () => sent(wanted) });
    replace(main, view.element);
    list.select(wanted);
    drawer(false);
    if (matchMedia("(hover: hover)").matches) view.composer.focus();
  }

  function close() {
    stopListening();
    view?.end();
    list.end();
    menu.remove();
    container.replaceChildren();
  }

  /** The name of the conversation that has no message yet: its draft survives a reload. */
  function newName() {
    const name = localStorage.getItem(NEW) ?? `conv_${newKey()}`;
    localStorage.setItem(NEW, name);
    return name;
  }

  function sent(name) {
    if (localStorage.getItem(NEW) !== name) return;
    localStorage.removeItem(NEW);
    history.replaceState(null, "", link("c", name));
  }

  function onNew() {
    drawer(false);
    go("/");
    view.composer.focus();
  }

  function onDeleted(key) {
    if (view?.key() !== key) return;
    view.end();
    view = null;
    go("/", { replace: true });
  }

  function search() {
    drawer(true);
    list.search.focus();
    list.search.select();
  }

  function step(by) {
    const path = list.neighbour(by);
    if (path) go(path);
  }

  /** Press a button of the focused message, or else of the latest that has it. */
  function act(label) {
    const focused = document.activeElement?.closest?.("article");
    const within = focused ? [focused] : [...main.querySelectorAll("article")].reverse();
    const found = within.map((each) => each.querySelector(`[aria-label="${label}"]`))
      .find((each) => each && getComputedStyle(each).display !== "none");
    found?.click();
  }

  function escape() {
    if (root.classList.contains("drawer-open")) drawer(false);
    else if (view.composer.editing) view.composer.fill("");
    else if (view.state.turn) view.stop();
    else document.activeElement?.blur();
  }

  function drawer(opened) {
    root.classList.toggle("drawer-open", opened);
    menu.setAttribute("aria-expanded", String(opened));
    if (!matchMedia("(max-width: 760px)").matches) return;
    list.element.inert = !opened;
    if (opened) list.search.focus();
    else if (list.element.contains(document.activeElement)) menu.focus();
  }
}
