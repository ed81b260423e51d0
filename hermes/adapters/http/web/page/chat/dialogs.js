// Dialogs, menus and enlarged images. Focus returns to where it was.

import { button, h, icon } from "../lib/dom.js";

/** Show a dialog with these children; returns it. It is removed when it closes. */
export function openDialog(title, children, { wide = false } = {}) {
  const before = document.activeElement;
  const heading = h("h2", { id: "dialog-title" }, title);
  const dialog = h("dialog", {
    class: wide ? "wide" : "", "aria-labelledby": "dialog-title",
    onclick: (event) => event.target === dialog && outside(event, dialog) && dialog.close(),
    onclose: () => {
      dialog.remove();
      if (before?.isConnected) before.focus();
    },
  }, heading, children);
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
export function confirm(title, text, action, { danger = true } = {}) {
  return new Promise((resolve) => {
    const cancel = button("Cancel", { onclick: () => dialog.close(), autofocus: true });
    const agree = button(action, {
      class: danger ? "danger primary" : "primary",
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
  place(menu, anchor.getBoundingClientRect());
  entries[0].focus({ preventScroll: true });

  function close() {
    menu.hidePopover();
    if (anchor.isConnected) anchor.focus();
  }
}

function place(menu, box) {
  const { width, height } = menu.getBoundingClientRect();
  const below = box.bottom + 4 + height < innerHeight;
  menu.style.left = `${Math.max(8, Math.min(box.right - width, innerWidth - width - 8))}px`;
  menu.style.top = `${below ? box.bottom + 4 : Math.max(8, box.top - height - 4)}px`;
}

/** Show an image as large as the window allows. */
export function openImage(src, name) {
  const before = document.activeElement;
  const dialog = h("dialog", {
    class: "lightbox", "aria-label": name,
    onclick: () => dialog.close(),
    onclose: () => { dialog.remove(); before?.focus(); },
  }, h("img", { src, alt: name }),
  button("Close", { class: "quiet", autofocus: true }, "close"));
  document.body.append(dialog);
  dialog.showModal();
}
