// The view of somebody who is not signed in.
export function open(container) {
  container.textContent = "Not signed in. Run “hermes web” on the machine of the bot.";
  return { close() { container.replaceChildren(); } };
}
