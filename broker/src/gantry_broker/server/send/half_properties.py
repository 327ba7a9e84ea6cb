"""What makes a message the first half of a transaction, and how it is stored as one. Pure."""

from __future__ import annotations

from gantry_wire import properties as keys


def half_properties(properties: dict[str, str], topic: str, queue_id: int) -> dict[str, str]:
    """Of a message for this queue, as a half message: a delay is not for transactions, as RocketMQ's clients know."""
    half = {**properties, keys.REAL_TOPIC: topic, keys.REAL_QUEUE_ID: str(queue_id)}
    half.pop(keys.DELAY_LEVEL, None)
    if unique := half.get(keys.UNIQUE_KEY):
        half[keys.TRANSACTION_ID] = unique
    return half


def is_half(properties: dict[str, str], reconsume_times: int) -> bool:
    """Whether this is the first half of a transaction, and not one that comes back from a consumer to be put off."""
    is_retry = reconsume_times > 0 and properties.get(keys.DELAY_LEVEL, "0").lstrip("0") != ""
    return properties.get(keys.TRANSACTION_PREPARED, "").lower() == "true" and not is_retry
