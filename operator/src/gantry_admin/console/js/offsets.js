// The dialog that resets a group's offsets in a topic: to an end, a time, an offset, or by a number of messages.

import { changeDialog, choiceField, textField } from "./changes.js";
import { plain } from "./format.js";
import { note } from "./parts.js";
import { state } from "./store.js";

const TARGETS = [
  ["earliest", "the oldest message"], ["latest", "the end"], ["time", "a time"], ["shift", "a number of messages back or forward"], ["offset", "an offset in one queue"],
];

/** Show the dialog for the offsets of a group, as `/v1/groups` has it. */
export function resetDialog(group) {
  const topics = [...new Set(group.queues.map((queue) => queue.topic))].filter((topic) => !topic.startsWith("%"));
  if (topics.length === 0) topics.push("");
  const queue = group.queues.find((one) => one.topic === topics[0]);
  const values = { topic: topics[0], to: "earliest", time: localNow(), shift: "-100", offset: String(queue?.consumed ?? 0), queue: String(queue?.queue_id ?? 0), broker: brokerName() };
  const form = () => [
    topics[0] === "" ? note("plain", "This group has committed no offsets on this broker. Enter the topic.") : null,
    topics[0] === "" ? textField(values, "topic", "Topic") : choiceField(values, "topic", "Topic", topics.map((name) => [name, plain(name)])),
    choiceField(values, "to", "Reset to", TARGETS),
    values.to === "time" ? textField(values, "time", `Time, in your time zone (${zone()})`, { type: "datetime-local", step: 1 }) : null,
    values.to === "shift" ? textField(values, "shift", "Messages in each queue; negative to consume again", { inputmode: "numeric" }) : null,
    values.to === "offset" ? [textField(values, "offset", "Offset", { inputmode: "numeric" }), textField(values, "queue", "Queue", { inputmode: "numeric" }), textField(values, "broker", "Broker")] : null,
  ];
  const bodyOf = () => ({ kind: "reset-offsets", group: group.name, topic: values.topic, ...targetOf(values) });
  return changeDialog(`Reset offsets of ${plain(group.name)}`, form, bodyOf);
}

function targetOf(values) {
  if (values.to === "time") return { timestamp_ms: new Date(values.time).getTime() };
  if (values.to === "shift") return { shift: Number(values.shift) };
  if (values.to === "offset") return { offset: Number(values.offset), queues: [{ broker_name: values.broker, queue_id: Number(values.queue) }] };
  return { to: values.to };
}

const brokerName = () => state.shard ?? state.group?.members.find((member) => member.is_self)?.status?.broker_name ?? "";

const zone = () => Intl.DateTimeFormat().resolvedOptions().timeZone;

/** Return the local time an hour ago as the value of a datetime-local field. */
function localNow() {
  const then = new Date(Date.now() - 3_600_000);
  return new Date(then.getTime() - then.getTimezoneOffset() * 60_000).toISOString().slice(0, 19);
}
