"""The certificates of one group: its own authority, or the state of the Certificate that cert-manager issues.

A Certificate is not watched, since only a change of its group or a failure of cert-manager concerns the operator. It is
read every ``RETRY_MS`` while it is not ready or a pod has not started, which may wait for it, and else every
``IDLE_MS``. The operator does not read the Secret: pods load a renewed certificate themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, final

from gantry_operator.api import CERTIFICATES, Kubernetes, Object, ObjectRef
from gantry_operator.clock import Clock, parse_time
from gantry_operator.errors import ApiError, is_kind_missing
from gantry_operator.event_recorder import Event
from gantry_operator.objects import archive_secret, authority_secret, derive_authority, names, secret
from gantry_operator.objects.authority import Authority
from gantry_operator.observe.group_objects import GroupObjects
from gantry_spec.decide.decision import Condition
from gantry_spec.manifest.group import BrokerGroup
from gantry_spec.manifest.parts import CertificateIssuer

CONDITION: Final = "CertificatesReady"
READY_EVENT: Final = "CertificatesReady"
NOT_READY_EVENT: Final = "CertificatesNotReady"

RETRY_MS: Final = 10_000
IDLE_MS: Final = 600_000


@final
class GroupCertificates:
    """The certificates of one group. Owned by the task of the group's loop."""

    def __init__(self, objects: GroupObjects, api: Kubernetes, clock: Clock) -> None:
        self._objects: Final = objects
        self._api: Final = api
        self._clock: Final = clock
        self._read_ms: int | None = None
        self.condition: Condition | None = None
        """Whether cert-manager has issued the certificate, when it was last read; None where it issues none."""

    def __repr__(self) -> str:
        return f"<GroupCertificates {'/'.join(self._objects.key)}>"

    async def observe(self, group: BrokerGroup) -> None:
        """Read the Certificate of a group for which cert-manager issues it, if that is due."""
        if group.spec.access.certificates.issuer is not CertificateIssuer.CERT_MANAGER:
            self._read_ms = self.condition = None
            return
        now_ms = self._clock.now_ms()
        is_ready = self.condition is not None and self.condition.is_true
        again_ms = IDLE_MS if is_ready and not self._objects.pods_not_started() else RETRY_MS
        if self._read_ms is not None and now_ms - self._read_ms < again_ms:
            return
        self._read_ms = now_ms
        ref = ObjectRef(CERTIFICATES, group.metadata.namespace, names.certificate_name(group.metadata.name))
        try:
            self.condition = certificate_condition(await self._api.get(ref))
        except ApiError as error:
            if is_kind_missing(error):
                text = f"the Certificate {ref.name} does not exist; is cert-manager installed?"
                self.condition = _unissued("Missing", text)
                return
            text = f"cannot read the Certificate {ref.name}: {error.reason}"
            self.condition = Condition(type=CONDITION, is_true=None, reason="Unknown", message=text)

    def event(self, before: Mapping[str, Any]) -> Event | None:
        """Return the event of a change from the condition in the status ``before``; None without a change."""
        known = {one.get("type"): one for one in before.get("conditions") or []}.get(CONDITION, {})
        condition = self.condition
        if condition is None or condition.is_true is None or known.get("reason") == condition.reason:
            return None
        if condition.is_true and known.get("status") == "Unknown":
            return None
        if condition.is_true:
            return Event(READY_EVENT, "cert-manager has issued the certificate of the group")
        return Event(NOT_READY_EVENT, condition.message, is_warning=True)


def authority_of(key: bytes, group: BrokerGroup, document: Object) -> Authority | None:
    """Return the group's own authority; None for a group without one."""
    if not group.spec.access.has_own_authority:
        return None
    return derive_authority(key, group, _created_at(document))


def _created_at(document: Object) -> datetime:
    created_at = parse_time(str(document["metadata"].get("creationTimestamp", "")))
    assert created_at is not None, "the API server records when an object was created"
    return created_at


def secrets_of(
    key: bytes, group: BrokerGroup, document: Object, token: str, authority: Authority | None
) -> Sequence[Object]:
    """Return the Secrets of a group, which are to be created if they do not exist."""
    found = [secret(group, token), *([] if authority is None else [authority_secret(group, authority)])]
    if group.spec.retention.archive is not None:
        found.append(archive_secret(key, group, _created_at(document)))
    return found


def certificate_condition(certificate: Object) -> Condition:
    """Return the condition of a Certificate. Pure."""
    name = certificate["metadata"]["name"]
    conditions: dict[str, Mapping[str, Any]] = {
        one.get("type", ""): one for one in (certificate.get("status") or {}).get("conditions") or []
    }
    ready, issuing = conditions.get("Ready", {}), conditions.get("Issuing", {})
    if ready.get("status") == "True":
        return Condition(type=CONDITION, is_true=True, reason="Issued")
    found = issuing if issuing.get("status") == "False" and issuing.get("message") else ready
    if not found:
        text = "cert-manager has not reported yet; does it run, and does the issuer exist?"
        return _unissued("Waiting", f"Certificate {name}: {text}")
    return _unissued("NotIssued", f"Certificate {name}: {found.get('message') or found.get('reason') or 'no reason'}")


def _unissued(reason: str, message: str) -> Condition:
    return Condition(type=CONDITION, is_true=False, reason=reason, message=message)
