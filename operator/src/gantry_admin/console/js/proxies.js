// The gRPC proxies of the group: whether they take clients, and how busy they are.

import { h } from "./dom.js";
import { count, plural, short } from "./format.js";
import { healthOfProxy } from "./model.js";
import { badge, table } from "./parts.js";

const COLUMNS = [
  { title: "Proxy" }, { title: "State" }, { title: "Clients", class: "right" }, { title: "Streams", class: "right" },
  { title: "Calls", class: "right" }, { title: "Running", class: "right" }, { title: "Refused", class: "right" },
  { title: "In flight", class: "right" },
];

/** Return the panel of the proxies, or null for a group without any. */
export function proxiesPanel({ proxies }) {
  if (proxies.length === 0) return null;
  const ready = proxies.filter((proxy) => healthOfProxy(proxy).tone === "good").length;
  const word = ready === proxies.length ? "ready" : `${ready} of ${proxies.length} ready`;
  const clients = proxies.reduce((sum, proxy) => sum + (proxy.clients ?? 0), 0);
  return h("section", { class: "panel", key: "proxies", "aria-label": "gRPC proxies" },
    h("header", { class: "panel-head" }, h("h2", null, "gRPC proxies"),
      badge(ready === proxies.length ? "good" : ready === 0 ? "bad" : "warn", word),
      h("span", { class: "grow" }), h("span", { class: "faint" }, plural(clients, "client"))),
    table("gRPC proxies table", COLUMNS, proxies.map(row)));
}

function row(proxy) {
  const { tone, word, reason } = healthOfProxy(proxy);
  return h("tr", { key: proxy.address, "data-proxy": proxy.address, "data-state": word },
    h("td", { class: "mono" }, proxy.address),
    h("td", null, badge(tone, word, reason)),
    cell(count(proxy.clients)), cell(count(proxy.streams)), cell(rateOf(proxy.calls_per_second)),
    cell(count(proxy.calls_running)), cell(count(proxy.calls_refused)), cell(count(proxy.messages_in_flight)));
}

const cell = (text) => h("td", { class: "right number" }, text);

const rateOf = (rate) => (rate === null ? "–" : `${short(rate)}/s`);
