"""The settings that a client gets: its own, with those of the proxy and of its consumer group.

A client reports what it publishes or subscribes; the server decides on retries, on the order of messages, and on how a
consumer polls. What the server decides replaces what the client sent.
"""

from collections.abc import Iterable
from typing import Final

from gantry_proxy.protocol import rocketmq_pb2 as pb
from gantry_proxy.settings import ProxyLimits
from gantry_proxy.statuses import ProxyError
from gantry_proxy.translation.checks import topic_name
from gantry_proxy.translation.times import to_duration
from gantry_wire.commands.admin import ExponentialRetryPolicy, GroupRetryPolicy, SubscriptionGroupConfig

PRODUCER_ATTEMPTS_MAX: Final = 3
PRODUCER_BACKOFF_MS: Final = 10
PRODUCER_BACKOFF_MS_MAX: Final = 1_000
PRODUCER_BACKOFF_FACTOR: Final = 2
"""How producers retry; the values of RocketMQ's proxy."""
RECEIVE_MESSAGES_MAX: Final = 32
"""How many messages a push consumer asks for at once; the limit of brokers."""
_DEFAULT_DELAYS_MS: Final = tuple(
    1000 * seconds
    for seconds in (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
)
"""The delays before retries of a group without a policy of its own; RocketMQ's."""
EXPONENTIAL: Final = "EXPONENTIAL"

CLIENT_PROPERTIES_MAX: Final = 32
CLIENT_PROPERTY_NAME_MAX: Final = 64
CLIENT_PROPERTY_VALUE_MAX: Final = 256
SETTINGS_BYTES_MAX: Final = 64 * 1024
"""The size of the settings of one client, which the proxy keeps: a thousand topics with usual names have 40 KiB."""
SUBSCRIPTIONS_MAX: Final = 1_000
"""How many topics one client may name: more would make each heartbeat expensive."""
PRODUCERS: Final = frozenset({pb.PRODUCER})
CONSUMERS: Final = frozenset({pb.PUSH_CONSUMER, pb.SIMPLE_CONSUMER, pb.PULL_CONSUMER})


def check_client_settings(settings: pb.Settings) -> None:
    """Raise ProxyError for settings of a client that this proxy cannot serve."""
    size = settings.ByteSize()
    if size > SETTINGS_BYTES_MAX:
        raise ProxyError(
            pb.BAD_REQUEST,
            f"the settings have {size} bytes, at most {SETTINGS_BYTES_MAX} are allowed: name fewer topics",
        )
    if settings.WhichOneof("pub_sub") is None:
        raise ProxyError(pb.BAD_REQUEST, "the settings have neither publishing nor subscription")
    if settings.HasField("client_type") and settings.client_type not in PRODUCERS | CONSUMERS:
        name = pb.ClientType.Name(settings.client_type) if settings.client_type in _CLIENT_TYPES else "unknown"
        raise ProxyError(pb.UNRECOGNIZED_CLIENT_TYPE, f"clients of type {name} are not supported")
    entries = max(len(settings.publishing.topics), len(settings.subscription.subscriptions))
    if entries > SUBSCRIPTIONS_MAX:
        raise ProxyError(pb.BAD_REQUEST, f"the settings name {entries} topics, at most {SUBSCRIPTIONS_MAX} are allowed")
    for topic in settings.publishing.topics:
        topic_name(topic)
    for entry in settings.subscription.subscriptions:
        topic_name(entry.topic)
    _check_client_properties(settings.client_properties.items())


def kept_settings(settings: pb.Settings) -> pb.Settings:
    """Return a copy of settings for the table of clients, without the memory of the message in which they came."""
    kept = pb.Settings()
    kept.CopyFrom(settings)
    kept.DiscardUnknownFields()
    return kept


_CLIENT_TYPES: Final = frozenset(pb.ClientType.values())


def _check_client_properties(properties: Iterable[tuple[str, str]]) -> None:
    items = list(properties)
    if len(items) > CLIENT_PROPERTIES_MAX:
        raise ProxyError(
            pb.INVALID_CLIENT_PROPERTIES, f"{len(items)} client properties, at most {CLIENT_PROPERTIES_MAX} are allowed"
        )
    for name, value in items:
        is_named = name[:1].isalpha() and all(one.isalnum() or one in "_.-" for one in name) and name.isascii()
        if not is_named or len(name) > CLIENT_PROPERTY_NAME_MAX or len(value) > CLIENT_PROPERTY_VALUE_MAX:
            raise ProxyError(
                pb.INVALID_CLIENT_PROPERTIES,
                f"client property {name[:64]!r}: a name has at most 64 characters a-z, A-Z, 0-9, '_', '.', '-' and "
                "begins with a letter, and a value has at most 256 characters",
            )


def merge_settings(client: pb.Settings, group: SubscriptionGroupConfig | None, limits: ProxyLimits) -> pb.Settings:
    """Return the settings for a client. ``group`` is the configuration of its consumer group, if it has one."""
    merged = pb.Settings()
    merged.CopyFrom(client)
    merged.metric.Clear()
    merged.metric.on = False
    if client.HasField("publishing"):
        merged.publishing.max_body_size = limits.message_bytes_max
        merged.publishing.validate_message_type = limits.checks_message_types
        merged.backoff_policy.CopyFrom(_producer_policy())
    else:
        config = group or SubscriptionGroupConfig(group_name=client.subscription.group.name)
        merged.subscription.fifo = config.consume_message_orderly
        merged.subscription.receive_batch_size = RECEIVE_MESSAGES_MAX
        merged.subscription.long_polling_timeout.CopyFrom(to_duration(limits.poll_ms_max))
        merged.backoff_policy.CopyFrom(_consumer_policy(config))
    return merged


def attempts_max(config: SubscriptionGroupConfig | None) -> int:
    """Return how often a message is delivered before it goes to the dead letters."""
    return (16 if config is None else max(0, config.retry_max_times)) + 1


def retry_delay_ms(config: SubscriptionGroupConfig | None, failures: int) -> int:
    """Return the delay before a message is delivered again that has failed this often before."""
    policy = GroupRetryPolicy() if config is None else config.group_retry_policy or GroupRetryPolicy()
    if policy.type == EXPONENTIAL:
        exponential = policy.exponential_retry_policy or ExponentialRetryPolicy()
        factor: int = exponential.multiplier ** min(max(failures, 0), 32)
        return min(exponential.initial * factor, exponential.max)
    delays = _customized_delays_ms(policy)
    return delays[min(max(failures + 2, 0), len(delays) - 1)]  # RocketMQ skips the two shortest delays


def _producer_policy() -> pb.RetryPolicy:
    return pb.RetryPolicy(
        max_attempts=PRODUCER_ATTEMPTS_MAX,
        exponential_backoff=pb.ExponentialBackoff(
            initial=to_duration(PRODUCER_BACKOFF_MS),
            max=to_duration(PRODUCER_BACKOFF_MS_MAX),
            multiplier=PRODUCER_BACKOFF_FACTOR,
        ),
    )


def _consumer_policy(config: SubscriptionGroupConfig) -> pb.RetryPolicy:
    policy = config.group_retry_policy or GroupRetryPolicy()
    attempts = attempts_max(config)
    if policy.type == EXPONENTIAL:
        exponential = policy.exponential_retry_policy or ExponentialRetryPolicy()
        return pb.RetryPolicy(
            max_attempts=attempts,
            exponential_backoff=pb.ExponentialBackoff(
                initial=to_duration(exponential.initial), max=to_duration(exponential.max),
                multiplier=exponential.multiplier,
            ),
        )  # fmt: skip
    delays = [to_duration(delay_ms) for delay_ms in _customized_delays_ms(policy)]
    return pb.RetryPolicy(max_attempts=attempts, customized_backoff=pb.CustomizedBackoff(next=delays))


def _customized_delays_ms(policy: GroupRetryPolicy) -> tuple[int, ...]:
    customized = policy.customized_retry_policy
    return tuple(customized.next) if customized is not None and customized.next else _DEFAULT_DELAYS_MS
