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

import time
from collections.abc import Callable, Mapping
from typing import Final

from gantry_cli.errors import Absent, CliError
from gantry_cli.kube.cluster import Cluster, Object
from gantry_cli.kube.faults import Refusal, harmless, line_of
from gantry_cli.kube.groups import group_again, open_group
from gantry_cli.kube.kinds import GROUPS
from gantry_cli.kube.look import group_from, shards_of
from gantry_cli.kube.naming import pod_of
from gantry_cli.kube.seen import annotations_of
from gantry_cli.kube.waiting import Asked, Waiting, shard_of
from gantry_cli.orders import parse_promotion, with_promotion
from gantry_spec.manifest import ManifestError
from gantry_spec.manifest.annotations import FENCE, RESTORE, wanted

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
    waiting.until_taken_off(pod_of(str(document["metadata"]["name"]), shard, member) if member else "")


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
        texts = [f"{one} ({pod_of(name, shard, one)})" for one in group.spec.members]
        raise Absent(f"there is no member {member}", f"the members of shard {shard} are {', '.join(texts)}")
