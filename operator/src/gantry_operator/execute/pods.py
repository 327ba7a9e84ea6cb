"""Pods, their StatefulSets and their claims: what is done to them is done to the one that was seen, by its uid.

    Start        a pod that has ended for good is deleted, and its StatefulSet makes another; else nothing is done
    Restart      the pod is deleted, politely; its StatefulSet makes another one of today's template
    Sleep        both StatefulSets of a shard shrink to none, and remember what they were
    Remove       the StatefulSet shrinks by its last pod; a master's goes to none
    ReplaceDisk  the claim is deleted, then the pod that holds on to it; its StatefulSet makes both anew

Nothing here waits for a pod to go: the next look shows it. A machine that is off or does not answer confirms nothing,
so a pod on it is taken off the list without its word, and only here, where the decision before has seen to it that
its epoch is outvoted.
"""

from __future__ import annotations

from typing import Final, final

from gantry_operator.api import CLAIMS, Kubernetes, Object, Place, place_of, revision_of, uid_of
from gantry_operator.errors import Conflict
from gantry_operator.objects import names
from gantry_operator.observe import pods
from gantry_operator.observe.group_objects import GroupObjects, replicas_of
from gantry_spec import actions as act


@final
class Pods:
    """Of one group."""

    def __init__(self, objects: GroupObjects, api: Kubernetes) -> None:
        self._key: Final = objects.key
        self._objects: Final = objects
        self._api: Final = api

    async def do(self, action: act.ProcessAction | act.Sleep) -> None:
        """One of them."""
        match action:
            case act.Start():
                await self._start(action)
            case act.Restart():
                self._refuse_second(action)
                await self._delete_pod(action.shard, action.member, action.boot_id)
            case act.Remove():
                await self._remove(action)
            case act.ReplaceDisk():
                await self._replace_disk(action)
            case act.Sleep():
                await self._sleep(action.shard)
            case _:
                raise AssertionError(f"no way to execute {action}")

    async def _sleep(self, shard: int) -> None:
        """Have a shard's StatefulSets make no pods, if its volumes outlive that."""
        sets = self._objects.sets(shard)
        for document in (sets.slave, sets.master):
            replicas = replicas_of(document)
            if document is None or not replicas:
                continue
            self._refuse_without_volumes(document)
            change = {
                "metadata": {"annotations": {names.ASLEEP_ANNOTATION: str(replicas)}},
                "spec": {"replicas": 0},
            }
            answer = await self._api.patch(
                place_of(document), change, uid=uid_of(document), revision=revision_of(document)
            )
            self._objects.cache.put(answer)

    def _refuse_without_volumes(self, document: Object) -> None:
        """What a StatefulSet deletes with its pods is lost by a sleep."""
        policy = document["spec"].get("persistentVolumeClaimRetentionPolicy") or {}
        if policy.get("whenScaled") != "Retain":
            raise Conflict(document["metadata"]["name"], "its volumes would go with its pods")

    def _refuse_second(self, action: act.Restart) -> None:
        """A pod takes its time to go, and its slave acknowledges meanwhile: then the next one must not go, too."""
        own = self._objects.pod(action.shard, action.member)
        if own is None or not _runs(own):
            return
        for member in self._objects.sets(action.shard).wanted:
            pod = self._objects.pod(action.shard, member)
            if member != action.member and (pod is None or not _runs(pod)):
                name = names.member_pod(self._key[1], action.shard, action.member)
                raise Conflict(name, f"member {member} is on its way out or in, and comes first")

    async def _start(self, action: act.Start) -> None:
        pod = self._objects.pod(action.shard, action.member)
        if pod is not None and (pod.get("status") or {}).get("phase") in pods.ENDED:
            await self._delete_pod(action.shard, action.member, uid_of(pod))

    async def _delete_pod(self, shard: int, member: int, uid: str, *, is_forced: bool = False) -> None:
        if not uid:
            raise Conflict(names.member_pod(self._key[1], shard, member), "nobody knows which pod is meant")
        place, pod = self._objects.pod_place(shard, member), self._objects.pod(shard, member)
        if pod is not None and pod["metadata"].get("deletionTimestamp") and uid_of(pod) == uid and not is_forced:
            return
        await self._api.delete(place, uid=uid, grace_s=0 if is_forced else None)

    async def _remove(self, action: act.Remove) -> None:
        pod = self._objects.pod(action.shard, action.member)
        if pod is not None and action.boot_id and uid_of(pod) != action.boot_id:
            raise Conflict(names.member_pod(self._key[1], action.shard, action.member), "another pod has its name")
        sets = self._objects.sets(action.shard)
        if action.member == 1:
            await self._scale(sets.master, 0)
        elif replicas_of(sets.slave) == action.member - 1:
            await self._scale(sets.slave, action.member - 2)

    async def _scale(self, document: Object | None, replicas: int) -> None:
        if document is None or replicas_of(document) <= replicas:
            return
        answer = await self._api.patch(
            place_of(document), {"spec": {"replicas": replicas}}, uid=uid_of(document), revision=revision_of(document)
        )
        self._objects.cache.put(answer)

    async def _replace_disk(self, action: act.ReplaceDisk) -> None:
        claim = self._objects.claim(action.shard, action.member)
        if claim is None or uid_of(claim) != action.disk_id:
            return
        name = claim["metadata"]["name"]
        await self._api.delete(Place(CLAIMS, self._key[0], name), uid=action.disk_id)
        pod = self._objects.pod(action.shard, action.member)
        if pod is not None:
            machine = self._objects.machine(pod)
            is_forced = machine.is_off or not machine.is_reachable
            await self._delete_pod(action.shard, action.member, uid_of(pod), is_forced=is_forced)


def _runs(pod: Object) -> bool:
    """Whether it is there to stay."""
    return "running" in (pods.container_of(pod).get("state") or {}) and not pod["metadata"].get("deletionTimestamp")
