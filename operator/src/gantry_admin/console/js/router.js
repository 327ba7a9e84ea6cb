// The view that is shown is in the address: `#/messages?topic=orders&queue=0`. So back, reload and links work.

import { changed } from "./store.js";

export const VIEWS = [
  { name: "overview", title: "Overview", key: "1" },
  { name: "topics", title: "Topics", key: "2" },
  { name: "groups", title: "Groups", key: "3" },
  { name: "messages", title: "Messages", key: "4" },
  { name: "letters", title: "Dead letters", key: "5" },
  { name: "accounts", title: "Accounts", key: "6" },
];

/** Return the current view and its parameters. */
export function currentView() {
  const [name, query] = location.hash.replace(/^#\/?/, "").split("?");
  const view = VIEWS.find((one) => one.name === name) ?? VIEWS[0];
  return { name: view.name, title: view.title, parameters: new URLSearchParams(query ?? "") };
}

/** Go to a view with parameters. */
export function go(name, parameters = {}) {
  const query = new URLSearchParams(Object.entries(parameters).map(([key, value]) => [key, String(value)])).toString();
  location.hash = `/${name}${query ? `?${query}` : ""}`;
}

addEventListener("hashchange", () => {
  changed();
  document.getElementById("main")?.focus({ preventScroll: true });
  scrollTo(0, 0);
});
