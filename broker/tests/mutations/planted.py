"""Thirty hand-made faults: each is a programmer's mistake that breaks one promise to users, and compiles.

A fault replaces one exact piece of one source file. ``run_mutations.py`` applies one at a time to a copy of the tree
and runs the tests there; ``test_mutations.py`` checks that each still fits its file. When the code around a piece
changes, change ``before`` and ``after`` with it. A fault that has become impossible is replaced by another one of its
package.

No fault is equivalent to the code that it replaces, and none changes only a log message.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Fault(NamedTuple):
    """One fault to plant into the source code."""

    name: str
    file: str
    """The source file, from the root of the repository."""

    before: str
    """The original code, which occurs exactly once."""

    after: str
    """The code that replaces it."""

    promise: str
    """What users can rely on, and cannot with this fault."""


WIRE: Final = (
    Fault(
        "seal not compared",
        "broker/src/gantry_wire/message.py",
        "if seal_start < properties_start or SEAL.unpack_from(data, seal_start)[0] != expected:",
        "if seal_start < properties_start:",
        "A record whose checksum does not match is never taken for a message.",
    ),
    Fault(
        "length in batch not checked",
        "broker/src/gantry_wire/batch.py",
        "if properties_bytes < 0 or body_end + _SHORT.size + properties_bytes != end:",
        "if properties_bytes < 0 or body_end + _SHORT.size + properties_bytes > end:",
        "A batch whose lengths contradict each other is refused.",
    ),
    Fault(
        "tags not stripped",
        "broker/src/gantry_wire/filters.py",
        'tags = frozenset(tag.strip() for tag in expression.split("||") if tag.strip())',
        'tags = frozenset(tag for tag in expression.split("||") if tag.strip())',
        "A subscription to `A || B` gets the messages of both tags.",
    ),
)

STORE: Final = (
    Fault(
        "only first file synced",
        "broker/src/gantry_broker/store/commit_log.py",
        "if file.end_offset > flushed and file.base_offset < end:",
        "if file.base_offset <= flushed < file.end_offset:",
        "What counts as flushed survives a power loss, also after a roll to the next file.",
    ),
    Fault(
        "name of new file not synced",
        "broker/src/gantry_broker/store/next_file.py",
        "                file.file.sync()\n                self._files.disk.sync_directory(self._files.directory)\n"
        "        except StoreFull:",
        "                file.file.sync()\n        except StoreFull:",
        "A log file that holds flushed messages has its name after a power loss.",
    ),
    Fault(
        "forced deletion takes one file too many",
        "broker/src/gantry_broker/store/retention.py",
        "takewhile(lambda file: file.end_offset <= end, removable)",
        "takewhile(lambda file: file.base_offset <= end, removable)",
        "A full disk costs no message that some group has not consumed, unless deleteUnconsumed is set.",
    ),
    Fault(
        "queue end off by one",
        "broker/src/gantry_broker/store/queue_search.py",
        "lambda unit: unit[0] < physical,",
        "lambda unit: unit[0] <= physical,",
        "What a member cuts from its log to follow a new master is gone from its queues, too.",
    ),
    Fault(
        "buffer of earlier start replayed",
        "broker/src/gantry_broker/store/replay.py",
        "if buffer.generation != expected.generation:",
        "if buffer.generation > expected.generation:",
        "Bytes that a recovery has cut off never return from a write buffer.",
    ),
    Fault(
        "shown before committed",
        "broker/src/gantry_broker/store/positions.py",
        "return _limit_to_acked(positions.wrote if is_crash_safe else positions.committed, positions)",
        "return _limit_to_acked(positions.wrote, positions)",
        "A consumer never sees a message that a crash of the process takes back.",
    ),
)

REPLICATION: Final = (
    Fault(
        "fastest slave counts for all",
        "broker/src/gantry_broker/ha/acknowledgement.py",
        "end = levels[self.acks_needed - 1] if",
        "end = levels[0] if",
        "A message is acknowledged when as many slaves have it as inSyncReplicas demands.",
    ),
    Fault(
        "acks of older epoch count",
        "broker/src/gantry_broker/ha/acknowledgement.py",
        "return end if end >= self._epoch_start else -1",
        "return end",
        "An ack that ends before the master's epoch proves nothing, since an election would not see it.",
    ),
    Fault(
        "one grant is enough",
        "broker/src/gantry_broker/ha/acknowledgement.py",
        "by_slaves = min(self._until_ms.get(broker_id, -1) for broker_id in self.electable)",
        "by_slaves = max(self._until_ms.get(broker_id, -1) for broker_id in self.electable)",
        "A master stops acknowledging before a slave that granted nothing more can be promoted.",
    ),
    Fault(
        "promise kept in memory before disk",
        "broker/src/gantry_broker/ha/role_files.py",
        "            self._write(promise, self._paths)\n            self.promise = promise\n",
        "            self.promise = promise\n            self._write(promise, self._paths)\n",
        "A vote that could not be written is not answered as given when it is asked for again.",
    ),
    Fault(
        "longer log beats newer epoch",
        "operator/src/gantry_spec/ballot.py",
        "return self.last_epoch, self.end",
        "return self.end, self.last_epoch",
        "An election is won by the newest epoch, and only within it by the longest log.",
    ),
)

SERVER: Final = (
    Fault(
        "delay level off by one",
        "broker/src/gantry_broker/server/send/handlers.py",
        "topic, queue_id = names.SCHEDULE_TOPIC, level - 1",
        "topic, queue_id = names.SCHEDULE_TOPIC, level",
        "A delayed message is delivered after the time of its own level.",
    ),
    Fault(
        "retry not counted",
        "broker/src/gantry_broker/server/send/send_back.py",
        "times = min(original.reconsume_times + 1, RECONSUME_TIMES_MAX)",
        "times = min(original.reconsume_times, RECONSUME_TIMES_MAX)",
        "A message that always fails goes to the dead letters after retryMaxTimes attempts.",
    ),
    Fault(
        "pull ignores filter",
        "broker/src/gantry_broker/server/pull/handlers.py",
        "accept=message_filter.codes or None,",
        "accept=None,",
        "A pull returns only messages of the tags that it asks for.",
    ),
    Fault(
        "expired offset answered as not found",
        "broker/src/gantry_broker/server/pull/handlers.py",
        "ReadStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,",
        "ReadStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_NOT_FOUND,",
        "A consumer whose offset has expired is sent to the first message that is left.",
    ),
    Fault(
        "failed pull stops the others",
        "broker/src/gantry_broker/server/pull/pull_hold.py",
        "except Exception as error:  # noqa: BLE001 - one pull that cannot be answered",
        "except OSError as error:  # one pull that cannot be answered",
        "A held pull that cannot be answered ends its own connection, and no other pull waits for it.",
    ),
)

CLIENT: Final = (
    Fault(
        "one attempt too few",
        "broker/src/gantry_client/sender.py",
        "if len(attempts) > self._settings.retries:",
        "if len(attempts) >= self._settings.retries:",
        "A send is tried again as often as `retries` says.",
    ),
    Fault(
        "message lost when not taken back",
        "broker/src/gantry_client/handling.py",
        "        if retry is not None and not await self._send_back_or_retry(item, retry.delay_level):\n"
        "            return\n",
        "        if retry is not None:\n            await self._send_back_or_retry(item, retry.delay_level)\n",
        "A message that its handler refused and no broker took back is handled again.",
    ),
)

NAME_SERVER: Final = (
    Fault(
        "silent broker never expires",
        "broker/src/gantry_nameserver/directory.py",
        "return self.last_heartbeat_ms + self.heartbeat_timeout_ms < now_ms",
        "return self.last_heartbeat_ms - now_ms > self.heartbeat_timeout_ms",
        "A broker without heartbeats leaves all routes.",
    ),
)

ACCESS: Final = (
    Fault(
        "unknown message may be read",
        "broker/src/gantry_access/guard.py",
        "if resolved is None or not account.has_permission(resolved, peer):",
        "if resolved is not None and not account.has_permission(resolved, peer):",
        "A message whose topic is not known is readable for administrators only.",
    ),
    Fault(
        "client certificate optional",
        "broker/src/gantry_remoting/tls_contexts.py",
        "context.verify_mode = ssl.CERT_REQUIRED if requires_client_certificate else ssl.CERT_OPTIONAL",
        "context.verify_mode = ssl.CERT_OPTIONAL",
        "A listener that demands client certificates refuses clients without one.",
    ),
)

COMMAND_LINE: Final = (
    Fault(
        "silent broker called serving",
        "operator/src/gantry_cli/status/page.py",
        "    if reading.is_stale():\n        return EXIT_UNRESPONSIVE\n",
        "    if reading.is_writer_alive is False:\n        return EXIT_UNRESPONSIVE\n",
        "`gantry status --page` exits with 4 when the broker's event loop stands still.",
    ),
)

OPERATOR: Final = (
    Fault(
        "volumes deleted with their shard",
        "operator/src/gantry_operator/execute/pruner.py",
        "SHARD_KINDS: Final = (SERVICES, CONFIG_MAPS,",
        "SHARD_KINDS: Final = (CLAIMS, SERVICES, CONFIG_MAPS,",
        "The operator never deletes a PersistentVolumeClaim.",
    ),
    Fault(
        "promotes without an order",
        "operator/src/gantry_spec/decide/election.py",
        "if last is not None and winner.number != last.master and not view.may_move:",
        "if last is not None and winner.number == last.master and not view.may_move:",
        "With failover.mode Manual or Disabled no other member becomes master without an order.",
    ),
    Fault(
        "ready without right to acknowledge",
        "operator/src/gantry_admin/health.py",
        "if not state.may_acknowledge:",
        "if not state.may_acknowledge and state.problem:",
        "A master that may not acknowledge sends is not ready.",
    ),
)

PIPELINES: Final = (
    Fault(
        "file shown before its record",
        "pipelines/src/gantry_pipelines/archive/writer.py",
        "            self.add_record(record_of(query_id, batch_id, file))\n"
        "            crash_points.hit(crash_points.AFTER_RECORD)\n"
        "            if file.kind is RangeKind.DATA:\n"
        "                self.storage.publish(file.staged, file.place.path)\n",
        "            if file.kind is RangeKind.DATA:\n"
        "                self.storage.publish(file.staged, file.place.path)\n"
        "            crash_points.hit(crash_points.AFTER_RECORD)\n"
        "            self.add_record(record_of(query_id, batch_id, file))\n",
        "Readers that list an archive never see more than its manifest has.",
    ),
    Fault(
        "last message of range skipped",
        "pipelines/src/pyspark_rocketmq/planning.py",
        "while at < extent.range.end:",
        "while at < extent.range.end - 1:",
        "The tasks of a Spark read together have every message that was asked for.",
    ),
)

FAULTS: Final = (
    *WIRE, *STORE, *REPLICATION, *SERVER, *CLIENT, *NAME_SERVER, *ACCESS, *COMMAND_LINE, *OPERATOR, *PIPELINES,
)  # fmt: skip
"""All hand-made faults, by part of the product."""


def mutated(fault: Fault, text: str) -> str:
    """Return the text of the file with the fault in it. Raises ValueError unless ``before`` occurs exactly once."""
    count = text.count(fault.before)
    if count != 1:
        raise ValueError(f'fault "{fault.name}": its piece occurs {count} times in {fault.file}, expected once')
    return text.replace(fault.before, fault.after)
