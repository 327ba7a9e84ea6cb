// Sending messages again: a dialog with the preview, then the progress and the outcome of each message.
//
// The preview is fixed before it is confirmed: the order names its digest, and the sidecar refuses it if the messages
// have changed. A message is shown as sent only if the broker has acknowledged it.

import { askForChanges, changeFault, withToken } from "./access.js";
import { download, get, path, post, Refused, Unreachable } from "./api.js";
import { textField } from "./changes.js";
import { close, show } from "./dialogs.js";
import { h } from "./dom.js";
import { bytes, count, moment, plain, plural } from "./format.js";
import { badge, button, note, table } from "./parts.js";
import { changed, state } from "./store.js";

const POLL_MS = 400;
const ROWS_MAX = 200; // The most rows of a table; a download has all of them.
const TONES = { sent: "good", failed: "bad", unknown: "warn", skipped: "plain" };
const TEXTS = { sent: "sent", failed: "failed", unknown: "unknown, may be stored", skipped: "skipped" };
const current = { job: null, fault: null, isBusy: false, recent: [] };

/** Return whether a resend is being previewed or executed. */
export const isResending = () => current.isBusy;

/** Preview what `body` selects, and send it after the confirmation. Resolves when it has ended. */
export async function resend(body) {
  Object.assign(current, { isBusy: true, fault: null });
  changed();
  try {
    const preview = await withToken(() => post(path("resend-preview"), body), "Reading messages requires a token.");
    if (await confirmed(preview) && await askForChanges("Resending messages requires a token that permits changes.")) await execute({ ...body, digest: preview.digest });
  } catch (error) {
    current.fault = error.message;
  }
  current.isBusy = false;
  await loadRecent();
}

/** Ask for the target of an ordinary message, then preview and send it. `message` is as `/v1/queues` has it. */
export async function resendMessage(message, brokerName) {
  const values = { target: message.topic };
  const isChosen = await show("resend-target", () => ({
    title: "Resend this message",
    body: [
      h("p", { class: "faint mono" }, plain(message.message_id)),
      h("form", { onsubmit: (event) => { event.preventDefault(); close(true); } }, textField(values, "target", "Target topic, which must exist", { list: "resend-topics", autofocus: true }),
        h("datalist", { id: "resend-topics" }, (state.topics?.topics ?? []).filter((topic) => topic.kind === "user").map((topic) => h("option", { value: topic.name, key: topic.name })))),
    ],
    actions: [button("Cancel", () => close(false)), button("Preview", () => close(true), { class: "primary" })],
  }));
  if (!isChosen) return;
  await resend({
    topic: message.topic, to_topic: values.target.trim(), include_resent: true,
    positions: [{ broker_name: brokerName, queue_id: message.queue_id, offset: message.queue_offset }],
  });
}

const confirmed = (preview) =>
  show("details resend", () => {
    const fault = changeFault();
    return {
      title: preview.send_count === 0 ? "No message can be resent" : `Resend ${plural(preview.send_count, "message")}?`,
      body: [
        h("p", { key: "sum" }, preview.send_count === 0 ? "None of the selected messages can be sent now." : [
          `${bytes(preview.send_bytes)} to `, h("b", { class: "mono" }, targetsOf(preview.messages)), ". Every group of the target receives them, with their ids and keys."]),
        fault === "" ? null : note("warn", fault),
        preview.remaining > 0 ? note("warn", `${count(preview.remaining)} more messages were not examined; resend again afterwards.`) : null,
        planTable(preview.messages),
      ],
      actions: [
        button("Cancel", () => close(false), { autofocus: true }),
        button(`Resend ${count(preview.send_count)}`, () => close(true), { class: "primary", disabled: preview.send_count === 0 || fault !== "", title: fault || null }),
      ],
    };
  });

const targetsOf = (messages) =>
  [...new Set(messages.filter((one) => one.verdict === "send").map((one) => plain(one.target)))].slice(0, 5).join(", ");

const COLUMNS = [{ title: "Position" }, { title: "Id" }, { title: "Target" }, { title: "Size", class: "right" }];

const cells = (one) => [
  h("td", { class: "number" }, `${one.broker_name} · ${one.queue_id} · ${count(one.offset)}`),
  h("td", { class: "mono" }, plain(one.message_id) || "–"),
  h("td", { class: "mono" }, one.target === null ? "–" : plain(one.target)),
  h("td", { class: "right number" }, bytes(one.bytes)),
];

const keyOf = (one) => `${one.broker_name}/${one.queue_id}/${one.offset}`;

function planTable(messages) {
  const rows = messages.slice(0, ROWS_MAX).map((one) => h("tr", { key: keyOf(one), "data-verdict": one.verdict }, cells(one),
    h("td", null, badge(one.verdict === "send" ? "good" : "warn", one.verdict), one.reason === "" ? null : ` ${plain(one.reason)}`,
      one.resent_wall_ms === null ? null : h("span", { class: "faint" }, ` copy stored ${moment(one.resent_wall_ms)}`))));
  return [table("Messages of the preview", [...COLUMNS, { title: "Decision" }], rows), leftOut(messages.length)];
}

const leftOut = (number) => (number > ROWS_MAX ? note("plain", `${count(number - ROWS_MAX)} more are not shown.`) : null);

async function execute(body) {
  current.job = await post(path("resends"), body);
  await follow();
}

async function follow() {
  while (current.job.state === "running") {
    changed();
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
    current.job = await get(path("resends", current.job.id));
  }
}

async function stop() {
  try {
    await post(path("resends", current.job.id, "stop"), {});
  } catch (error) {
    current.fault = error.message;
    changed();
  }
}

async function save(form) {
  try {
    await download(`${path("resends", current.job.id, "outcomes")}?format=${form}`, `resend-${current.job.id}.${form}`);
  } catch (error) {
    current.fault = error.message;
    changed();
  }
}

/** Load the last resends of this sidecar, so that outcomes can be seen after a reload, and by others. */
export async function loadRecent() {
  try {
    current.recent = (await get(path("resends"))).resends;
  } catch (error) {
    if (!(error instanceof Refused || error instanceof Unreachable)) throw error;
    current.recent = []; // the request of the view itself shows the fault
  }
  changed();
}

async function openRecent(event) {
  const { value } = event.target;
  if (value === "" || current.isBusy) return;
  Object.assign(current, { isBusy: true, fault: null });
  try {
    current.job = await get(path("resends", value));
    await follow();
  } catch (error) {
    current.fault = error.message;
  }
  current.isBusy = false;
  changed();
}

/** Return the choice of an earlier resend, or null without any. */
export const recentResends = () =>
  current.recent.length === 0 ? null : h("label", { class: "field row", key: "recent" }, h("span", null, "Earlier resends"),
    h("select", { name: "recent", onchange: openRecent }, h("option", { value: "", key: "" }, "choose"), current.recent.map((one) =>
      h("option", { key: one.id, value: one.id }, `${moment(one.started_wall_ms)} · ${plain(one.group ?? one.topic)} · ${plural(one.message_count, "message")}`))));

/** Return the outcomes of the resend that this page shows; null without any. */
export function outcomes() {
  const { job, fault } = current;
  if (job === null) return fault === null ? null : h("div", { class: "outcome", role: "alert" }, note("bad", fault));
  const sum = Object.entries(job.counts).filter(([, number]) => number > 0).map(([kind, number]) => `${count(number)} ${TEXTS[kind]}`);
  const isBad = job.counts.failed + job.counts.unknown > 0;
  const done = Object.values(job.counts).reduce((total, number) => total + number, 0);
  const text = job.state === "running" ? `Resending: ${count(done)} of ${count(job.message_count)}` : `Resend ${job.state}: ${sum.join(", ") || "no messages"}.`;
  return h("section", { class: "panel outcome", key: "outcomes", "aria-label": "Outcomes of the resend" },
    fault === null ? null : h("div", { role: "alert" }, note("bad", fault)),
    h("header", { class: "panel-head wrap" }, h("div", { role: "status", "aria-live": "polite" }, note(job.state === "running" ? "plain" : isBad || job.state === "stopped" ? "warn" : "good", text)), h("span", { class: "grow" }),
      job.state === "running" ? button("Stop", stop) : null,
      button("Download JSON lines", () => save("jsonl"), { class: "quiet" }), button("Download CSV", () => save("csv"), { class: "quiet" }),
      job.state === "running" ? null : button("Close", () => { current.job = null; current.fault = null; changed(); }, { class: "quiet", "aria-label": "Close the outcomes" })),
    table("Outcomes", [...COLUMNS, { title: "Outcome" }, { title: "Copy" }], job.outcomes.slice(0, ROWS_MAX).map((one) => h("tr", { key: keyOf(one), "data-outcome": one.outcome }, cells(one),
      h("td", null, badge(TONES[one.outcome], TEXTS[one.outcome]), one.reason === "" ? null : ` ${plain(one.reason)}`),
      h("td", { class: "mono" }, one.new_offset_message_id === null ? "–" : `${one.new_broker_name} · ${one.new_queue_id} · ${count(one.new_offset)}`)))),
    leftOut(job.outcomes.length));
}
