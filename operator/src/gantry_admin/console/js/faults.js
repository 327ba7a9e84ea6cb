// The states of a view whose request failed: what happened, what still works, and what the user can do.

import { enterToken } from "./access.js";
import { Refused } from "./api.js";
import { h } from "./dom.js";
import { button } from "./parts.js";

const KINDS = {
  401: ["token", "A token is required", "The token is missing, has expired or was revoked."],
  403: ["rights", "This token has no permission for that", "Ask an administrator for a token that may read messages."],
  404: ["missing", "Not found", "It was deleted, or the address is wrong."],
  410: ["deleted", "Deleted", "Retention has deleted these messages. Newer messages can be read."],
  416: ["beyond", "Not stored yet", "The queue has no message with this offset yet."],
  422: ["invalid", "Invalid input", ""],
  429: ["busy", "Too many readers", "The sidecar limits readers, so that they do not slow the broker down. Try again in a few seconds."],
  502: ["broker", "The broker failed to answer", ""],
  503: ["broker", "The broker is not available", "Messages can still be read by topic, queue and offset, from the store's files. Keys and producers' message ids need the broker."],
  504: ["broker", "The broker does not answer", "Messages can still be read by topic, queue and offset, from the store's files."],
};
const UNREACHABLE = ["sidecar", "The sidecar does not answer", "Nothing can be read until it answers. The page keeps trying to reach it."];

/** Return the state of a view for an error; `retry` repeats the request. */
export function faultState(error, retry) {
  const [kind, title, advice] = error instanceof Refused ? (KINDS[error.status] ?? ["other", "The sidecar refused the request", ""]) : UNREACHABLE;
  const actions = [
    kind === "token" || kind === "rights" ? button("Enter a token", async () => { if (await enterToken()) retry(); }, { class: "primary" }) : null,
    button("Try again", retry),
  ];
  return h("div", { class: "empty fault", role: "alert", "data-fault": kind, key: "fault" },
    h("strong", null, title), h("p", null, error.message), advice === "" ? null : h("p", { class: "faint" }, advice), h("div", { class: "fault-actions" }, actions));
}
