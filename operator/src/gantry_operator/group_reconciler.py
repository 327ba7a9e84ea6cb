"""One round of one group: apply the desired objects, observe, decide, execute, and report. Each step uses:

    objects        the desired objects (`render`), applied where they differ; objects that are left over are deleted
    observation    the caches, and the sidecars, which are queried in each round
    decision       ``gantry_spec.decide``
    execution      an `ActionScheduler`, the role labels, and the last report of a master, which is kept in its Lease

While brokers are given orders, status and events are reported at most every ``REPORT_MS``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, final

import msgspec

from gantry_operator.api import (
    DEPLOYMENTS,
    Object,
    ObjectRef,
    annotations_of,
    manifest_of,
    ref_of,
    uid_of,
)
from gantry_operator.cache import ResourceKey
from gantry_operator.clock import format_time
from gantry_operator.errors import ApiError
from gantry_operator.event_recorder import REQUEST_DROPPED, RESIZED, Event, event_of
from gantry_operator.execute.applier import Applier
from gantry_operator.execute.backups import BackupRound, GroupBackups
from gantry_operator.execute.leases import LeaseWriter
from gantry_operator.execute.pruner import Pruner
from gantry_operator.execute.resizer import Resizer
from gantry_operator.execute.role_labels import relabel_all
from gantry_operator.execute.scheduler import ActionScheduler, patch_requests
from gantry_operator.gateway_report import gateway_condition, gateway_event
from gantry_operator.group_archive import Archives, GroupArchive
from gantry_operator.group_certificates import GroupCertificates, authority_of, secrets_of
from gantry_operator.group_facts import external_addresses_of, facts_of, huge_pages_condition
from gantry_operator.objects import (
    ArchiveFacts,
    Facts,
    ImpossibleResources,
    group_token,
    names,
)
from gantry_operator.objects.authority import Authority
from gantry_operator.observe.gateways import GatewayReport, observe_gateway
from gantry_operator.observe.group_objects import GroupObjects
from gantry_operator.observe.group_observer import GroupObserver
from gantry_operator.observe.restored import restored_condition, restored_shards
from gantry_operator.observe.unschedulable import ClusterPods, UnschedulablePods
from gantry_operator.proxy_report import proxy_condition, proxy_event, proxy_status
from gantry_operator.resource_loop import LoopContext, Outcome, WrittenStatus
from gantry_operator.sidecars import Sidecars
from gantry_operator.status import StatusFacts, is_worth_a_write, refusal_condition, status_of
from gantry_operator.tokens import GroupSecrets
from gantry_spec import actions as act
from gantry_spec.backups import RESTORED_END
from gantry_spec.decide import decide
from gantry_spec.decide.decision import Condition, Decision
from gantry_spec.explain import explain
from gantry_spec.lease import DURATION_MS
from gantry_spec.ledger import Ledger
from gantry_spec.manifest.annotations import GroupRequests, read_requests, without_backup, without_disk_replacement
from gantry_spec.manifest.group import BrokerGroup
from gantry_spec.manifest.reading import group_of
from gantry_spec.observed import Disk, ObservedGroup

TICK_S: Final = 1.0
"""The time between two rounds of a group without a change (a tick), in seconds."""

BUSY_S: Final = 0.25
"""The time between two rounds while an action is under way, in seconds."""

REPORT_MS: Final = 1_000
"""Clients may wait for the next order, so status and events are delayed for this time while orders are given."""

RECENT_MS: Final = 5_000
"""A broker that reported within this time runs."""


@dataclass(frozen=True, kw_only=True)
class GroupContext(LoopContext["GroupReconciler"]):
    """The collaborators that the loops of all groups share."""

    noun: ClassVar[str] = "group"
    sidecars: Sidecars
    """The client of the sidecars of all groups."""

    base: Facts
    """The facts that are the same for all groups: the image, and which CRDs exist."""

    key: bytes = field(repr=False)
    """The operator's key, from which the tokens of groups are derived."""

    render: Callable[[BrokerGroup, Facts], Sequence[Object]]
    """Returns the desired objects of a group for these facts."""

    cluster_pods: ClusterPods
    """What the pods of all namespaces reserve, which is read only while a pod is not scheduled."""

    archives: Archives | None = None
    """The archives that groups may name; None where the operator does not reconcile pipelines."""

    lease_duration_ms: int = DURATION_MS
    """The duration of Leases that are created from now on."""

    namespaces: Sequence[str] = ()
    """The namespaces that the operator watches; empty for all of them."""

    def make_reconciler(self, key: ResourceKey, wake_now: Callable[[], None]) -> GroupReconciler:
        return GroupReconciler(key, self, wake_now)


@final
class GroupReconciler:
    """Reconciles one group. Owned by the task of its loop."""

    def __init__(self, key: ResourceKey, context: GroupContext, wake_now: Callable[[], None]) -> None:
        self.decision: Decision = Decision()
        self.observed: ObservedGroup = ObservedGroup()
        self._resizer: Final = Resizer(GroupObjects(key, context.cache), context.api, context.clock)
        self.observer: Final = GroupObserver(
            key, context.cache, context.api, context.sidecars, context.clock, self._resizer.must_restart
        )
        self._context: Final = context
        self._wake_now: Final = wake_now
        self._leases: Final = LeaseWriter(context.api, context.clock, context.cache.put)
        self._applier: Final = Applier(key, context.cache, context.api, context.clock)
        self._pruner: Final = Pruner(key, context.cache, context.api, context.clock)
        self._backups: Final = GroupBackups(
            self.observer.objects, context.api, context.sidecars, context.clock, lambda: self.observed, wake_now
        )
        self._unschedulable: Final = UnschedulablePods(
            self.observer.objects, context.api, context.clock, context.cluster_pods
        )
        self._secrets: Final = GroupSecrets(self.observer.objects, context.api, context.clock)
        self._certificates: Final = GroupCertificates(self.observer.objects, context.api, context.clock)
        self._archive: Final = GroupArchive(self.observer.objects, context.api, context.clock, context.archives)
        self._scheduler: Final = ActionScheduler(
            self.observer.objects,
            context.api,
            context.sidecars,
            self._leases,
            on_executed=self._executed,
            wake=wake_now,
            empty_log_end=lambda shard: self.observer.memory[shard].empty_log_end,
        )
        self._rendered: tuple[BrokerGroup, Facts, Sequence[Object]] | None = None
        self._gateway: GatewayReport | None = None
        """The state of external access through a Gateway in this round; None without one."""

        self._ledgers: Mapping[int, Ledger] = {}
        self._reported_ms: int | None = None
        self._events: list[Event] = []
        """The events of the actions that were executed since the last report."""

    def __repr__(self) -> str:
        return repr(self._scheduler)

    async def reconcile(self, document: Object, written: WrittenStatus) -> Outcome:
        group = group_of(manifest_of(document))
        requests, request_error = read_requests(annotations_of(document))
        token = group_token(self._context.key, group)
        authority = authority_of(self._context.key, group, document)
        await self._secrets.ensure(
            lambda: secrets_of(self._context.key, group, document, token, authority),
            is_denied=self.observer.is_denied,
            has_archive=group.spec.retention.archive is not None,
        )
        self._resizer.waits.clear()
        facts = self._facts(group, requests, authority, await self._archive.observe(group))
        problem, is_final = ("", False) if requests.is_paused else await self._apply(document, group, facts)
        observed = await self.observer.observe(group, requests, token)
        self.observed = msgspec.structs.replace(observed, lease_duration_ms=self._context.lease_duration_ms)
        now_ms = self._context.clock.now_ms()
        self.decision = decide(group.spec, self.observed, now_ms, self._ledgers)
        self._ledgers = {ledger.shard: ledger for ledger in self.decision.ledgers}
        if not requests.is_paused:
            await self._execute(group, token)
            await self._end_disk_requests(document, requests)
            await self._back_up(document, group, requests, token)
        is_busy = any(not isinstance(action, act.Wait) for action in self.decision.actions) or self._scheduler.is_busy
        pause_s = BUSY_S if is_busy else TICK_S
        if is_busy and self._reported_ms is not None and now_ms - self._reported_ms < REPORT_MS:
            return Outcome(pause_s)
        self._reported_ms = now_ms
        await self._certificates.observe(group)
        refusals = [refusal_condition("Applied", problem), refusal_condition("Requests", request_error)]
        needs_edit = problem if is_final else request_error
        status = self._status(document, group, now_ms, refusals, needs_edit)
        is_due = is_worth_a_write(status, written.status, written.age_ms)
        return Outcome(pause_s, status if is_due else None, self._take_events(problem, request_error))

    async def settle(self) -> None:
        """Wait until no action is under way."""
        await self._scheduler.settle()
        await self._backups.settle()
        await self._unschedulable.settle()
        await self._archive.settle()

    async def close(self) -> None:
        await self._backups.close()
        await self._unschedulable.close()
        await self._archive.close()
        await self._scheduler.close()

    # -- desired objects -----------------------------------------------------------------------------------------------

    def _facts(
        self, group: BrokerGroup, requests: GroupRequests, authority: Authority | None, archive: ArchiveFacts | None
    ) -> Facts:
        """Return the facts for rendering, with those of the group's Gateway, its authority and its archive."""
        objects, context = self.observer.objects, self._context
        certificate = "" if authority is None else authority.certificate
        base = msgspec.structs.replace(context.base, authority=certificate, archive=archive)
        facts = facts_of(base, group, objects, self._ledgers, is_hibernated=requests.is_hibernated)
        self._gateway = observe_gateway(group, facts, context.cache, context.namespaces)
        if self._gateway is None:
            return facts
        addresses = {**facts.external_addresses, **self._gateway.addresses}
        return msgspec.structs.replace(facts, external_addresses=addresses, gateway_listeners=self._gateway.listeners)

    async def _apply(self, document: Object, group: BrokerGroup, facts: Facts) -> tuple[str, bool]:
        """Apply and delete objects. Return why an object could not be applied, and whether that is final.

        The text is empty if all were applied. A final refusal ends only with an edit of the group.
        """
        if self._rendered is None or self._rendered[:2] != (group, facts):
            try:
                self._rendered = group, facts, self._context.render(group, facts)
            except ImpossibleResources as error:
                return str(error), True
        objects = self.observer.objects
        removed = [shard.number for shard in facts.shards if shard.number >= group.spec.shards]
        await self._applier.apply(self._rendered[2], {str(one): objects.master_set_ref(one) for one in removed})
        await self._applier.adopt_claims()
        await self._applier.grow_claims(int(group.spec.storage.size))
        self._events += [Event(RESIZED, text) for text in await self._resizer.resize()]
        kept = {shard.number for shard in facts.shards}
        if not facts.is_hibernated:
            await self._applier.clear_hibernation_annotations()
        await self._pruner.delete_shards(lambda number: number >= group.spec.shards and number not in kept)
        self._pruner.skip_for_new_group(self._rendered[2], document)
        await self._pruner.prune(self._rendered[2], group.metadata.uid)
        problems = sorted((*self._applier.problems.values(), *self._applier.claim_problems.values()))
        return "; ".join(problems), self._applier.needs_edit

    # -- execution -----------------------------------------------------------------------------------------------------

    async def _execute(self, group: BrokerGroup, token: str) -> None:
        self._scheduler.start(self.decision.actions, group, token)
        if await relabel_all(self._context.api, self.observer.objects, self.observed.shards):
            self._wake_now()  # the next round applies the Service that leads clients to the new master
        for shard in self.observed.shards:
            record = None if shard.lease is None else shard.lease.record
            if record is not None and record.newest is not None and record.newest.acks_needed == 0:
                lease = self.observer.objects.lease(shard.number)
                await self._leases.keep_last_report(group, shard.number, lease, shard.last_report)

    async def _end_disk_requests(self, document: Object, requests: GroupRequests) -> None:
        """Remove the requests to replace the disks of brokers that run.

        A request is removed with the replacement, but the operator may have ended in between. One that stays would
        give up the next disk that the member loses.
        """
        oldest_ms = self._context.clock.now_ms() - RECENT_MS
        running = {
            (shard.number, member.number)
            for shard in self.observed.shards
            for member in shard.members
            if member.disk is Disk.PRESENT and member.report is not None and member.report.asked_ms >= oldest_ms
        }
        for shard, member in running.intersection(requests.lost_disks):
            change = without_disk_replacement(annotations_of(document), shard, member)
            try:
                document = await patch_requests(self._context.api, document, change)
            except ApiError:
                return  # the next round repeats it
            text = f"shard {shard}: the request to replace the disk of member {member}, which runs on it, is removed"
            self._events.append(Event(REQUEST_DROPPED, text))

    async def _back_up(self, document: Object, group: BrokerGroup, requests: GroupRequests, token: str) -> None:
        """Continue the backups, unless no broker runs, and remove a request that is complete."""
        created_at = str(document["metadata"].get("creationTimestamp", ""))
        if not requests.is_hibernated:
            manifest, before = document.get("spec") or {}, document.get("status") or {}
            self._backups.step(BackupRound(group, token, requests.backup, created_at, manifest, before))
        await self._record_restored()
        self._events += self._backups.take_events()
        if requests.backup and requests.backup == self._backups.done_request:
            change = without_backup(annotations_of(document), requests.backup)
            try:
                await patch_requests(self._context.api, document, change)
            except ApiError:
                return  # the next round repeats it

    async def _record_restored(self) -> None:
        """Record where the logs of copied volumes ended, before the group adds messages."""
        for one in restored_shards(self.observer.objects, self.observed):
            if one.end is not None and not one.is_recorded:
                change = {"metadata": {"annotations": {RESTORED_END: str(one.end)}}}
                try:
                    claim = await self._context.api.patch(ref_of(one.claim), change, uid=uid_of(one.claim))
                except ApiError:
                    continue  # the next round repeats it
                self.observer.objects.cache.put(claim)

    def _executed(self, action: act.Action, refusal: str) -> None:
        self._context.metrics.record_action(type(action).__name__, is_done=not refusal)
        event = None if refusal else event_of(action)
        if event is not None:
            self._events.append(event)

    # -- report --------------------------------------------------------------------------------------------------------

    def _status(
        self,
        document: Object,
        group: BrokerGroup,
        now_ms: int,
        more: Sequence[Condition | None],
        needs_edit: str,
    ) -> Mapping[str, Any]:
        objects, before = self.observer.objects, document.get("status") or {}
        name = names.proxy_name(group.metadata.name)
        deployment = objects.cache.get(ObjectRef(DEPLOYMENTS, group.metadata.namespace, name))
        proxy = proxy_status(group, deployment, external_addresses_of(objects).get(name, ""))
        proxies, gateway = proxy_condition(proxy, deployment), gateway_condition(self._gateway)
        self._unschedulable.update(before)
        events = (
            proxy_event(proxies, before), gateway_event(gateway, before), self._certificates.event(before),
            self._unschedulable.event(before), self._archive.event(before),
        )  # fmt: skip
        self._events += [event for event in events if event is not None]
        resized, backed_up = self._resizer.condition(), self._backups.condition(before)
        restored = restored_condition(objects, self.observed)
        scheduled = self._unschedulable.condition(before)
        more = [
            *more,
            huge_pages_condition(group.spec, objects.cache),
            proxies,
            self._certificates.condition,
            gateway,
            self._archive.condition,
            scheduled,
            resized,
            backed_up,
            restored,
        ]
        conditions = [one for one in more if one is not None]
        outlooks = explain(group.spec, self.observed, now_ms)
        backup = self._backups.status(before)
        facts = StatusFacts(group, self.observed, self.decision, outlooks, conditions, proxy, backup, needs_edit)
        now = format_time(self._context.clock.wall())
        status: dict[str, Any] = msgspec.to_builtins(status_of(facts, before, now))
        return status

    def _take_events(self, problem: str, request_error: str) -> Sequence[Event]:
        refused = [Event("NotApplied", problem, is_warning=True)] if problem else []
        refused += [Event("InvalidRequest", request_error, is_warning=True)] if request_error else []
        executed, self._events = self._events, []
        return [*refused, *executed]
