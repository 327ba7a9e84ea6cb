// The dialogs that change the settings of topics and groups, create topics, and delete both.

import { changeDialog, choiceField, textField } from "./changes.js";
import { h } from "./dom.js";
import { plain } from "./format.js";

const PERMISSIONS = [["rw", "read and write"], ["r", "read only"], ["w", "write only"], ["none", "none"]];
const PERMISSION_OF = { "rw": "rw", "r-": "r", "-w": "w", "--": "none" };

/** Show the settings of a topic, as `/v1/topics` has it. */
export function topicDialog(topic) {
  const values = { write: String(topic.write_queues), read: String(topic.read_queues), permission: PERMISSION_OF[topic.permission] ?? "rw" };
  const form = () => [
    textField(values, "write", "Write queues on each broker", { inputmode: "numeric" }),
    textField(values, "read", "Read queues on each broker", { inputmode: "numeric" }),
    choiceField(values, "permission", "Permission of clients", PERMISSIONS),
  ];
  return changeDialog(`Settings of topic ${plain(topic.name)}`, form, () => ({
    kind: "topic", topic: topic.name, write_queues: Number(values.write), read_queues: Number(values.read), permission: values.permission,
  }));
}

/** Show the form of a new topic. */
export function newTopicDialog() {
  const values = { name: "", queues: "8", permission: "rw" };
  const form = () => [
    textField(values, "name", "Name", { autofocus: true }), textField(values, "queues", "Queues on each broker", { inputmode: "numeric" }),
    choiceField(values, "permission", "Permission of clients", PERMISSIONS),
  ];
  return changeDialog("New topic", form, () => ({
    kind: "topic", topic: values.name.trim(), write_queues: Number(values.queues), read_queues: Number(values.queues), permission: values.permission,
  }));
}

/** Show the deletion of a topic; its preview asks for the name. */
export const deleteTopicDialog = (topic) =>
  changeDialog(`Delete topic ${plain(topic.name)}`, () => h("p", null, "The topic and all its messages are deleted on every broker. This cannot be undone."),
    () => ({ kind: "delete-topic", topic: topic.name }));

/** Show the settings of a group that can be changed here. An empty field leaves the setting as it is. */
export function groupDialog(group) {
  const values = { retries: "", consumption: "" };
  const form = () => [
    textField(values, "retries", "Redeliveries before a message becomes a dead letter; empty: unchanged", { inputmode: "numeric" }),
    choiceField(values, "consumption", "Consumption", [["", "unchanged"], ["on", "enabled"], ["off", "disabled"]]),
  ];
  return changeDialog(`Settings of group ${plain(group.name)}`, form, () => ({
    kind: "group", group: group.name, ...(values.retries.trim() === "" ? {} : { retry_max: Number(values.retries) }),
    ...(values.consumption === "" ? {} : { consume_enabled: values.consumption === "on" }),
  }));
}

/** Show the deletion of a group; its preview asks for the name. */
export const deleteGroupDialog = (group) =>
  changeDialog(`Delete group ${plain(group.name)}`, () => h("p", null, "The group, its offsets and its waiting retries are deleted on every broker; its dead letters are kept. Stop its consumers first."),
    () => ({ kind: "delete-group", group: group.name }));
