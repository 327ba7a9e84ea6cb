// The view that is shown is in the address: `#/messages?topic=orders&queue=0`. So back, reload and links work.

import { changed } from "./store.js";

export const VIEWS = [
  { name: "overview", title: "Overview", key: "1" },
  { name: "topics", title: "Topics", key: "2" },
  { name: "groups", title: "Groups", key: "3" },
  { name: "messages", title: "Messages", key: "4" },
  { name: "letters", title: "Dead letters", key: "5" },
  { name: "search", title: "Search", key: "6" },
  { name: "tail", title: "Live tail", key: "7" },
  { name: "accounts", title: "Accounts", key: "8" },
];

/** Views of one thing, which are reached by links; `parent` is the view that the navigation marks. */
const INNER_VIEWS = [
  { name: "message", title: "Message", parent: "messages" },
  { name: "clients", title: "Clients", parent: "groups" },
];

/** Return the address of a view with parameters; those that are null are left out. */
export function hrefOf(name, parameters = {}) {
  const given = Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const query = new URLSearchParams(given.map(([key, value]) => [key, String(value)])).toString();
  return `#/${name}${query ? `?${query}` : ""}`;
}

/** Return whether this console has a view of that name. */
export const hasView = (name) => VIEWS.some((one) => one.name === name);

/** Return the current view and its parameters. */
export function currentView() {
  const [name, query] = location.hash.replace(/^#\/?/, "").split("?");
  const view = [...VIEWS, ...INNER_VIEWS].find((one) => one.name === name) ?? VIEWS[0];
  return { name: view.name, title: view.title, parent: view.parent, parameters: new URLSearchParams(query ?? "") };
}

/** Go to a view with parameters. */
export function go(name, parameters = {}) {
  location.hash = hrefOf(name, parameters).slice(1);
}

addEventListener("hashchange", () => {
  changed();
  document.getElementById("main")?.focus({ preventScroll: true });
  scrollTo(0, 0);
});
