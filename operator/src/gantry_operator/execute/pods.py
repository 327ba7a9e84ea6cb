"""Actions on pods, StatefulSets and claims. Each is restricted to the observed object, by its uid.

    Start        a pod that has terminated is deleted, and its StatefulSet creates another; else nothing is done
    Restart      the pod is deleted gracefully; its StatefulSet creates another one from the present template
    Hibernate    both StatefulSets of a shard are scaled to 0; an annotation keeps the replica count
    Remove       the StatefulSet shrinks by its last pod; that of the master shrinks to none
    ReplaceDisk  the claim is deleted, then the pod that uses it; its StatefulSet creates both again

No action waits for a pod to terminate: the next observation shows it. A machine that is off or unreachable cannot
confirm that a pod has terminated, so a pod on it is deleted by force. Only ReplaceDisk does this. It is decided only if
another member is the master of the newest epoch, or if a person has accepted any loss.
"""

from __future__ import annotations

from typing import Final, final

from gantry_operator.api import CLAIMS, Kubernetes, Object, ObjectRef, ref_of, revision_of, uid_of
from gantry_operator.errors import Conflict
from gantry_operator.objects import names
from gantry_operator.observe import pods
from gantry_operator.observe.group_objects import GroupObjects, replicas_of
from gantry_spec import actions as act


@final
class PodExecutor:
    """Executes the actions on the pods of one group."""

    def __init__(self, objects: GroupObjects, api: Kubernetes) -> None:
        self._key: Final = objects.key
        self._objects: Final = objects
        self._api: Final = api

    async def execute(self, action: act.ProcessAction | act.Hibernate) -> None:
        """Execute one action. Raises leaves of ``ApiError``."""
        match action:
            case act.Start():
                await self._start(action)
            case act.Restart():
                self._refuse_second_restart(action)
                await self._delete_pod(action.shard, action.member, action.boot_id)
            case act.Remove():
                await self._remove(action)
            case act.ReplaceDisk():
                await self._replace_disk(action)
            case act.Hibernate():
                await self._hibernate(action.shard)
            case _:
                raise AssertionError(f"no way to execute {action}")

    async def _hibernate(self, shard: int) -> None:
        """Scale both StatefulSets of a shard to 0, if that keeps its volumes; an annotation keeps the replica count."""
        stateful_sets = self._objects.stateful_sets(shard)
        for document in (stateful_sets.slave, stateful_sets.master):
            replicas = replicas_of(document)
            if document is None or not replicas:
                continue
            self._refuse_to_delete_volumes(document)
            change = {
                "metadata": {"annotations": {names.HIBERNATED_REPLICAS_ANNOTATION: str(replicas)}},
                "spec": {"replicas": 0},
            }
            answer = await self._api.patch(
                ref_of(document), change, uid=uid_of(document), revision=revision_of(document)
            )
            self._objects.cache.put(answer)

    def _refuse_to_delete_volumes(self, document: Object) -> None:
        """Raise ``Conflict`` if the StatefulSet would delete the volumes of its pods when it shrinks."""
        policy = document["spec"].get("persistentVolumeClaimRetentionPolicy") or {}
        if policy.get("whenScaled") != "Retain":
            raise Conflict(document["metadata"]["name"], "its volumes would be deleted with its pods")

    def _refuse_second_restart(self, action: act.Restart) -> None:
        """Raise ``Conflict`` if another member is stopping or starting, so that no two running members restart at once.

        A pod takes a while to terminate, and its broker acknowledges until then, so an observation may count it. A
        member that does not run may be restarted at any time.
        """
        own = self._objects.pod(action.shard, action.member)
        if own is None or not _is_running(own):
            return
        for member in self._objects.stateful_sets(action.shard).members:
            pod = self._objects.pod(action.shard, member)
            if member != action.member and (pod is None or not _is_running(pod)):
                name = names.member_pod(self._key[1], action.shard, action.member)
                raise Conflict(name, f"member {member} is stopping or starting; it must be running first")

    async def _start(self, action: act.Start) -> None:
        pod = self._objects.pod(action.shard, action.member)
        if pod is not None and (pod.get("status") or {}).get("phase") in pods.ENDED:
            await self._delete_pod(action.shard, action.member, uid_of(pod))

    async def _delete_pod(self, shard: int, member: int, uid: str, *, is_forced: bool = False) -> None:
        if not uid:
            raise Conflict(names.member_pod(self._key[1], shard, member), "the uid of the pod is not known")
        ref, pod = self._objects.pod_ref(shard, member), self._objects.pod(shard, member)
        if pod is not None and pod["metadata"].get("deletionTimestamp") and uid_of(pod) == uid and not is_forced:
            return
        await self._api.delete(ref, uid=uid, grace_s=0 if is_forced else None)

    async def _remove(self, action: act.Remove) -> None:
        """Shrink the StatefulSet of a member by its last pod; see the module's docstring."""
        pod = self._objects.pod(action.shard, action.member)
        if pod is not None and action.boot_id and uid_of(pod) != action.boot_id:
            raise Conflict(
                names.member_pod(self._key[1], action.shard, action.member),
                "the pod was replaced by another one of the same name",
            )
        stateful_sets = self._objects.stateful_sets(action.shard)
        if action.member == 1:
            await self._scale(stateful_sets.master, 0)
        elif replicas_of(stateful_sets.slave) == action.member - 1:
            await self._scale(stateful_sets.slave, action.member - 2)

    async def _scale(self, document: Object | None, replicas: int) -> None:
        if document is None or replicas_of(document) <= replicas:
            return
        answer = await self._api.patch(
            ref_of(document), {"spec": {"replicas": replicas}}, uid=uid_of(document), revision=revision_of(document)
        )
        self._objects.cache.put(answer)

    async def _replace_disk(self, action: act.ReplaceDisk) -> None:
        claim = self._objects.claim(action.shard, action.member)
        if claim is None or uid_of(claim) != action.disk_id:
            return
        name = claim["metadata"]["name"]
        await self._api.delete(ObjectRef(CLAIMS, self._key[0], name), uid=action.disk_id)
        pod = self._objects.pod(action.shard, action.member)
        if pod is not None:
            machine = self._objects.machine(pod)
            is_forced = machine.is_off or not machine.is_reachable
            await self._delete_pod(action.shard, action.member, uid_of(pod), is_forced=is_forced)


def _is_running(pod: Object) -> bool:
    """Return whether the broker's container runs, and the pod is not being deleted."""
    return "running" in (pods.container_of(pod).get("state") or {}) and not pod["metadata"].get("deletionTimestamp")
