// Settings: who is signed in, the sessions, and for operators who else may sign in.
export function open(container) {
  container.textContent = "Settings";
}
