"""What the handlers of calls share: brokers, topics, clients, messages in flight, permissions, limits and clocks."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from gantry_client.background import BackgroundTasks
from gantry_proxy.access import ProxyGuard
from gantry_proxy.ack_batches import AckBatches
from gantry_proxy.bodies import BodyInflater
from gantry_proxy.brokers import BrokerPort
from gantry_proxy.client_requests import ClientRequests
from gantry_proxy.clients import ClientTable
from gantry_proxy.renewal import Renewals
from gantry_proxy.send_batches import SendBatches
from gantry_proxy.settings import ProxyLimits
from gantry_proxy.topics import Topics


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyCore:
    """The objects of one proxy. Owned by its event loop."""

    brokers: BrokerPort
    topics: Topics
    clients: ClientTable
    client_requests: ClientRequests
    renewals: Renewals
    sends: SendBatches
    acks: AckBatches
    guard: ProxyGuard
    limits: ProxyLimits
    bodies: BodyInflater
    tasks: BackgroundTasks
    """Work that outlives the call that began it."""

    wall_ms: Callable[[], int]
    """The wall clock, in milliseconds since 1970."""

    monotonic_s: Callable[[], float]
