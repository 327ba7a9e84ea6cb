"""Hand-made faults of what a broker does with messages later: delays, timers, recalls, transactions, retries, pops."""

from __future__ import annotations

from typing import Final

from mutations.planted_fault import Fault

SERVICES: Final = "broker/tests/replication/test_replication_services.py"
POPS: Final = "broker/tests/replication/test_replication_pops.py"
TRANSACTIONS: Final = "broker/tests/replication/test_replication_transactions.py"

DELAYS: Final = (
    Fault(
        "delay level off by one",
        "broker/src/gantry_broker/server/send/handlers.py",
        "topic, queue_id = names.SCHEDULE_TOPIC, level - 1",
        "topic, queue_id = names.SCHEDULE_TOPIC, level",
        "A delayed message is delivered after the time of its own level.",
        judges=("services",),
        is_about_messages=True,
    ),
    Fault(
        "delayed copy dropped",
        "broker/src/gantry_broker/server/delay/service.py",
        "offset = max(progress.next_offset(level), queue.min_offset)",
        "offset = max(progress.next_offset(level), queue.min_offset + 1)",
        "Every acknowledged delayed message is delivered, also the first one of a level.",
        judges=("services",),
        is_about_messages=True,
    ),
    Fault(
        "delay offset of master not settled",
        "broker/src/gantry_broker/server/delay/progress.py",
        "while steps and steps[0].end <= (confirmed if steps[0].is_ours else flushed):",
        "while steps:",
        "A saved delay offset is not ahead of the copies that a crash or a promotion keeps.",
        judges=("services",),
        is_about_messages=True,
    ),
    Fault(
        "timers a second early",
        "broker/src/gantry_broker/server/timers/delivery.py",
        "last_key = min(first_key(now_ms + 1), window.covered)",
        "last_key = min(first_key(now_ms + 1000), window.covered)",
        "A message with a time of its own is never delivered before that time.",
        judges=("services",),
        is_about_messages=True,
    ),
    Fault(
        "recalled timer delivered",
        "broker/src/gantry_broker/server/timers/delivery.py",
        "if cancellation is not None or one.copy_key in self._copies or one.copy_key in copies:",
        "if is_replaced or one.copy_key in self._copies or one.copy_key in copies:",
        "A message that was recalled with success is never delivered.",
        judges=("services",),
        is_about_messages=True,
    ),
    Fault(
        "recalls in due files ignored",
        "broker/src/gantry_broker/server/timers/window.py",
        "                messages.append(data)\n            else:\n                self.cancel(decode_entry(data))\n",
        "                messages.append(data)\n",
        "A recall counts for messages that wait for long, and after a restart.",
        judges=("services",),
        is_about_messages=True,
    ),
    Fault(
        "delay offsets not loaded",
        "broker/src/gantry_broker/server/delay/progress.py",
        "        self._waiting.clear()\n        self._delivered = dict(document.offset_table)\n",
        "        self._waiting.clear()\n        self._delivered = dict.fromkeys(document.offset_table, 0)\n",
        "After a clean stop no delayed message that was delivered is delivered again.",
        judges=("services",),
        is_about_messages=True,
    ),
)

TRANSACTION: Final = (
    Fault(
        "rolled-back half delivered",
        "broker/src/gantry_broker/server/transactions/endings.py",
        "        if outcome is Outcome.COMMITTED:\n            return self._commit(half, message)\n",
        "        if request.commit_or_rollback:\n            return self._commit(half, message)\n",
        "A message whose transaction was rolled back is never delivered.",
        process=(TRANSACTIONS,),
        judges=("services",),
        is_about_messages=True,
    ),
    Fault(
        "open transaction forgotten by a restart",
        "broker/src/gantry_broker/server/transactions/halves.py",
        "while order and order[0] not in self._open and order[0] not in self._ended:",
        "while order and order[0] not in self._ended:",
        "A transaction that is open when the broker stops can be committed afterwards.",
        process=(TRANSACTIONS,),
        judges=("services",),
        is_about_messages=True,
    ),
    Fault(
        "transaction committed twice",
        "broker/src/gantry_broker/server/transactions/halves.py",
        "        self._close(half.queue_offset)\n\n    def outcome",
        "\n    def outcome",
        "A transaction is ended once, however often its producer ends it.",
        process=(TRANSACTIONS,),
        judges=("services",),
        is_about_messages=True,
    ),
)

CONSUMPTION: Final = (
    Fault(
        "retry not counted",
        "broker/src/gantry_broker/server/send/send_back.py",
        "times = min(original.reconsume_times + 1, RECONSUME_TIMES_MAX)",
        "times = min(original.reconsume_times, RECONSUME_TIMES_MAX)",
        "A message that always fails goes to the dead letters after retryMaxTimes attempts.",
        judges=("services",),
        is_about_messages=True,
    ),
    Fault(
        "pull ignores filter",
        "broker/src/gantry_broker/server/pull/handlers.py",
        "accept=message_filter.codes or None,",
        "accept=None,",
        "A pull returns only messages of the tags that it asks for.",
        judges=("services",),
        is_about_messages=True,
    ),
    Fault(
        "expired offset answered as not found",
        "broker/src/gantry_broker/server/pull/handlers.py",
        "ReadStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,",
        "ReadStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_NOT_FOUND,",
        "A consumer whose offset has expired is sent to the first message that is left.",
        judges=("retention",),
        is_about_messages=True,
    ),
    Fault(
        "failed pull stops the others",
        "broker/src/gantry_broker/server/pull/pull_hold.py",
        "except Exception as error:  # noqa: BLE001 - one pull that cannot be answered",
        "except OSError as error:  # one pull that cannot be answered",
        "A held pull that cannot be answered ends its own connection, and no other pull waits for it.",
    ),
    Fault(
        "message skipped where a reply is full",
        "broker/src/gantry_broker/store/reader.py",
        "if count >= count_max or (count and total + size > bytes_max):\n            break\n",
        "if count >= count_max or (count and total + size > bytes_max):\n"
        "            next_offset += 1\n            break\n",
        "Pulls in turn return every message of a queue.",
        process=("broker/tests/crash/test_crash_rounds.py",),
        judges=("replication", "crash:sync-none"),
        is_about_messages=True,
    ),
    Fault(
        "commit applied to every queue",
        "broker/src/gantry_broker/server/core/offsets.py",
        "        if queues.get(queue_id) != offset:\n            queues[queue_id] = offset\n",
        "        if queues.get(queue_id) != offset:\n"
        "            queues.update(dict.fromkeys([*queues, queue_id], offset))\n",
        "A commit of one queue changes the offset of no other queue.",
        judges=("replication",),
        is_about_messages=True,
    ),
    Fault(
        "pop ack kept in memory only",
        "broker/src/gantry_broker/server/pop/writer.py",
        "entries += [ack_entry(checkpoint, bits) for checkpoint, bits in acked if bits]",
        "entries += [ack_entry(checkpoint, bits) for checkpoint, bits in acked if bits][:-1]",
        "A popped message whose ack was answered is never delivered again, also after a crash.",
        process=(POPS,),
        judges=("pops",),
        is_about_messages=True,
    ),
    Fault(
        "pop checkpoint not stored",
        "broker/src/gantry_broker/server/pop/writer.py",
        "entries = [checkpoint_entry(checkpoint) for checkpoint in checkpoints]",
        "entries = [checkpoint_entry(checkpoint) for checkpoint in checkpoints[1:]]",
        "A popped message that was not acked is delivered again, also after a crash.",
        process=(POPS,),
        judges=("pops",),
        is_about_messages=True,
    ),
    Fault(
        "pop delivered again before its time",
        "broker/src/gantry_broker/server/pop/writer.py",
        "checkpoint.due_ms = times.due_ms(checkpoint.pop_time_ms, checkpoint.invisible_ms)",
        "checkpoint.due_ms = times.due_ms(checkpoint.pop_time_ms, checkpoint.invisible_ms // 2)",
        "A popped message is invisible for as long as its consumer asked.",
        process=(POPS,),
        judges=("pops",),
        is_about_messages=True,
    ),
)
