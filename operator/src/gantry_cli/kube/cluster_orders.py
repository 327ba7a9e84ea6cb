"""Gives orders to a group in a cluster as annotations, which the operator reads, and waits for their results.

    read the group ---> add the order to the others ---> the operator executes and removes it ---> read the new master
                   ^                              |
                   `---- conflict: read again ----'

The patch applies only to the version that was read, so two users never overwrite each other's orders. A promotion or a
restore is done when the operator has removed the order and the status names the master of the newest epoch; a fence is
done, or lifted, when the status of the shard shows it. If the wait times out or is interrupted, the order stays
pending, and the command prints how to withdraw this order without the pending ones of other shards.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, NamedTuple, final

import click

from gantry_cli.errors import CliError, NotFoundError
from gantry_cli.kube.api_errors import ApiError, cli_error_of, printable
from gantry_cli.kube.cluster import Cluster, Object, Target, open_group, read_group_again
from gantry_cli.kube.documents import ClusterShardStatus
from gantry_cli.kube.group_observer import annotations_of, group_from, shards_of
from gantry_cli.kube.naming import GROUPS, LEASES, status_command
from gantry_cli.orders import Master, OrderDocument, add_promotion, parse_promotion, promotion_outcome
from gantry_cli.output import OutputFormat, show
from gantry_spec.cluster_objects import member_pod, shard_name
from gantry_spec.lease_annotations import InvalidLeaseRecord, record_of
from gantry_spec.manifest import ManifestError
from gantry_spec.manifest.annotations import (
    FENCE,
    PROMOTE,
    RESTORE,
    RESTORE_ID_PREFIX,
    parse_requests,
    without_request,
)

TRIES: Final = 5
"""How often an order is tried again after a conflict."""
CONFLICT: Final = 409
"""The HTTP status with which the API server refuses a change of an outdated version."""

Change = Mapping[str, str | None]
"""The annotations to set; None removes an annotation."""


# -- promote -----------------------------------------------------------------------------------------------------------


def promote(options: OrderOptions, order: str, loss: str) -> None:
    """Order the promotion `SHARD[=MEMBER]`, and wait for its result. Raises CliError."""
    shard, member = parse_promotion(order)
    cluster, document = open_group(options.target, options.group)
    _check_member(document, shard, member)
    order_text = f"{order}@{time.time_ns() // 1_000_000}"
    waiting = OrderWaiter(cluster, document, options, shard, order_text)
    ordered = apply_order(cluster, document, lambda annotations: add_promotion(annotations, shard, order_text, loss))
    waiting.wait_for_promotion(ordered, member_pod(str(document["metadata"]["name"]), shard, member) if member else "")


# -- fence -------------------------------------------------------------------------------------------------------------


def fence(options: OrderOptions, shard: int, *, is_lifted: bool) -> None:
    """Add a shard to the annotation of fenced shards, or remove it, and wait until the status shows the change."""
    cluster, document = open_group(options.target, options.group)
    if not is_lifted:
        _check_member(document, shard, 0)
    waiting = OrderWaiter(cluster, document, options, shard, str(shard))
    apply_order(cluster, document, lambda annotations: with_fence(annotations, shard, is_lifted=is_lifted))
    waiting.wait_for_fence(not is_lifted)


def with_fence(annotations: Mapping[str, str], shard: int, *, is_lifted: bool) -> Change:
    """Return the change of annotations that fences a shard or lifts its fence."""
    try:
        fenced = set(parse_requests(annotations).fenced_shards)
    except ManifestError as error:
        raise CliError("; ".join(map(str, error.problems)), "correct this annotation first") from error
    if is_lifted and shard not in fenced:
        raise NotFoundError(
            f"shard {shard} is not fenced", f"fenced shards: {', '.join(map(str, sorted(fenced))) or 'none'}"
        )
    rest = sorted(fenced - {shard} if is_lifted else fenced | {shard})
    return {FENCE: ",".join(map(str, rest)) or None}


# -- restore -----------------------------------------------------------------------------------------------------------


def restore(options: OrderOptions, shard: int, *, is_confirmed: bool) -> None:
    """Order the restore of a shard without a master: a start with its present volumes. Raises CliError."""
    cluster, document = open_group(options.target, options.group)
    _check_member(document, shard, 0)
    now = shard_of(document, shard)
    if now.master:
        see = f"see {status_command(cluster.namespace, str(document['metadata']['name']))}"
        raise CliError(f"shard {shard} has a master, {now.master}: there is nothing to restore", see)
    if not is_confirmed:
        reasons = "; ".join(now.blocked_by) or "the operator has not reported what is missing"
        raise CliError(f"data that is on no volume would be lost: {printable(reasons)}", "confirm with --yes")
    waiting = OrderWaiter(cluster, document, options, shard, str(shard))
    ordered = apply_order(cluster, document, lambda annotations: with_restored(annotations, shard))
    waiting.wait_for_restore(ordered)


def with_restored(annotations: Mapping[str, str], shard: int) -> Change:
    """Return the change of annotations that orders the restore of a shard."""
    try:
        restored = {*parse_requests(annotations).restored_shards, shard}
    except ManifestError as error:
        raise CliError("; ".join(map(str, error.problems)), "correct this annotation first") from error
    return {RESTORE: ",".join(map(str, sorted(restored)))}


# -- giving an order -------------------------------------------------------------------------------------------------


def apply_order(cluster: Cluster, document: Object, change: Callable[[Mapping[str, str]], Change]) -> Object:
    """Change the annotations of exactly the version that was read. After a conflict, read the group again and retry."""
    name = str(document["metadata"]["name"])
    for rest in reversed(range(TRIES)):
        new_annotations = change(annotations_of(document))
        head = {name: document["metadata"][name] for name in ("uid", "resourceVersion")}
        try:
            return cluster.patch(GROUPS, name, {"metadata": {**head, "annotations": dict(new_annotations)}})
        except ApiError as error:
            if not error.status or error.status >= 500:  # the patch may have been applied
                remedy = f"the order may be pending: see `kubectl get bg/{name} -n {cluster.namespace} -o yaml`"
                raise CliError(f"no answer of the API server to the order: {error.message}", remedy) from error
            if error.status != CONFLICT or not rest:
                raise cli_error_of(error) from error
        try:
            document = read_group_again(cluster, name)
        except ApiError as error:
            raise cli_error_of(error) from error
    raise AssertionError("the last try returns or raises")


def _check_member(document: Object, shard: int, member: int) -> None:
    """Raise NotFoundError for a shard or member that the group does not have, if its spec can be parsed."""
    group, shards = group_from(document), shards_of(document.get("status") or {})
    if group is None:
        return
    known = {*range(group.spec.shards), *(one.number for one in shards)}
    if shard not in known:
        raise NotFoundError(f"shard {shard} not found", f"the shards are {', '.join(map(str, sorted(known)))}")
    if member and member not in group.spec.members:
        name = str(document["metadata"]["name"])
        texts = [f"{one} ({member_pod(name, shard, one)})" for one in group.spec.members]
        raise NotFoundError(f"member {member} not found", f"the members of shard {shard} are {', '.join(texts)}")


# -- waiting for the result of an order --------------------------------------------------------------------------------
# Polls the group until the order is executed, and prints what it waits for.
#
# A removed order alone does not prove the result: the status is written a moment later. So the newest epoch with a
# master is read from the shard's Lease, and the status must have reached it.


POLL_S: Final = 0.5
"""The time between two reads of the group, in seconds."""
GRACE_S: Final = 3.0
"""Without the Lease, an unchanged master counts as the result only after this wait: the status may be outdated."""
PROGRESS_AFTER_S: Final = 2.0
"""The delay after which the command prints the conditions that it waits for."""


class OrderOptions(NamedTuple):
    """The options that all commands with an order share."""

    target: Target
    group: str | None
    """The name of the group; None for the only one of the namespace."""

    form: OutputFormat
    timeout_s: float
    """How long to wait for the result; with 0 the command does not wait."""


@final
class OrderWaiter:
    """Polls a group until one order is executed, and prints what it waits for."""

    def __init__(self, cluster: Cluster, document: Object, options: OrderOptions, shard: int, order: str) -> None:
        self._cluster: Final = cluster
        self._options: Final = options
        self._shard: Final = shard
        self._order: Final = order
        self._name: Final = str(document["metadata"]["name"])
        self._status_command: Final = status_command(cluster.namespace, self._name)
        self._before: Final = shard_of(document, shard)
        self._started_s: Final = time.monotonic()
        self._last_read = document
        self._last_shown = ""

    def wait_for_promotion(self, ordered: Object, wanted_pod: str) -> None:
        """Wait for a promotion, to ``wanted_pod`` unless it is empty. ``ordered`` is the group with the order.

        Raises CliError when it is not done in time, or another member is the master.
        """
        if not self._options.timeout_s:
            return self._show(f"order given; see {self._status_command}", is_done=False)
        self._last_read, remedy = ordered, self._withdrawal(self._order)
        with self._remedy_if_interrupted(remedy):
            document = self._wait(lambda one: self._order not in annotations_of(one).get(PROMOTE, ""), remedy)
            document = self._wait(self._status_test(self._lease_epoch()), remedy, document)
        now = shard_of(document, self._shard)
        before, after = Master(self._before.master, self._before.epoch), Master(now.master, now.epoch)
        return self._show(promotion_outcome(self._shard, before, after, wanted_pod), now)

    def wait_for_restore(self, ordered: Object) -> None:
        """Wait until the shard has a master again. ``ordered`` is the group with the order.

        Raises CliError when it is not done in time."""
        if not self._options.timeout_s:
            return self._show(f"order given; see {self._status_command}", is_done=False)
        shard_text = str(self._shard)
        self._last_read, remedy = ordered, self._withdrawal(f"{RESTORE_ID_PREFIX}{shard_text}")
        with self._remedy_if_interrupted(remedy):
            document = self._wait(lambda one: shard_text not in annotations_of(one).get(RESTORE, "").split(","), remedy)
            document = self._wait(self._status_test(self._lease_epoch()), remedy, document)
        now = shard_of(document, self._shard)
        return self._show(f"shard {self._shard}: {now.master} is the master in epoch {now.epoch}", now)

    def wait_for_fence(self, is_wanted: bool) -> None:
        """Wait until the status shows the shard as fenced, or as not fenced. Raises CliError at the timeout."""
        if not self._options.timeout_s:
            return self._show(f"order given; see {self._status_command}", is_done=False)
        lift = f"gantry fence bg/{self._name} --namespace {self._cluster.namespace} {self._shard} --lift"
        wanted = "Fenced" if is_wanted else ""
        hint = f"lift the fence with: {lift}" if is_wanted else "the operator lifts the fence"
        remedy = f"the order stays pending; {hint}"
        with self._remedy_if_interrupted(lambda: remedy):
            document = self._wait(lambda one: shard_of(one, self._shard).fence == wanted, lambda: remedy)
        done = "fenced: it takes no sends, and keeps its master" if is_wanted else "not fenced any more"
        return self._show(f"shard {self._shard} is {done}", shard_of(document, self._shard))

    def _lease_epoch(self) -> int | None:
        """Return the newest epoch with a master in the shard's Lease; None if it cannot be read or has none."""
        try:
            lease = self._cluster.get(LEASES, shard_name(self._name, self._shard))
            record = record_of(annotations_of(lease))
        except (ApiError, InvalidLeaseRecord):
            return None
        return None if record is None or record.newest is None else record.newest.epoch

    def _status_test(self, epoch: int | None) -> Callable[[Object], bool]:
        """Return a test of whether the status, which is written a moment later, names the master of that epoch."""
        since_s = time.monotonic()

        def is_done_now(document: Object) -> bool:
            now = shard_of(document, self._shard)
            if epoch is not None:
                return bool(now.master) and now.epoch >= epoch
            return bool(now.master) and (now.epoch > self._before.epoch or time.monotonic() > since_s + GRACE_S)

        return is_done_now

    def _wait(
        self, is_done_now: Callable[[Object], bool], remedy: Callable[[], str], document: Object | None = None
    ) -> Object:
        """Poll the group until the test holds. Raises CliError with ``remedy`` after the time limit."""
        deadline = self._started_s + self._options.timeout_s
        reason = ""
        while True:
            try:
                document = self._last_read = document or read_group_again(self._cluster, self._name)
                if is_done_now(document):
                    return document
                reason = self._waits_for(document)
            except ApiError as error:
                if error.is_forbidden:
                    raise cli_error_of(error) from error
                reason = error.short  # the API server may only be restarting, and the order stays pending
            now_s = time.monotonic()
            if now_s > deadline:
                text = f"timed out after {self._options.timeout_s:g} s: {printable(reason)}"
                raise CliError(text, remedy())
            if reason != self._last_shown and now_s > self._started_s + PROGRESS_AFTER_S:
                self._last_shown = reason
                click.echo(printable(reason), err=True)
            document = None
            time.sleep(POLL_S)

    def _waits_for(self, document: Object) -> str:
        now = shard_of(document, self._shard)
        texts = [now.action, *(f"waiting: {reason}" for reason in now.blocked_by)]
        text = "; ".join(one for one in texts if one)
        return f"shard {self._shard}: {text}" if text else "no status for the order yet; check that an operator runs"

    @contextmanager
    def _remedy_if_interrupted(self, remedy: Callable[[], str]) -> Iterator[None]:
        """Print the remedy for a pending order when the user interrupts the wait."""
        try:
            yield
        except KeyboardInterrupt:
            click.echo(remedy(), err=True)
            raise

    def _withdrawal(self, request: str) -> Callable[[], str]:
        """Return a function that names the command which withdraws this request, and no order of another shard.

        It uses the annotations that were read last, since other orders come and go during the wait.
        """

        def remedy() -> str:
            change = without_request(annotations_of(self._last_read), request)
            if not change:
                return f"the order has been removed; see its result with {self._status_command}"
            words = [f"{name}-" if value is None else f"{name}={value}" for name, value in change.items()]
            words += ["--overwrite"] if any(change.values()) else []
            command = ["kubectl", "annotate", f"bg/{self._name}", "-n", self._cluster.namespace, *words]
            return f"the order stays pending; withdraw it with: {printable(shlex.join(command))}"

        return remedy

    def _show(self, message: str, now: ClusterShardStatus | None = None, *, is_done: bool = True) -> None:
        """Print the result of the order, as a text or as a document."""
        state = self._before if now is None else now
        document = OrderDocument(
            context=self._cluster.context,
            namespace=self._cluster.namespace,
            group=self._name,
            shard=self._shard,
            order=self._order,
            is_done=is_done,
            master=state.master,
            epoch=state.epoch,
            before_master=self._before.master,
            before_epoch=self._before.epoch,
            waited_ms=int((time.monotonic() - self._started_s) * 1000),
            message=message,
        )
        show(self._options.form, document, lambda: [message])


def shard_of(document: Object, number: int) -> ClusterShardStatus:
    """Return one shard of the status; a shard that is missing in it has no master."""
    found = (one for one in shards_of(document.get("status") or {}) if one.number == number)
    return next(found, NO_SHARD)


NO_SHARD: Final = ClusterShardStatus(
    number=0, master="", epoch=0, in_sync=0, lag="unknown", election_loss="", fence=None, at_risk="unknown",
    bottleneck="", is_durability_met=False, action="", blocked_by=[], if_master_dies=[],
)  # fmt: skip
"""The status of a shard that the status of the group does not have."""
