"""The condition `GatewayReady` of a group whose external clients connect through a Gateway, and its events. Pure.

The condition exists only with `access.external.type: Gateway`. It does not count for `Ready` and the phase, which are
about brokers: clients inside the cluster need no Gateway.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gantry_operator.event_recorder import Event
from gantry_operator.observe.gateways import GatewayReport
from gantry_operator.status import MESSAGE_MAX
from gantry_spec.decide.decision import Condition

CONDITION: Final = "GatewayReady"
NOT_READY: Final = "GatewayNotReady"
"""The event reason where external access waits for something, or begins to wait for something else."""


def gateway_condition(report: GatewayReport | None) -> Condition | None:
    """Return the condition; None for a group without a Gateway. Its message has everything that is missing."""
    if report is None:
        return None
    if not report.problems:
        return Condition(type=CONDITION, is_true=True, reason="AllRoutesAccepted")
    message = "; ".join(problem.text for problem in report.problems)
    return Condition(type=CONDITION, is_true=False, reason=report.problems[0].reason, message=message)


def gateway_event(condition: Condition | None, before: Mapping[str, Any]) -> Event | None:
    """Return the event of a change from the condition in the status ``before``; None without a change."""
    if condition is None:
        return None
    known = {one.get("type"): one for one in before.get("conditions") or []}.get(CONDITION, {})
    if condition.is_true:
        text = "external clients can connect through the Gateway to the name servers and all brokers"
        return None if known.get("status") == "True" else Event(CONDITION, text)
    if (known.get("status"), known.get("message")) == ("False", condition.message[:MESSAGE_MAX]):
        return None
    return Event(NOT_READY, condition.message, is_warning=condition.reason != "RoutesPending")
