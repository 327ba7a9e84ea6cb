// Dialogs, one at a time. Each is drawn by a function, so that it is updated with the state. The browser's own <dialog>
// keeps the focus inside, closes on Escape and restores the focus.

import { h, render } from "./dom.js";
import { button } from "./parts.js";
import { changed } from "./store.js";

let current = null; // {kind, view, resolve}
const element = document.createElement("dialog");
element.addEventListener("close", () => {
  if (element.open) return; // the event belongs to the previous dialog
  const ended = current;
  current = null;
  render(element);
  ended?.resolve(null);
});
element.addEventListener("click", (event) => event.target === element && close());

/** Show the dialog that `view` returns: `{title, body, actions}`. Resolves with the value of `close`, null for Escape. */
export function show(kind, view) {
  if (current !== null) close();
  return new Promise((resolve) => {
    current = { kind, view, resolve };
    if (!element.isConnected) document.body.append(element);
    draw();
    element.showModal();
  });
}

/** Close the dialog with a value. */
export function close(value) {
  const ended = current;
  current = null;
  if (element.open) element.close();
  render(element);
  ended?.resolve(value instanceof Event ? null : value ?? null);
}

/** Return whether a dialog is visible: on Escape it is closed before the `close` event is delivered. */
export const isOpen = () => element.open;

/** Redraw the open dialog. */
export function draw() {
  if (current === null) return;
  const shown = current.view();
  if (shown === null) {
    close();
    return;
  }
  element.setAttribute("aria-labelledby", "dialog-title");
  element.className = `dialog ${current.kind}`;
  render(element, h("div", { class: "dialog-box" },
    h("h2", { id: "dialog-title" }, shown.title), h("div", { class: "dialog-body" }, shown.body),
    h("div", { class: "dialog-actions" }, shown.actions)));
}

/** Ask for confirmation. Resolves with whether it was confirmed. */
export const confirm = (title, body, verb) =>
  show("confirm", () => ({
    title, body,
    actions: [button("Cancel", () => close(false), { autofocus: true }), button(verb, () => close(true), { class: "primary" })],
  }));

/** Ask for a token. Resolves with the token, or null. */
export function askToken(why) {
  let typed = "";
  const submit = (event) => {
    event.preventDefault();
    close(typed.trim());
    changed();
  };
  return show("token", () => ({
    title: "Enter a token",
    body: [
      h("p", null, why),
      h("form", { onsubmit: submit, id: "token-form" },
        h("label", { class: "field" }, h("span", null, "Token"),
          h("input", { type: "password", name: "token", autocomplete: "off", autofocus: true, oninput: (event) => (typed = event.target.value) })),
        h("p", { class: "faint" }, "The token is kept for this tab only and sent to this sidecar only. `gantry console` prints an address that needs no token.")),
    ],
    actions: [button("Cancel", () => close(null)), button("Use token", submit, { class: "primary" })],
  }));
}
