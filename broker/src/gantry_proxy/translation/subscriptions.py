"""The subscriptions of a consumer, as brokers keep them for the consumers that are connected to them."""

from typing import Final

from gantry_client.subscriptions import Subscription
from gantry_proxy.protocol import rocketmq_pb2 as pb
from gantry_proxy.statuses import ProxyError
from gantry_proxy.translation.checks import read_filter
from gantry_wire.commands.clients import ConsumerData, HeartbeatData, SubscriptionData

_LANGUAGES: Final[dict[int, str]] = {
    pb.JAVA: "JAVA",
    pb.CPP: "CPP",
    pb.DOT_NET: "DOTNET",
    pb.GOLANG: "GO",
    pb.RUST: "RUST",
    pb.PYTHON: "PYTHON",
    pb.PHP: "PHP",
    pb.NODE_JS: "NODE_JS",
    pb.RUBY: "RUBY",
}
"""The languages of SDKs by the names that remoting has for them."""


def remoting_language(settings: pb.Settings) -> str:
    """Return the language of a client by its name in remoting."""
    return _LANGUAGES.get(settings.user_agent.language, "OTHER")


def consume_type(settings: pb.Settings) -> str:
    """Return how a consumer consumes, by RocketMQ's name; that of its proxy for the same client."""
    return "CONSUME_PASSIVELY" if settings.client_type == pb.PUSH_CONSUMER else "CONSUME_ACTIVELY"


def subscription_data(settings: pb.Settings, version: int) -> list[SubscriptionData]:
    """Return the subscriptions of a consumer. One with an invalid filter is left out: its receives are refused."""
    found: list[SubscriptionData] = []
    for entry in settings.subscription.subscriptions:
        try:
            wanted = read_filter(entry.expression)
        except ProxyError:
            continue
        found.append(Subscription(topic=entry.topic.name, filter=wanted, version=version).data())
    return found


def heartbeat(client_id: str, settings: pb.Settings, version: int) -> HeartbeatData:
    """Return the heartbeat by which a broker knows a consumer of the proxy."""
    data = ConsumerData(
        group_name=settings.subscription.group.name,
        consume_type=consume_type(settings),
        subscription_data_set=subscription_data(settings, version),
    )
    return HeartbeatData(client_id=client_id, consumer_data_set=[data])
