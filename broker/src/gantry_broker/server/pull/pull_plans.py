"""What a pull needs that does not change from one pull to the next: its checks, its filter and its counters.

A consumer pulls a queue again and again with the same group and subscription, so the checks in RocketMQ's order and
the parsing of the expression are done once, and their result is a `PullPlan`. It holds as long as topics, groups,
clients and settings stay as they are: each table counts its changes, and a change of any of them drops all plans. A
refused pull has no plan, so it is checked again.

    group, topic, queue, subscription ---> PullPlan          as long as the change counts and the settings are the same
"""

from typing import Final, final

from gantry_broker.server.core.broker_core import BrokerCore
from gantry_broker.server.core.refusals import Refused
from gantry_broker.server.core.topic_attributes import BATCH_QUEUES, QUEUE_TYPE
from gantry_broker.server.core.unsaved_progress import SEPARATOR
from gantry_wire import ResponseCode, names
from gantry_wire.commands.admin import SubscriptionGroupConfig, TopicConfig
from gantry_wire.commands.nameserver import PERMISSION_READ
from gantry_wire.commands.pull import PULL_SUBSCRIPTION, PullMessage
from gantry_wire.filters import MessageFilter, is_tag_type, parse_filter

PLANS_MAX: Final = 16_384
"""The limit of plans; beyond it all are dropped. Names come from clients, and a plan takes up to a kilobyte."""

PLAN_TEXT_MAX: Final = 256
"""A subscription with a longer expression has no plan that is kept, which bounds the memory of all plans."""

PlanKey = tuple[str, str, int, int, int, str | None, str | None]


@final
class PullPlan:
    """The result of the checks of a pull, and what its answer needs. Never changed."""

    __slots__ = ("filter", "has_inner_batches", "key", "slow_broker_id", "tally")

    def __init__(
        self, core: BrokerCore, pull: PullMessage, group: SubscriptionGroupConfig, topic: TopicConfig,
        message_filter: MessageFilter,
    ) -> None:  # fmt: skip
        self.filter: Final = message_filter
        self.key: Final = f"{pull.topic}{SEPARATOR}{pull.consumer_group}"
        """The key of topic and group in the tables of offsets."""

        self.slow_broker_id: Final = group.which_broker_when_consume_slowly
        """The broker from which the group reads when it is far behind."""

        self.has_inner_batches: Final = topic.attributes.get(QUEUE_TYPE) == BATCH_QUEUES
        """Whether RocketMQ may have stored batches of this topic as one record each."""

        self.tally: Final = core.topic_statistics.new_pull_tally(pull.consumer_group, pull.topic, pull.queue_id)


@final
class PullPlans:
    """The plans of one broker. Owned by the event loop."""

    def __init__(self, core: BrokerCore) -> None:
        self._core: Final = core
        self._plans: Final[dict[PlanKey, PullPlan]] = {}
        self._change_count = -1
        self._settings = core.live.current

    def __repr__(self) -> str:
        return f"<PullPlans count={len(self._plans)}>"

    def find(self, pull: PullMessage) -> PullPlan:
        """Return the plan of a pull. Raises Refused for a pull that is not permitted."""
        core, settings = self._core, self._core.live.current
        change_count = core.topics.change_count + core.groups.change_count + core.clients.change_count
        if change_count != self._change_count or settings is not self._settings or len(self._plans) >= PLANS_MAX:
            self._plans.clear()
            self._change_count, self._settings = change_count, settings
        key = (
            pull.consumer_group, pull.topic, pull.queue_id, pull.sys_flag & PULL_SUBSCRIPTION, pull.sub_version,
            pull.subscription, pull.expression_type,
        )  # fmt: skip
        plan = self._plans.get(key)
        if plan is None:
            group, topic = self._check(pull)
            plan = PullPlan(core, pull, group, topic, self._find_filter(pull))
            if len(pull.subscription or "") <= PLAN_TEXT_MAX >= len(pull.expression_type or ""):
                self._plans[key] = plan
        return plan

    # ------- checks, in RocketMQ's order

    def _check(self, pull: PullMessage) -> tuple[SubscriptionGroupConfig, TopicConfig]:
        """Return the configurations of the pull's group, which may be created now, and of its topic."""
        core = self._core
        group = core.groups.find_or_create(pull.consumer_group)
        if group is None:
            raise Refused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group [{pull.consumer_group[:300]}] does not exist",
            )
        if not group.consume_enable:
            raise Refused(ResponseCode.NO_PERMISSION, f"subscription group no permission, {pull.consumer_group}")
        config = core.topics.find(pull.topic)
        if config is None:
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{pull.topic[:300]}] not exist, apply first please!")
        if not config.perm & PERMISSION_READ or pull.topic in names.HIDDEN_TOPICS:
            raise Refused(ResponseCode.NO_PERMISSION, f"the topic[{pull.topic}] pulling message is forbidden")
        if not 0 <= pull.queue_id < config.read_queue_nums:
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{pull.queue_id}] is illegal, topic:[{pull.topic}] topicConfig.readQueueNums:"
                f"[{config.read_queue_nums}]",
            )
        state = core.clients.consumers.get(pull.consumer_group)
        if state is not None and state.message_model == "BROADCASTING" and not group.consume_broadcast_enable:
            raise Refused(
                ResponseCode.NO_PERMISSION,
                f"the consumer group[{pull.consumer_group}] can not consume by broadcast way",
            )
        if core.groups.is_forbidden(pull.consumer_group, pull.topic):
            raise Refused(
                ResponseCode.NO_PERMISSION,
                f"the consumer group[{pull.consumer_group}] is forbidden for topic[{pull.topic}]",
            )
        return group, config

    def _find_filter(self, pull: PullMessage) -> MessageFilter:
        """Return the filter of a pull: its own expression, or that of its group's heartbeat."""
        if pull.sys_flag & PULL_SUBSCRIPTION:
            check_filter_type(self._core, pull.consumer_group, pull.topic, pull.expression_type)
            try:
                return parse_filter(pull.expression_type, pull.subscription)
            except ValueError as error:
                raise Refused(
                    ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"parse the consumer's subscription failed: {error}"
                ) from error
        state = self._core.clients.consumers.get(pull.consumer_group)
        if state is None:
            raise Refused(ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's group info not exist")
        subscription = state.subscriptions.get(pull.topic)
        if subscription is None:
            raise Refused(ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's subscription not exist")
        if subscription.data.sub_version < pull.sub_version:
            raise Refused(ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest")
        if subscription.filter is None:
            raise Refused(
                ResponseCode.FILTER_DATA_NOT_EXIST,
                f"The broker's consumer filter data is not exist!Your expression may be wrong! {subscription.fault}",
            )
        check_filter_type(self._core, pull.consumer_group, pull.topic, subscription.data.expression_type)
        return subscription.filter


def check_filter_type(core: BrokerCore, group: str, topic: str, expression_type: str | None) -> None:
    """Raise Refused, with RocketMQ's text, if filters of this type are switched off."""
    if not is_tag_type(expression_type) and not core.settings.is_property_filter_enabled:
        kind = expression_type or ""
        core.stats.refusals.count_property_filter(group, topic, kind)
        text = f"The broker does not support consumer to filter message by {kind[:64]}"
        raise Refused(ResponseCode.SYSTEM_ERROR, text)
