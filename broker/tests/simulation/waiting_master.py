"""A master that waits for slaves: messages that it hides when it opens, and shows again as the broker does.

    [0 ...... shown ...... acked ...... wrote)      opened: messages from `shown` on are hidden
                |-    slaves may lack it   -|       become_master: they become visible with slaves' acks

A consumer that has read more than slaves have would continue after it at another master. So after a restart no message
may be visible that was never confirmed, even if recovery finds it. All of it must become visible when slaves have it.
"""

from __future__ import annotations

from simulation.checks import expected_queues, records_by_key
from simulation.model import Model

from gantry_broker.store.identity import Epoch
from gantry_broker.store.message_store import MessageStore


def check_hidden(store: MessageStore, model: Model, shown: int, confirmed: int) -> None:
    """Check that a start shows only what was ``confirmed``, and that no queue or key has a message after ``shown``."""
    assert shown <= max(confirmed, store.log.min_physical), f"{shown} is shown, and {confirmed} was confirmed"
    for (topic, queue_id), pieces in expected_queues(model).items():
        queue = store.queues.get(topic, queue_id)
        hidden = [piece for piece in pieces if piece.start >= shown]
        if hidden:
            first = hidden[0].queue_offset
            assert queue is None or queue.readable_end <= first, f"{queue!r} shows {first}, which may be at no slave"
        for piece in hidden:
            found = records_by_key(store, topic, piece.key) or []
            assert piece.data not in found, f"the message at {piece.start} is found by its key, and may be at no slave"


def become_master(store: MessageStore, *, is_new: bool) -> None:
    """Become the master of this log, with a new epoch if bytes may have been lost, as ``Roles`` does in the broker."""
    copier = store.start_copying() if store.dispatcher.dispatched < store.log.wrote else None
    if is_new:
        store.change_epochs([*store.identity.epochs, Epoch(store.identity.epoch + 1, store.log.wrote)])
    if copier is not None:
        copier.hold_undispatched()
