"""Hand-made faults of replication and of roles: acks, promises, grants, and the logs of returning members."""

from __future__ import annotations

from typing import Final

from mutations.planted_fault import Fault

ROGUES: Final = "broker/tests/replication/test_replication_rogues.py"
RETURNS: Final = "broker/tests/replication/test_replication_returns.py"
SHOWN: Final = "broker/tests/replication/test_replication_shown.py"
SLAVES: Final = "broker/tests/replication/test_replication_slaves.py"
FAILOVER: Final = "broker/tests/replication/test_replication_failover.py"

REPLICATION: Final = (
    Fault(
        "fastest slave counts for all",
        "broker/src/gantry_broker/ha/acknowledgement.py",
        "end = levels[self.acks_needed - 1] if",
        "end = levels[0] if",
        "A message is acknowledged when as many slaves have it as inSyncReplicas demands.",
        process=(SLAVES,),
        judges=("scenario:every-ack",),
        is_about_messages=True,
    ),
    Fault(
        "acks of older epoch count",
        "broker/src/gantry_broker/ha/acknowledgement.py",
        "return end if end >= self._epoch_start else -1",
        "return end",
        "An ack that ends before the master's epoch proves nothing, since an election would not see it.",
        process=(SLAVES,),
        judges=("replication",),
        is_about_messages=True,
    ),
    Fault(
        "acks of one identity count twice",
        "broker/src/gantry_broker/ha/acknowledgement.py",
        "if any(one.identity == identity or one.broker_id == broker_id for one in self._slaves.values()):",
        "if any(one.broker_id == broker_id and one.identity != identity for one in self._slaves.values()):",
        "A peer that claims the identity of a connected slave acknowledges nothing in its name.",
        process=(ROGUES,),
        judges=("scenario:identity",),
        is_about_messages=True,
    ),
    Fault(
        "acks of any peer count",
        "broker/src/gantry_broker/ha/acknowledgement.py",
        "if (not self._electable or one.broker_id in self._electable)",
        "if (not self._electable or one.broker_id >= 0)",
        "Only acks of members that may be elected count.",
        process=(ROGUES,),
        judges=("scenario:electable",),
        is_about_messages=True,
    ),
    Fault(
        "one grant is enough",
        "broker/src/gantry_broker/ha/acknowledgement.py",
        "by_slaves = min(self._until_ms.get(broker_id, -1) for broker_id in self.electable)",
        "by_slaves = max(self._until_ms.get(broker_id, -1) for broker_id in self.electable)",
        "A master stops acknowledging before a slave that granted nothing more can be promoted.",
        process=(FAILOVER,),
        judges=("scenario:every-grant",),
        is_about_messages=True,
    ),
    Fault(
        "held answers leave with a stale grant",
        "broker/src/gantry_broker/server/send/ack_gate.py",
        "return self._store.positions.promised if self._replicas.may_acknowledge() else -1",
        "return self._store.positions.promised",
        "A master whose grants have expired acknowledges nothing, also no send that it accepted before.",
        process=(FAILOVER,),
        judges=("scenario:grants",),
        is_about_messages=True,
    ),
    Fault(
        "slave acknowledges what its crash takes back",
        "broker/src/gantry_broker/ha/store_log.py",
        "return self.store.log.wrote if self.store.pools.status.is_crash_safe else self.store.log.committed",
        "return self.store.log.wrote",
        "A slave acknowledges only what survives the end of its process.",
        process=(SLAVES,),
        judges=("replication",),
        is_about_messages=True,
    ),
    Fault(
        "slave follows after its promise",
        "broker/src/gantry_broker/server/roles/roles.py",
        '        await self.replication.slave.stop()\n        self.problem = f"epoch {epoch} was promised to',
        '        self.problem = f"epoch {epoch} was promised to',
        "A slave that has promised a newer epoch acknowledges nothing to its old master.",
        process=(FAILOVER,),
        judges=("scenario:promises",),
        is_about_messages=True,
    ),
    Fault(
        "slave does not announce its promise",
        "broker/src/gantry_broker/server/roles/slave_replication.py",
        "promised_epoch=self._promises.promise.epoch,",
        "promised_epoch=store.identity.epoch,",
        "A slave follows no master of an epoch below the one that it has promised.",
        process=(FAILOVER,),
        judges=("scenario:stream-epoch",),
        is_about_messages=True,
    ),
    Fault(
        "promise kept in memory before disk",
        "broker/src/gantry_broker/ha/role_files.py",
        "            self._write(promise, self._paths)\n            self.promise = promise\n",
        "            self.promise = promise\n            self._write(promise, self._paths)\n",
        "A vote that could not be written is not answered as given when it is asked for again.",
    ),
    Fault(
        "shown before confirmed",
        "broker/src/gantry_broker/store/positions.py",
        "return _limit_to_acked(positions.wrote if is_crash_safe else positions.committed, positions)",
        "return positions.wrote if is_crash_safe else positions.committed",
        "A consumer never sees a message that enough slaves do not have.",
        process=(SHOWN,),
        judges=("scenario:confirmed", "replication", "histories"),
        is_about_messages=True,
    ),
    Fault(
        "longer log of an epoch not cut",
        "broker/src/gantry_broker/ha/history.py",
        "common = min(ends)",
        "common = max(ends)",
        "A member that returns cuts the records that the new master never had.",
        process=(RETURNS,),
        judges=("scenario:durable-cut", "replication"),
        is_about_messages=True,
    ),
    Fault(
        "offsets beyond the queue kept",
        "broker/src/gantry_broker/server/core/offsets.py",
        "                queues[queue_id] = end\n                self.resets.clamp(key, queue_id, end)\n",
        "                self.resets.clamp(key, queue_id, end)\n",
        "After a loss the offset of a group is not beyond its queue, so that no new message is skipped.",
        process=("broker/tests/replication/test_replication_metadata.py",),
        judges=("scenario:offsets",),
        is_about_messages=True,
    ),
)
