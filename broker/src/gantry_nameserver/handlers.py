"""The request handlers of the name server, one function per request code.

A handler decodes header and body, calls the route table or the key-value store, and encodes the reply. Missing and
invalid fields are answered with code 1 and a text that names the field, unknown request codes with 3. Routine requests
of brokers and clients are answered at once; updates on disk are answered when they are written.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Final, final

from gantry_nameserver.key_value_store import KeyValueError, KeyValueStore
from gantry_nameserver.live_settings import LiveSettings, NotPermitted
from gantry_nameserver.registration import read_registration
from gantry_nameserver.routes import BrokerRegistration, RegistrationRefused, RouteTable
from gantry_nameserver.settings import entries_of
from gantry_nameserver.topics import FLAG_UNIT, FLAG_UNIT_SUBSCRIPTION
from gantry_remoting.addresses import split_address
from gantry_remoting.log_deduplicator import LogDeduplicator
from gantry_remoting.setting_kinds import SettingsError
from gantry_wire.codes import RequestCode, ResponseCode
from gantry_wire.command import Command
from gantry_wire.commands import nameserver as wire
from gantry_wire.commands.admin import DataVersion, TopicListing, TopicName
from gantry_wire.commands.documents import read_document, write_document
from gantry_wire.commands.fields import FieldError
from gantry_wire.properties_text import read_properties, write_properties
from gantry_wire.version import VERSION

log = logging.getLogger(__name__)

ZONE_FIELD: Final = "__ZONE_NAME"
"""The field of a registration that names the broker's zone."""

ROUTINE_CODES: Final = frozenset(
    {RequestCode.REGISTER_BROKER, RequestCode.BROKER_HEARTBEAT, RequestCode.QUERY_DATA_VERSION}
)
"""Routine requests of brokers: they change state, but are not administrative and not audited."""

AUDITED: Final = frozenset(
    {
        RequestCode.PUT_KV_CONFIG,
        RequestCode.DELETE_KV_CONFIG,
        RequestCode.UNREGISTER_BROKER,
        RequestCode.WIPE_WRITE_PERM_OF_BROKER,
        RequestCode.ADD_WRITE_PERM_OF_BROKER,
        RequestCode.DELETE_TOPIC_IN_NAMESRV,
        RequestCode.REGISTER_TOPIC_IN_NAMESRV,
        RequestCode.UPDATE_NAMESRV_CONFIG,
    }
)
"""Requests that are written to the audit log. It includes unregistering, which any client could request."""

_FLAGS: Final = {
    RequestCode.GET_UNIT_TOPIC_LIST: (FLAG_UNIT, 0),
    RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: (FLAG_UNIT_SUBSCRIPTION, 0),
    RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: (FLAG_UNIT_SUBSCRIPTION, FLAG_UNIT),
}
"""The flags that listed topics must have, and those that they must not have."""

_REFUSALS: Final = (FieldError, RegistrationRefused, KeyValueError, SettingsError)
"""The exceptions that are answered with code 1 and their text."""

Answer = Command | Awaitable[Command]


@final
class Handlers:
    """The request handlers of one name server. Owned by the event loop's thread."""

    def __init__(
        self, routes: RouteTable, key_values: KeyValueStore, settings: LiveSettings, now_ms: Callable[[], int]
    ) -> None:
        self._routes = routes
        self._key_values = key_values
        self._settings = settings
        self._now_ms = now_ms
        self._started_at_ms = now_ms()
        self._log_deduplicator: Final = LogDeduplicator()
        self._table: Final[dict[int, Callable[[Command, object], Answer]]] = {
            RequestCode.PUT_KV_CONFIG: self._put_key_value,
            RequestCode.GET_KV_CONFIG: self._get_key_value,
            RequestCode.DELETE_KV_CONFIG: self._delete_key_value,
            RequestCode.GET_KVLIST_BY_NAMESPACE: self._list_key_values,
            RequestCode.REGISTER_BROKER: self._register_broker,
            RequestCode.UNREGISTER_BROKER: self._unregister_broker,
            RequestCode.BROKER_HEARTBEAT: self._heartbeat,
            RequestCode.QUERY_DATA_VERSION: self._query_data_version,
            RequestCode.GET_BROKER_MEMBER_GROUP: self._member_group,
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route,
            RequestCode.GET_BROKER_CLUSTER_INFO: self._cluster_info,
            RequestCode.WIPE_WRITE_PERM_OF_BROKER: self._wipe_write_permission,
            RequestCode.ADD_WRITE_PERM_OF_BROKER: self._add_write_permission,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self._all_topics,
            RequestCode.GET_TOPICS_BY_CLUSTER: self._topics_of_cluster,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self._system_topics,
            RequestCode.GET_UNIT_TOPIC_LIST: self._flagged_topics,
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: self._flagged_topics,
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: self._flagged_topics,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self._delete_topic,
            RequestCode.REGISTER_TOPIC_IN_NAMESRV: self._register_topic,
            RequestCode.UPDATE_NAMESRV_CONFIG: self._update_settings,
            RequestCode.GET_NAMESRV_CONFIG: self._show_settings,
        }

    @property
    def codes(self) -> list[int]:
        """The supported request codes; all others are answered with code 3."""
        return sorted(self._table)

    def dispatch(self, request: Command, connection: object) -> Answer:
        """Handle one request, at once or asynchronously. `connection` is compared by identity."""
        handler = self._table.get(request.code)
        if handler is None:
            peer = getattr(connection, "peer", ("",))[0]
            if self._log_deduplicator.is_new((request.code, peer)):
                log_fields = {"code": request.code, "client": peer}
                log.warning("refused request code that is not supported", extra=log_fields)
            return request.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {request.code} not supported")
        try:
            answer = handler(request, connection)
        except _REFUSALS as error:
            return request.reply(ResponseCode.SYSTEM_ERROR, str(error))
        return answer if isinstance(answer, Command) else _await_answer(request, answer)

    # ------- brokers

    def _register_broker(self, request: Command, connection: object) -> Command:
        fields = wire.RegisterBroker.read(request.ext)
        _check_identity(fields)
        if fields.body_crc32 and fields.body_crc32 != wire.body_checksum(request.body):
            return request.reply(ResponseCode.SYSTEM_ERROR, "crc32 not match")
        body = read_registration(request.body, is_compressed=bool(fields.compressed), version=request.version)
        registration = BrokerRegistration(
            cluster=fields.cluster_name,
            name=fields.broker_name,
            address=fields.broker_addr,
            broker_id=fields.broker_id,
            ha_address=fields.ha_server_addr,
            zone=request.ext.get(ZONE_FIELD),
            heartbeat_timeout_ms=fields.heartbeat_timeout_millis,
            can_act_as_master=fields.enable_acting_master,
            topics=body.topic_config_serialize_wrapper,
            filter_servers=body.filter_server_list,
            external_address=fields.external_addr or "",
            connection=connection,
        )
        settings = self._settings.now
        try:
            result = self._routes.register(
                registration,
                self._now_ms(),
                deletes_absent_topics=settings.delete_topic_with_broker_registration,
            )
        except RegistrationRefused as error:
            return request.reply(ResponseCode.SYSTEM_ERROR, f"register broker failed: {error}")
        order_table = (
            self._key_values.table(wire.ORDER_TOPIC_NAMESPACE) if settings.return_order_topic_config_to_broker else None
        )
        return request.reply(ext=result.write(), body=b"" if order_table is None else _table(order_table))

    def _unregister_broker(self, request: Command, connection: object) -> Command:
        fields = wire.UnregisterBroker.read(request.ext)
        self._routes.unregister_over(connection, fields.cluster_name, fields.broker_name, fields.broker_addr)
        return request.reply()

    def _heartbeat(self, request: Command, connection: object) -> Command:
        fields = wire.BrokerHeartbeat.read(request.ext)
        self._routes.brokers.record_heartbeat(fields.cluster_name, fields.broker_addr, connection, self._now_ms())
        return request.reply()

    def _query_data_version(self, request: Command, connection: object) -> Command:
        fields = wire.QueryDataVersion.read(request.ext)
        offered_version = read_document(request.body, DataVersion) if request.body else None
        self._routes.brokers.record_heartbeat(fields.cluster_name, fields.broker_addr, connection, self._now_ms())
        known_version = self._routes.find_data_version(fields.cluster_name, fields.broker_addr)
        result = wire.QueryDataVersionResult(changed=known_version is None or known_version != offered_version)
        return request.reply(ext=result.write(), body=b"" if known_version is None else write_document(known_version))

    def _member_group(self, request: Command, _: object) -> Command:
        fields = wire.ClusterAndBroker.read(request.ext)
        group = self._routes.members(fields.cluster_name, fields.broker_name)
        return request.reply(body=write_document(wire.BrokerMemberGroupResult(broker_member_group=group)))

    def _cluster_info(self, request: Command, _: object) -> Command:
        brokers = self._routes.brokers
        info = wire.ClusterInfo(
            broker_addr_table=dict(sorted(brokers.names.items())), cluster_addr_table=brokers.clusters()
        )
        return request.reply(body=write_document(info))

    def _wipe_write_permission(self, request: Command, _: object) -> Command:
        broker = wire.BrokerName.read(request.ext).broker_name
        count = self._routes.topics.allow_writes(broker, is_allowed=False)
        return request.reply(ext=wire.WipeWritePermResult(wipe_topic_count=count).write())

    def _add_write_permission(self, request: Command, _: object) -> Command:
        broker = wire.BrokerName.read(request.ext).broker_name
        count = self._routes.topics.allow_writes(broker, is_allowed=True)
        return request.reply(ext=wire.AddWritePermResult(add_topic_count=count).write())

    # ------- topics

    def _route(self, request: Command, _: object) -> Command:
        fields = wire.QueryRoute.read(request.ext)
        settings = self._settings.now
        age_ms = self._now_ms() - self._started_at_ms
        if settings.need_wait_for_service and age_ms < settings.wait_seconds_for_service * 1000:
            return request.reply(ResponseCode.SYSTEM_ERROR, "name server not ready")
        order = (
            self._key_values.get(wire.ORDER_TOPIC_NAMESPACE, fields.topic) if settings.order_message_enable else None
        )
        route = self._routes.route(fields.topic, with_acting_master=settings.support_acting_master, order=order)
        if route is None:
            return request.reply(
                ResponseCode.TOPIC_NOT_EXIST, f"No topic route info in name server for the topic: {fields.topic}"
            )
        return request.reply(body=write_document(route))

    def _all_topics(self, request: Command, _: object) -> Command:
        if not self._settings.now.enable_all_topic_list:
            return request.reply(ResponseCode.SYSTEM_ERROR, "disable")
        return _listing(request, self._routes.topics.names())

    def _topics_of_cluster(self, request: Command, _: object) -> Command:
        cluster = wire.Cluster.read(request.ext).cluster
        return self._listing_if_enabled(request, lambda: self._routes.topics_of_cluster(cluster))

    def _system_topics(self, request: Command, _: object) -> Command:
        brokers = self._routes.brokers
        names: dict[str, None] = {}
        for cluster, broker_names in brokers.clusters().items():
            names.update(dict.fromkeys([cluster, *broker_names]))
        first = next((b.broker_addrs for _, b in sorted(brokers.names.items()) if b.broker_addrs), None)
        return _listing(request, list(names), None if first is None else first[min(first)])

    def _flagged_topics(self, request: Command, _: object) -> Command:
        has, lacks = _FLAGS[RequestCode(request.code)]
        return self._listing_if_enabled(request, lambda: self._routes.topics.with_flags(has=has, lacks=lacks))

    def _listing_if_enabled(self, request: Command, topics: Callable[[], list[str]]) -> Command:
        if not self._settings.now.enable_topic_list:
            return request.reply(ResponseCode.SYSTEM_ERROR, "disable")
        return _listing(request, topics())

    def _delete_topic(self, request: Command, _: object) -> Command:
        fields = wire.DeleteTopicFromNameServer.read(request.ext)
        self._routes.delete_topic(fields.topic, fields.cluster_name or None)
        return request.reply()

    def _register_topic(self, request: Command, _: object) -> Command:
        topic = TopicName.read(request.ext).topic
        if request.body:
            self._routes.register_topic(topic, read_document(request.body, wire.TopicRoute).queue_datas)
        return request.reply()

    # ------- key-value table

    async def _put_key_value(self, request: Command, _: object) -> Command:
        fields = wire.PutKeyValue.read(request.ext)
        await self._key_values.put(fields.namespace, fields.key, fields.value)
        return request.reply()

    async def _delete_key_value(self, request: Command, _: object) -> Command:
        fields = wire.KeyValueAddress.read(request.ext)
        await self._key_values.delete(fields.namespace, fields.key)
        return request.reply()

    def _get_key_value(self, request: Command, _: object) -> Command:
        fields = wire.KeyValueAddress.read(request.ext)
        value = self._key_values.get(fields.namespace, fields.key)
        if value is None:
            return request.reply(
                ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {fields.namespace} Key: {fields.key}"
            )
        return request.reply(ext=wire.KeyValueResult(value=value).write())

    def _list_key_values(self, request: Command, _: object) -> Command:
        namespace = wire.Namespace.read(request.ext).namespace
        table = self._key_values.table(namespace)
        if table is None:
            return request.reply(ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {namespace}")
        return request.reply(body=_table(table))

    # ------- settings

    async def _update_settings(self, request: Command, _: object) -> Command:
        try:
            await self._settings.update(read_properties(request.body.decode()))
        except NotPermitted as error:
            return request.reply(ResponseCode.NO_PERMISSION, str(error))
        except ValueError as error:
            return request.reply(ResponseCode.SYSTEM_ERROR, str(error))
        return request.reply()

    def _show_settings(self, request: Command, _: object) -> Command:
        body = write_properties(entries_of(self._settings.now)).encode()
        return request.reply(ext={"gantryVersion": VERSION}, body=body)


async def _await_answer(request: Command, answer: Awaitable[Command]) -> Command:
    try:
        return await answer
    except _REFUSALS as error:
        return request.reply(ResponseCode.SYSTEM_ERROR, str(error))


def reply_to_unexpected_error(request: Command, error: Exception) -> Command:
    """Log an unexpected error of a handler, and return the reply to its request."""
    log.error("unexpected error while handling request", exc_info=error, extra={"code": request.code})
    return request.reply(ResponseCode.SYSTEM_ERROR, f"unexpected error in the name server: {type(error).__name__}")


def _listing(request: Command, topics: list[str], address: str | None = None) -> Command:
    return request.reply(body=write_document(TopicListing(topic_list=topics, broker_addr=address)))


def _table(table: dict[str, str]) -> bytes:
    return write_document(wire.KeyValueTable(table=table))


def _check_identity(fields: wire.RegisterBroker) -> None:
    """Raise FieldError for a registration whose name, id or address is invalid."""
    for name, value in (("brokerName", fields.broker_name), ("clusterName", fields.cluster_name)):
        if not value.strip():
            raise FieldError(f"the custom field {name} is blank")
    if fields.broker_id < 0:
        raise FieldError(f"the custom field brokerId is negative: {fields.broker_id}")
    try:
        split_address(fields.broker_addr)
    except ValueError as error:
        raise FieldError(f"the custom field brokerAddr is invalid: {error}") from error
