"""Kopf's part: watches that tell, and nothing else. Every handler is an event handler, so Kopf adds no finalizer.

    brokergroups, pods, statefulsets, claims, leases, nodes   -->   WatchedResources.take
    topicarchives, logaudits, topicanalytics, jobs, cronjobs  -->   the same, which has a cache for pipelines

Kopf's own loops do not retry what an event handler raises, keep no state on objects, and know no order; all of that is
the business of a group's task, which looks at what is there, not at what has changed. Handlers and settings are of one
registry, made for one operator: nothing here is global.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

import kopf
from kubernetes.client import Configuration

from gantry_operator.api import Kind
from gantry_operator.watched_resources import LISTED, LISTED_FOR_PIPELINES, WatchedResources
from gantry_spec.manifest.group import API_GROUP

WORKERS: Final = 4
"""Threads of Kopf's for handlers that block; ours never do."""


def registry_of(resources: WatchedResources, login: Callable[[], kopf.ConnectionInfo]) -> kopf.OperatorRegistry:
    """Every kind that is watched, reported to ``resources``. ``login`` says who we are, anew each time it is asked."""
    registry = kopf.OperatorRegistry()
    fill(registry, resources, login)
    return registry


def fill(
    registry: kopf.OperatorRegistry, resources: WatchedResources, login: Callable[[], kopf.ConnectionInfo]
) -> None:
    """The same, put into one that somebody has begun."""

    @kopf.on.login(registry=registry, id="login")
    async def logged_in(**_: object) -> kopf.ConnectionInfo:
        return await asyncio.to_thread(login)

    @kopf.on.cleanup(registry=registry, id="cleanup")
    async def ended(**_: object) -> None:
        """Before Kopf waits for whatever still runs: nothing of ours does."""
        await resources.close()

    for kind, label in resources.watched.items():
        _watch(registry, resources, kind, label)


def _watch(registry: kopf.OperatorRegistry, resources: WatchedResources, kind: Kind, label: str) -> None:
    group, _, version = kind.api_version.rpartition("/")
    name, _, value = label.partition("=")
    labels = {name: value or kopf.PRESENT} if name else None

    @kopf.on.event(group, version, kind.plural, labels=labels, registry=registry, id=f"seen-{kind.plural}")
    async def seen(event: Mapping[str, Any], **_: object) -> None:
        document = {"apiVersion": kind.api_version, "kind": kind.name} | dict(event["object"])
        resources.take(event["type"], document)


def settings_of() -> kopf.OperatorSettings:
    """Those that matter, pinned."""
    settings = kopf.OperatorSettings()
    settings.peering.standalone = True  # who leads is decided by our own Lease
    settings.posting.enabled = False  # events are told by us, with reasons that never change
    settings.watching.server_timeout = 300  # a whole number, or the API server refuses it
    settings.watching.inactivity_timeout = 70.0
    settings.watching.connect_timeout = 10.0
    settings.networking.request_timeout = 30.0
    settings.scanning.disabled = True  # what is watched does not change, and looking at all CRDs is a right too many
    settings.execution.max_workers = WORKERS
    settings.queueing.worker_limit = 200
    settings.persistence.finalizer = f"{API_GROUP}/unused"
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=API_GROUP)
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=API_GROUP)
    for kind, label in (LISTED | LISTED_FOR_PIPELINES).items():
        if label:
            group, _, version = kind.api_version.rpartition("/")
            settings.watching.label_selectors[group, version, kind.plural] = label
    return settings


def connection_of(settings: Configuration) -> kopf.ConnectionInfo:
    """The way to the API server for Kopf's watches: the same as for our own calls.

    Asked anew when the API server knows it no more, so a token that was replaced is read again.
    """
    header: str = settings.get_api_key_with_prefix("BearerToken") or settings.get_api_key_with_prefix("authorization")
    scheme, _, token = (header or "").rpartition(" ")
    return kopf.ConnectionInfo(
        server=settings.host,
        ca_path=settings.ssl_ca_cert,
        insecure=not settings.verify_ssl,
        scheme=scheme or None,
        token=token or None,
        certificate_path=settings.cert_file,
        private_key_path=settings.key_file,
    )
