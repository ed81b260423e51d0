// Files: those of messages, and those that are attached to the next one.

import { ApiError, conversation, upload, url } from "../lib/api.js";
import { button, bytes, h, icon, keyed, openImage, text } from "../lib/dom.js";

const SHOWN = new Set(["image/png", "image/jpeg", "image/gif", "image/webp"]);

/** Return the files of a message: images are shown, others are cards to download. */
export function files(parts, name) {
  const found = parts.filter((part) => part.file);
  if (!found.length) return null;
  return h("div", { class: "files" }, found.map((part) => {
    const href = url(conversation(name, `/files/${encodeURIComponent(part.file)}`));
    return SHOWN.has(part.media_type) ? image(part, href) : fileCard(part, href);
  }));
}

function image(part, src) {
  const label = part.name ?? "Image";
  const picture = h("img", { src, alt: label, loading: "lazy", width: part.width, height: part.height });
  picture.addEventListener("error", () => picture.closest("button")?.replaceWith(fileCard(part, src)));
  return h("button", { type: "button", class: "image", "aria-label": `Enlarge ${label}`,
    onclick: () => openImage(src, label) }, picture);
}

function fileCard(part, href) {
  return h("a", { class: "file", href, download: part.name ?? "file" }, icon("file"),
    h("span", { class: "file-name" }, part.name ?? "File"),
    h("span", { class: "muted numbers" }, [part.media_type, part.size && bytes(part.size)]
      .filter(Boolean).join(" · ")), icon("download"));
}

/** The files that will be sent with the next message. They are uploaded at once. */
export class Attachments {
  constructor(name, onChange) {
    this.name = name;
    this.items = [];
    this.onChange = onChange;
    this.next = 0;
    this.element = h("ul", { class: "attached", "aria-label": "Attached files", hidden: true });
  }

  get uploading() {
    return this.items.some((each) => !each.part && !each.error);
  }

  /** The parts that name the files, for the message. */
  get parts() {
    return this.items.filter((each) => each.part).map((each) => each.part);
  }

  /** Upload files. */
  add(list) {
    for (const file of list) {
      const item = { id: this.next++, file, share: 0, stop: new AbortController() };
      if (SHOWN.has(file.type)) item.preview = URL.createObjectURL(file);
      this.items.push(item);
      this.send(item);
    }
    this.show();
  }

  /** Take over parts that are stored already, for example those of a message that is edited. */
  restore(parts) {
    for (const part of parts) {
      this.items.push({ id: this.next++, file: { name: part.name ?? "File", size: part.size ?? 0 }, part });
    }
    this.show();
  }

  async send(item) {
    try {
      const found = await upload(conversation(this.name, "/files"), [item.file], {
        signal: item.stop.signal,
        onProgress: (share) => { item.share = share; this.show(); },
      });
      [item.part] = found.parts;
    } catch (error) {
      if (error.name === "AbortError") return;
      item.error = error instanceof ApiError ? error.message : "The file could not be sent.";
    }
    this.show();
  }

  remove(item) {
    item.stop?.abort();
    if (item.preview) URL.revokeObjectURL(item.preview);
    this.items = this.items.filter((each) => each !== item);
    this.show();
    this.onChange("removed");
  }

  clear() {
    for (const item of this.items) if (item.preview) URL.revokeObjectURL(item.preview);
    this.items = [];
    this.show();
  }

  show() {
    this.element.hidden = !this.items.length;
    keyed(this.element, this.items, (item) => item.id, (item) => this.create(item), update);
    this.onChange("changed");
  }

  create(item) {
    return h("li", { class: "attached-file" },
      item.preview ? h("img", { src: item.preview, alt: "" }) : icon("file"),
      h("span", { class: "file-name" }, item.file.name),
      h("span", { class: "muted numbers state" }),
      button(`Remove ${item.file.name}`, { class: "quiet small", onclick: () => this.remove(item) }, "close"),
      h("progress", { max: 1, value: 0, "aria-label": `Upload of ${item.file.name}` }));
  }
}

function update(node, item) {
  const progress = node.querySelector("progress");
  const done = item.part || item.error;
  progress.hidden = Boolean(done);
  progress.value = item.share;
  node.classList.toggle("failed", Boolean(item.error));
  text(node.querySelector(".state"), item.error ?? (done ? bytes(item.file.size)
    : `${Math.round(item.share * 100)}%`));
}
