"""Hand-made faults of the wire format and of the store, of which most lose or show messages after a crash."""

from __future__ import annotations

from typing import Final

from mutations.planted_fault import Fault

POWER: Final = "broker/tests/faults/test_fault_in_memory.py"
KILLS: Final = "broker/tests/crash/test_crash_rounds.py"

WIRE: Final = (
    Fault(
        "seal not compared",
        "broker/src/gantry_wire/message.py",
        "if seal_start < properties_start or SEAL.unpack_from(data, seal_start)[0] != expected:",
        "if seal_start < properties_start:",
        "A record whose checksum does not match is never taken for a message.",
        process=("broker/tests/faults/test_fault_rot.py", "broker/tests/damage/test_damage_slice.py"),
        judges=("histories", "damage:log-middle/one bit"),
        is_about_messages=True,
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
        judges=("services",),
        is_about_messages=True,
    ),
)

STORE: Final = (
    Fault(
        "acknowledged before fsync",
        "broker/src/gantry_broker/store/positions.py",
        "return _limit_to_acked(positions.flushed if is_sync_flush else positions.wrote, positions)",
        "return _limit_to_acked(positions.wrote, positions)",
        "With SYNC_FLUSH a message is on the disk before its send is acknowledged.",
        process=("broker/tests/faults/test_fault_slow_sync.py",),
        judges=(
            "groups",
            "histories",
        ),
        is_about_messages=True,
    ),
    Fault(
        "only first file synced",
        "broker/src/gantry_broker/store/commit_log.py",
        "if file.end_offset > flushed and file.base_offset < end:",
        "if file.base_offset <= flushed < file.end_offset:",
        "What counts as flushed survives a power loss, also after a roll to the next file.",
        process=(POWER,),
        judges=("histories",),
        is_about_messages=True,
    ),
    Fault(
        "flushed counts bytes of a later commit",
        "broker/src/gantry_broker/store/commit_log.py",
        "                crash_points.hit(crash_points.AFTER_SYNC)\n                self.flushed = end\n",
        "                crash_points.hit(crash_points.AFTER_SYNC)\n"
        "                self.flushed = end = self.committed\n",
        "Bytes that are committed while a sync runs count as flushed only after the next sync.",
        process=(POWER,),
        judges=("histories", "replication"),
        is_about_messages=True,
    ),
    Fault(
        "failed flush is tried again",
        "broker/src/gantry_broker/store/flusher.py",
        "            except OSError as exc:\n"
        '                self._failure.report("a flush", exc)\n'
        "                return False\n",
        "            except OSError:\n                return True\n",
        "After a failed fsync nothing more is acknowledged: the disk may have dropped what was written.",
        process=("broker/tests/faults/test_fault_sync_errors.py",),
        judges=("histories",),
        is_about_messages=True,
    ),
    Fault(
        "name of new file not synced",
        "broker/src/gantry_broker/store/next_file.py",
        "                file.file.sync()\n                self._files.disk.sync_directory(self._files.directory)\n"
        "        except StoreFull:",
        "                file.file.sync()\n        except StoreFull:",
        "A log file that holds flushed messages has its name after a power loss.",
        process=(POWER,),
        judges=("histories",),
        is_about_messages=True,
    ),
    Fault(
        "tail is cut without zeros",
        "broker/src/gantry_broker/store/commit_log.py",
        "file.file.zero(end - file.base_offset, file.size)",
        "file.file.zero(end - file.base_offset, min(end - file.base_offset + 8, file.size))",
        "Records that a recovery or a new master has cut off never return.",
        process=(KILLS,),
        judges=("histories", "scenario:durable-cut"),
        is_about_messages=True,
    ),
    Fault(
        "recovered log not synced",
        "broker/src/gantry_broker/store/recovery_execution.py",
        "            if file.end_offset >= sync_from:\n                file.file.sync()\n",
        "            if file.base_offset > end:\n                file.file.sync()\n",
        "What a start has recovered survives a second power loss right after it.",
        process=(POWER,),
        judges=("histories",),
        is_about_messages=True,
    ),
    Fault(
        "forced deletion takes one file too many",
        "broker/src/gantry_broker/store/retention.py",
        "takewhile(lambda file: file.end_offset <= end, removable)",
        "takewhile(lambda file: file.base_offset <= end, removable)",
        "A full disk costs no message that some group has not consumed, unless deleteUnconsumed is set.",
        process=("broker/tests/faults/test_fault_full_disk.py",),
        judges=("retention",),
        is_about_messages=True,
    ),
    Fault(
        "queue end off by one",
        "broker/src/gantry_broker/store/queue_search.py",
        "lambda unit: unit[0] < physical,",
        "lambda unit: unit[0] <= physical,",
        "What a member cuts from its log to follow a new master is gone from its queues, too.",
        process=("broker/tests/replication/test_replication_returns.py",),
        judges=("histories", "replication"),
        is_about_messages=True,
    ),
    Fault(
        "offsets of an empty queue given again",
        "broker/src/gantry_broker/store/derived.py",
        "                if queue.end < end and not queue.files.files:\n"
        "                    queue.start_at(end)\n"
        "                elif queue.end < end and is_trusted:\n",
        "                if queue.end < end and queue.files.files and is_trusted:\n",
        "A queue whose messages have all expired continues at its next offset after a start.",
        process=("broker/tests/faults/test_fault_derived.py",),
        judges=("histories",),
        is_about_messages=True,
    ),
    Fault(
        "buffer of earlier start replayed",
        "broker/src/gantry_broker/store/replay.py",
        "if buffer.generation != expected.generation:",
        "if buffer.generation > expected.generation:",
        "Bytes that a recovery has cut off never return from a write buffer.",
        process=("broker/tests/faults/test_fault_buffers.py",),
        judges=("histories",),
        is_about_messages=True,
    ),
    Fault(
        "last record of replay lost",
        "broker/src/gantry_broker/store/replay.py",
        "        if check.is_good:\n            offset += check.size\n            records += 1\n",
        "        follows = view[offset - base + check.size : offset - base + check.size + 8]\n"
        "        if check.is_good and any(follows):\n            offset += check.size\n            records += 1\n",
        "A start restores every acknowledged message that a write buffer holds, also the last one.",
        process=("broker/tests/faults/test_fault_buffers.py", KILLS),
        judges=("histories", "crash:async-tmpfs"),
        is_about_messages=True,
    ),
    Fault(
        "shown before committed",
        "broker/src/gantry_broker/store/positions.py",
        "return _limit_to_acked(positions.wrote if is_crash_safe else positions.committed, positions)",
        "return _limit_to_acked(positions.wrote, positions)",
        "A consumer never sees a message that a crash of the process takes back.",
        process=(KILLS,),
        judges=("histories", "crash:async-anonymous"),
        is_about_messages=True,
    ),
)
