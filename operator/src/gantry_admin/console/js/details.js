// The dialog with all details of one broker, updated while it is open.

import { h } from "./dom.js";
import { close, show } from "./dialogs.js";
import { bytes, count, duration, exactly, isKnown, moment, UNKNOWN } from "./format.js";
import { healthOf, hostOf, titleOf } from "./model.js";
import { facts } from "./parts.js";
import { state } from "./store.js";

/** Show the details of the member whose sidecar is at `url`. */
export function openDetails(url) {
  show("details", () => {
    const member = state.group?.members.find((one) => one.url === url);
    if (member === undefined) return null;
    const health = healthOf(member);
    return {
      title: titleOf(member),
      body: [
        h("p", { class: `member-health ${health.tone}` }, h("b", null, health.word), h("span", null, health.reason)),
        member.status === null ? null : factGroups(member),
      ],
      actions: [h("button", { type: "button", class: "button", onclick: close }, "Close")],
    };
  });
}

function factGroups(member) {
  const { status } = member;
  const { reported_role: reported } = status;
  return h("div", { class: "fact-groups" },
    section("Role", [
      ["role", status.role ?? UNKNOWN],
      ["epoch", `${status.epoch ?? UNKNOWN}${reported && reported.promised_epoch > (status.epoch ?? 0) ? `, promised ${reported.promised_epoch}` : ""}`],
      ["follows", reported?.master ?? "no master"],
      ["electable members", reported?.electable.join(", ") || "none"],
      ["acks needed", count(reported?.acks_needed)],
      ["may acknowledge", reported ? (reported.may_acknowledge ? "yes" : "no") : UNKNOWN],
      reported?.problem ? ["error", reported.problem] : null,
    ]),
    section("Log", [
      ["range", `[${count(status.oldest)}, ${count(status.wrote)})`],
      ["committed", count(status.committed)], ["flushed", count(status.flushed)],
      ["acked", count(status.acked)], ["confirmed", count(status.confirmed)],
      ["store", status.store_uuid ?? UNKNOWN], ["generation", count(status.generation)],
    ]),
    section("Process", [
      ["sidecar", hostOf(member)], ["version", status.version ?? UNKNOWN],
      ["hot path", status.hot_path ? `${status.hot_path}${status.hot_path_reason ? `: ${status.hot_path_reason}` : ""}` : UNKNOWN],
      ["process", status.pid ?? UNKNOWN],
      ["started", exactly(status.started_wall_ms)], ["phase", status.phase ?? UNKNOWN],
      ["last heartbeat", `${moment(status.loop_state.last_heartbeat_wall_ms)} (${isKnown(status.loop_state.since_ms) ? `${duration(status.loop_state.since_ms / 1000)} ago` : "before the boot"})`],
      ["boot", status.boot_id ?? UNKNOWN],
    ]),
    section("Resources", [
      ["disk", status.disk === null ? UNKNOWN : `${bytes(status.disk.used_bytes)} of ${bytes(status.disk.total_bytes)}`],
      ["write buffer", buffer(status)], ["connections", count(status.connections)], ["queues", count(status.queues)],
      ["held sends", count(status.held_sends)], ["refusing sends", status.is_refusing_sends === null ? UNKNOWN : status.is_refusing_sends ? "yes" : "no"],
      status.certificate_ends_wall_ms ? ["certificate ends", exactly(status.certificate_ends_wall_ms)] : null,
      status.last_error ? ["last error", `${status.last_error} (${moment(status.last_error_wall_ms)})`] : null,
    ]));
}

const section = (title, pairs) => h("section", { key: title }, h("h3", null, title), facts(pairs));

function buffer(status) {
  if (!status.buffer?.buffers_total) return "none";
  const { medium, buffers_free: free, buffers_total: total, is_crash_safe: isSafe } = status.buffer;
  return `${medium}, ${free} of ${total} free, ${isSafe ? "survives a process crash" : "lost in a process crash"}`;
}
