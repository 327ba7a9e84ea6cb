"""Orders of a person for a group in a cluster: left as annotations, where the operator reads them, and waited for.

    read the group ---> put the order beside those that stand ---> the operator obeys, and takes it off ---> who is it?
                   ^                                        |
                   `---- somebody was faster: read again ---'

The patch is for the very version that was read, so two people never overwrite each other's orders. A promotion is done
when the operator has taken it off and its status names the master of the newest epoch; a fence stands when the group's
condition `Fenced` names the shard. Only that is called done. An order stays when this command ends without having seen
it, and it is said how to take it back.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, NamedTuple, final

import click

from gantry_cli.errors import Absent, CliError
from gantry_cli.kube.cluster import Cluster, Object, Target, group_again, open_group
from gantry_cli.kube.documents import ShardLook
from gantry_cli.kube.faults import Refusal, harmless, line_of
from gantry_cli.kube.look import annotations_of, group_from, shards_of
from gantry_cli.kube.naming import GROUPS, LEASES
from gantry_cli.orders import Master, OrderDocument, parse_promotion, promotion_outcome, with_promotion
from gantry_cli.output import Form, show
from gantry_spec.cluster_objects import member_pod, shard_name
from gantry_spec.lease_annotations import BadRecord, record_of
from gantry_spec.manifest import ManifestError
from gantry_spec.manifest.annotations import FENCE, PROMOTE, RESTORE, wanted

TRIES: Final = 5
CONFLICT: Final = 409

Change = Mapping[str, str | None]


# -- promote -----------------------------------------------------------------------------------------------------------


def promote(asked: Asked, order: str, loss: str) -> None:
    """`SHARD[=MEMBER]` becomes an order, and is waited for. Raises CliError."""
    shard, member = parse_promotion(order)
    cluster, document = open_group(asked.target, asked.group)
    _check_member(document, shard, member)
    mine = f"{order}@{time.time_ns() // 1_000_000}"
    waiting = Waiting(cluster, document, asked, shard, mine)
    leave(cluster, document, lambda annotations: with_promotion(annotations, shard, mine, loss))
    waiting.until_taken_off(member_pod(str(document["metadata"]["name"]), shard, member) if member else "")


# -- fence -------------------------------------------------------------------------------------------------------------


def fence(asked: Asked, shard: int, *, is_lifted: bool) -> None:
    """Put a shard into the annotation of fenced ones, or take it out, and wait until its master obeys."""
    cluster, document = open_group(asked.target, asked.group)
    if not is_lifted:
        _check_member(document, shard, 0)
    waiting = Waiting(cluster, document, asked, shard, str(shard))
    leave(cluster, document, lambda annotations: with_fence(annotations, shard, is_lifted=is_lifted))
    waiting.until_fenced(not is_lifted)


def with_fence(annotations: Mapping[str, str], shard: int, *, is_lifted: bool) -> Change:
    """The shards that are fenced from now on."""
    try:
        fenced = set(wanted(annotations).fenced)
    except ManifestError as error:
        raise CliError("; ".join(map(str, error.problems)), "mend this annotation first") from error
    if is_lifted and shard not in fenced:
        raise Absent(f"shard {shard} is not fenced", f"fenced are: {', '.join(map(str, sorted(fenced))) or 'none'}")
    rest = sorted(fenced - {shard} if is_lifted else fenced | {shard})
    return {FENCE: ",".join(map(str, rest)) or None}


# -- restore -----------------------------------------------------------------------------------------------------------


def restore(asked: Asked, shard: int, *, is_confirmed: bool) -> None:
    """Have a shard begin with the volumes that are there, if it has not begun. Raises CliError."""
    cluster, document = open_group(asked.target, asked.group)
    _check_member(document, shard, 0)
    now = shard_of(document, shard)
    if now.master:
        raise CliError(f"shard {shard} has a master, {now.master}: there is nothing to restore", "see `gantry status`")
    if not is_confirmed:
        said = "; ".join(now.blocked_by) or "the operator has not said what lacks"
        raise CliError(f"what no volume has would be given up: {harmless(said)}", "say --yes")
    waiting = Waiting(cluster, document, asked, shard, str(shard))
    leave(cluster, document, lambda annotations: with_restored(annotations, shard))
    waiting.until_restored()


def with_restored(annotations: Mapping[str, str], shard: int) -> Change:
    """The shards that are to begin with what is there."""
    try:
        restored = {*wanted(annotations).restored, shard}
    except ManifestError as error:
        raise CliError("; ".join(map(str, error.problems)), "mend this annotation first") from error
    return {RESTORE: ",".join(map(str, sorted(restored)))}


# -- all -------------------------------------------------------------------------------------------------------------


def leave(cluster: Cluster, document: Object, change: Callable[[Mapping[str, str]], Change]) -> Object:
    """Change the annotations of the very version that was read; read it again when somebody was faster."""
    name = str(document["metadata"]["name"])
    for rest in reversed(range(TRIES)):
        wished = change(annotations_of(document))
        head = {name: document["metadata"][name] for name in ("uid", "resourceVersion")}
        try:
            return cluster.patch(GROUPS, name, {"metadata": {**head, "annotations": dict(wished)}})
        except Refusal as refusal:
            if not refusal.status or refusal.status >= 500:  # nobody has said that it was not done
                remedy = f"the order may stand: see `kubectl get bg/{name} -n {cluster.namespace} -o yaml`"
                raise CliError(f"the API server has not answered the order: {refusal.message}", remedy) from refusal
            if refusal.status != CONFLICT or not rest:
                raise line_of(refusal) from refusal
        try:
            document = group_again(cluster, name)
        except Refusal as refusal:
            raise line_of(refusal) from refusal
    raise AssertionError("the last one returns or raises")


def _check_member(document: Object, shard: int, member: int) -> None:
    """Raise Absent for what the group has not, as far as it can be read."""
    group, shards = group_from(document), shards_of(document.get("status") or {})
    if group is None:
        return
    known = {*range(group.spec.shards), *(one.number for one in shards)}
    if shard not in known:
        raise Absent(f"there is no shard {shard}", f"the shards are {', '.join(map(str, sorted(known)))}")
    if member and member not in group.spec.members:
        name = str(document["metadata"]["name"])
        texts = [f"{one} ({member_pod(name, shard, one)})" for one in group.spec.members]
        raise Absent(f"there is no member {member}", f"the members of shard {shard} are {', '.join(texts)}")


# -- waiting for what comes of an order --------------------------------------------------------------------------------
# Waiting for what came of an order: a group is polled until it is so, and from time to time it is said what lacks.
#
# An order that was taken off is not believed to be done: the status is written a moment later, so the shard's Lease is
# asked for the newest epoch that has a master, and the status has to name that one.


POLL_S: Final = 0.5
GRACE_S: Final = 3.0
"""Where nobody may read the Lease: for how long the status may still say what was before."""
SHOW_S: Final = 2.0
"""Only then it is said what is waited for."""


class Asked(NamedTuple):
    """What somebody has typed, whatever the command."""

    target: Target
    group: str | None
    form: Form
    timeout_s: float


@final
class Waiting:
    """Until one order is done: polls the group, and says from time to time what it waits for."""

    def __init__(self, cluster: Cluster, document: Object, asked: Asked, shard: int, order: str) -> None:
        self._cluster: Final = cluster
        self._asked: Final = asked
        self._shard: Final = shard
        self._order: Final = order
        self._name: Final = str(document["metadata"]["name"])
        self._before: Final = shard_of(document, shard)
        self._began_s: Final = time.monotonic()
        self._said = ""

    def until_taken_off(self, wanted_pod: str) -> None:
        """A promotion, of this pod if somebody is wanted. Raises CliError when it is not done in time."""
        if not self._asked.timeout_s:
            return self._show("the order is left; `gantry status` says what comes of it", is_done=False)
        with self._standing(f"take it back with: {self._annotate(PROMOTE)}"):
            document = self._wait(lambda one: self._order not in annotations_of(one).get(PROMOTE, ""))
            document = self._wait(self._is_written(self._named_epoch()), document)
        now = shard_of(document, self._shard)
        before, after = Master(self._before.master, self._before.epoch), Master(now.master, now.epoch)
        return self._show(promotion_outcome(self._shard, before, after, wanted_pod), now)

    def until_restored(self) -> None:
        """Until the shard has a master again."""
        if not self._asked.timeout_s:
            return self._show("the order is left; `gantry status` says what comes of it", is_done=False)
        mine = str(self._shard)
        with self._standing(f"take it back with: {self._annotate(RESTORE)}"):
            document = self._wait(lambda one: mine not in annotations_of(one).get(RESTORE, "").split(","))
            document = self._wait(self._is_written(self._named_epoch()), document)
        now = shard_of(document, self._shard)
        return self._show(f"shard {self._shard}: {now.master} is the master in epoch {now.epoch}", now)

    def until_fenced(self, is_wanted: bool) -> None:
        """Until the operator says that the shard takes no sends, or that it holds it back no more."""
        if not self._asked.timeout_s:
            return self._show("the order is left; `gantry status` says what comes of it", is_done=False)
        lift = f"gantry fence bg/{self._name} --namespace {self._cluster.namespace} {self._shard} --lift"
        with self._standing(f"lift the fence with: {lift}" if is_wanted else "the fence is lifted by the operator"):
            document = self._wait(lambda one: is_fenced(one, self._shard) is is_wanted)
        done = "takes no sends, and keeps its master" if is_wanted else "is fenced no more"
        return self._show(f"shard {self._shard} {done}", shard_of(document, self._shard))

    def _named_epoch(self) -> int | None:
        """The newest epoch that has a master, by the shard's Lease; None if one may not read it."""
        try:
            lease = self._cluster.get(LEASES, shard_name(self._name, self._shard))
            record = record_of(annotations_of(lease))
        except (Refusal, BadRecord):
            return None
        return None if record is None or record.newest is None else record.newest.epoch

    def _is_written(self, epoch: int | None) -> Callable[[Object], bool]:
        """Whether the status, which is written a moment later, says who that master is."""
        since_s = time.monotonic()

        def is_so(document: Object) -> bool:
            now = shard_of(document, self._shard)
            if epoch is not None:
                return bool(now.master) and now.epoch >= epoch
            return bool(now.master) and (now.epoch > self._before.epoch or time.monotonic() > since_s + GRACE_S)

        return is_so

    def _wait(self, is_so: Callable[[Object], bool], document: Object | None = None) -> Object:
        deadline = self._began_s + self._asked.timeout_s
        trouble = ""
        while True:
            try:
                document = document or group_again(self._cluster, self._name)
                if is_so(document):
                    return document
                trouble = self._waits_for(document)
            except Refusal as refusal:
                if refusal.is_forbidden:
                    raise line_of(refusal) from refusal
                trouble = refusal.short  # an API server that is away comes back, and the order stands meanwhile
            now_s = time.monotonic()
            if now_s > deadline:
                raise CliError(f"not done after {self._asked.timeout_s:g} s: {harmless(trouble)}", "the order stands")
            if trouble != self._said and now_s > self._began_s + SHOW_S:
                self._said = trouble
                click.echo(harmless(trouble), err=True)
            document = None
            time.sleep(POLL_S)

    def _waits_for(self, document: Object) -> str:
        now = shard_of(document, self._shard)
        texts = [now.action, *(f"waits: {reason}" for reason in now.blocked_by)]
        text = "; ".join(one for one in texts if one)
        return f"shard {self._shard}: {text}" if text else "the operator has not said anything to it; does one run?"

    @contextmanager
    def _standing(self, remedy: str) -> Iterator[None]:
        """Whoever stops waiting is told that the order stands."""
        try:
            yield
        except KeyboardInterrupt:
            click.echo(f"the order stands; {remedy}", err=True)
            raise

    def _annotate(self, annotation: str) -> str:
        return f"kubectl annotate bg/{self._name} -n {self._cluster.namespace} {annotation}-"

    def _show(self, message: str, now: ShardLook | None = None, *, is_done: bool = True) -> None:
        seen = self._before if now is None else now
        document = OrderDocument(
            context=self._cluster.context,
            namespace=self._cluster.namespace,
            group=self._name,
            shard=self._shard,
            order=self._order,
            is_done=is_done,
            master=seen.master,
            epoch=seen.epoch,
            before_master=self._before.master,
            before_epoch=self._before.epoch,
            waited_ms=int((time.monotonic() - self._began_s) * 1000),
            message=message,
        )
        show(self._asked.form, document, lambda: [message])


def is_fenced(document: Object, shard: int) -> bool | None:
    """Whether the operator says that the shard takes no sends; None while it has said nothing, or is at it."""
    conditions = (document.get("status") or {}).get("conditions") or []
    said = next((one for one in conditions if one.get("type") == "Fenced"), None)
    if said is None:
        return None
    is_named = str(shard) in re.findall(r"\d+", str(said.get("message", "")))
    if said.get("status") == "True":
        return is_named
    return None if is_named else False


def shard_of(document: Object, number: int) -> ShardLook:
    """One shard of the status; one that is not there yet has no master."""
    found = (one for one in shards_of(document.get("status") or {}) if one.number == number)
    return next(found, _NOBODY)


_NOBODY: Final = ShardLook(
    number=0, master="", epoch=0, in_sync=0, lag="unknown", at_risk="unknown", bound="", is_durability_met=False,
    action="", blocked_by=[], if_master_dies=[],
)  # fmt: skip
