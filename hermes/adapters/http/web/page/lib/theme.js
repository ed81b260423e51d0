// The colours of the page: those of the system, or as chosen by hand.

const KEY = "hermes.theme";
const root = document.documentElement;
const listeners = new Set();

export const THEMES = { system: "System", light: "Light", dark: "Dark" };

/** Return the chosen theme. */
export const theme = () => root.dataset.theme ?? "system";

/** Choose a theme, here and in the other tabs. */
export function choose(name) {
  if (name === "system") localStorage.removeItem(KEY);
  else localStorage.setItem(KEY, name);
  show(name);
}

/** Call `listener` now, and when the theme changes; returns a function that ends this. */
export function onTheme(listener) {
  listeners.add(listener);
  listener(theme());
  return () => listeners.delete(listener);
}

addEventListener("storage", (event) => event.key === KEY && show(event.newValue ?? "system"));

function show(name) {
  if (name === "system") delete root.dataset.theme;
  else root.dataset.theme = name;
  for (const listener of listeners) listener(name);
}
