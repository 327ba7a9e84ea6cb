// The view of a broker's accounts: users and the rules of their policies. It shows no secrets, and changes nothing.

import { withToken } from "./access.js";
import { get } from "./api.js";
import { h } from "./dom.js";
import { count, plain, plural } from "./format.js";
import { badge, empty, note, table } from "./parts.js";
import { changed, state, withShard } from "./store.js";
import { shardSelector } from "./topics.js";

const shown = { shard: undefined, document: null, fault: null };

/** Return the view of accounts. */
export function accountsView() {
  if (shown.shard !== state.shard) {
    Object.assign(shown, { shard: state.shard, document: null, fault: null });
    queueMicrotask(load);
  }
  const { document, fault } = shown;
  return h("section", { class: "panel", "aria-labelledby": "title" },
    h("header", { class: "panel-head wrap" }, h("h1", { id: "title" }, "Accounts"), document === null ? null : h("span", { class: "faint" }, plural(document.accounts.length, "account")),
      h("span", { class: "grow" }), shardSelector()),
    fault === null ? null : h("div", { role: "alert" }, note("bad", fault)),
    document === null ? (fault === null ? empty("Reading…", "The accounts of this broker.") : null) : content(document));
}

function content(document) {
  if (!document.is_access_controlled) {
    return empty("No access control", "This broker requires no accounts: every client may send, consume and administer. Set authenticationEnabled on the broker to require them.");
  }
  if (document.accounts.length === 0) return empty("No accounts", "This broker has no users yet.");
  return [
    document.left_out > 0 ? note("plain", `${count(document.left_out)} more are not shown.`) : null,
    table("Accounts table", [{ title: "Account" }, { title: "Type" }, { title: "Status" }, { title: "Rules" }], document.accounts.map((account) =>
      h("tr", { key: account.name, "data-account": account.name }, h("td", { class: "mono" }, plain(account.name)), h("td", null, plain(account.type)), h("td", null, plain(account.status)),
        h("td", null, account.rules.length === 0 ? h("span", { class: "faint" }, account.type === "Super" ? "every permission" : "none") : account.rules.map(ruleLine),
          account.rules_left_out > 0 ? h("p", { class: "faint" }, `${count(account.rules_left_out)} more rules`) : null)))),
  ];
}

const ruleLine = (rule, at) =>
  h("div", { key: at }, badge(rule.decision.toLowerCase() === "deny" ? "bad" : "good", plain(rule.decision)), " ",
    h("span", { class: "mono" }, plain(rule.resource)), ` ${plain(rule.actions.join(", "))}`, rule.source_ips.length === 0 ? null : h("span", { class: "faint" }, ` from ${plain(rule.source_ips.join(", "))}`));

async function load() {
  const { shard } = state;
  try {
    const document = await withToken(() => get(withShard("/v1/accounts")), "Reading accounts requires a token.");
    if (shown.shard === shard) Object.assign(shown, { document, fault: null });
  } catch (error) {
    if (shown.shard === shard) shown.fault = error.message;
  }
  changed();
}
