"""The Kopf handlers: they report watch events, log in, and stop the loops at the end. No resource gets a finalizer.

    brokergroups and their objects: pods, statefulsets, deployments,
    services, claims, leases; nodes; gateways, tcproutes             -->   WatchedResources.apply_event
    topicarchives, logaudits, topicanalytics, jobs, cronjobs         -->   the same, with the cache of pipelines

Kopf does not retry an event handler that raises, keeps no state on objects, and gives no order between kinds. None of
this is needed: the loop of each resource compares the present state, not single changes, and retries. Handlers and
settings belong to one registry, which is created for one operator: nothing here is global.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

import kopf
from kubernetes.client import Configuration

from gantry_operator.api import Kind
from gantry_operator.watched_resources import (
    OPTIONAL_KINDS,
    WATCHED_KINDS,
    WATCHED_PIPELINE_KINDS,
    WatchedResources,
)
from gantry_spec.manifest.group import API_GROUP

WORKERS: Final = 4
"""Threads of Kopf for handlers that block. No handler of this module does."""


def kopf_registry(resources: WatchedResources, login: Callable[[], kopf.ConnectionInfo]) -> kopf.OperatorRegistry:
    """Return a registry that reports all watched kinds to ``resources``. ``login`` returns fresh credentials."""
    registry = kopf.OperatorRegistry()
    register_handlers(registry, resources, login)
    return registry


def register_handlers(
    registry: kopf.OperatorRegistry, resources: WatchedResources, login: Callable[[], kopf.ConnectionInfo]
) -> None:
    """Add the handlers to a registry that already exists."""

    @kopf.on.login(registry=registry, id="login")
    async def handle_login(**_: object) -> kopf.ConnectionInfo:
        return await asyncio.to_thread(login)

    @kopf.on.cleanup(registry=registry, id="cleanup")
    async def handle_cleanup(**_: object) -> None:
        """Stop all loops before Kopf waits for the tasks that still run."""
        await resources.close()

    for kind, label in resources.watched.items():
        _register_watch(registry, resources, kind, label)


def _register_watch(registry: kopf.OperatorRegistry, resources: WatchedResources, kind: Kind, label: str) -> None:
    group, _, version = kind.api_version.rpartition("/")
    name, _, value = label.partition("=")
    labels = {name: value or kopf.PRESENT} if name else None

    @kopf.on.event(group, version, kind.plural, labels=labels, registry=registry, id=f"watch-{kind.plural}")
    async def handle_event(event: Mapping[str, Any], **_: object) -> None:
        document = {"apiVersion": kind.api_version, "kind": kind.name} | dict(event["object"])
        resources.apply_event(event["type"], document)


def kopf_settings() -> kopf.OperatorSettings:
    """Return Kopf's settings, with explicit values for all that matter here."""
    settings = kopf.OperatorSettings()
    settings.peering.standalone = True  # the leader is elected by the operator's own Lease
    settings.posting.enabled = False  # the operator records its own events, with reasons that never change
    settings.watching.server_timeout = 300  # a whole number, or the API server refuses it
    settings.watching.inactivity_timeout = 70.0
    settings.watching.connect_timeout = 10.0
    settings.networking.request_timeout = 30.0
    settings.scanning.disabled = True  # the watched kinds do not change, and listing all CRDs needs an extra right
    settings.execution.max_workers = WORKERS
    settings.queueing.worker_limit = 200
    settings.persistence.finalizer = f"{API_GROUP}/unused"
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=API_GROUP)
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=API_GROUP)
    for kind, label in (WATCHED_KINDS | WATCHED_PIPELINE_KINDS | OPTIONAL_KINDS).items():
        if label:
            group, _, version = kind.api_version.rpartition("/")
            settings.watching.label_selectors[group, version, kind.plural] = label
    return settings


def kopf_connection(settings: Configuration) -> kopf.ConnectionInfo:
    """Return the connection to the API server for Kopf's watches: the one that the operator's own calls use.

    Kopf calls this again when the API server rejects the credentials, so a rotated token is read again.
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
