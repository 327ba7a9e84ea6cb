"""Repeated errors are logged once a minute, a terminating namespace is not a missing right, and no event is lost."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable

import pytest
from operator_world.cluster import ModelClock
from operator_world.fake_kubernetes import FakeKubernetes
from operator_world.http_kubernetes import http_kubernetes
from test_operator_process import group_object

from gantry_operator.api import EVENTS, SERVICES, Object, ObjectRef
from gantry_operator.cache import Cache, ResourceKey
from gantry_operator.errors import ApiError, Forbidden, NamespaceTerminating, NotFound, Unavailable
from gantry_operator.event_recorder import Event
from gantry_operator.metrics import Metrics
from gantry_operator.resource_loop import (
    REPEAT_MS,
    RETRY_S,
    TERMINATING_S,
    ErrorReporter,
    LoopContext,
    Outcome,
    ResourceLoop,
    WrittenStatus,
)

PLACE = ObjectRef(SERVICES, "shop", "orders-0")
GOING = {"details": {"causes": [{"reason": "NamespaceTerminating", "field": "metadata.namespace"}]}}


def log_lines(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    """Return level and reason of every log line, and clear the log."""
    found = [(record.levelno, str(vars(record)["reason"])) for record in caplog.records]
    caplog.clear()
    return found


def test_repeated_error_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """Another error is logged at once; a missing object is no warning."""
    caplog.set_level(logging.INFO)
    clock = ModelClock()
    reporter = ErrorReporter("pipeline", ("shop", "orders"), clock)

    assert {reporter.report(Forbidden("list", "you may not")) for _ in range(5)} == {RETRY_S}
    assert {vars(record)["pipeline"] for record in caplog.records} == {"shop/orders"}
    assert log_lines(caplog) == [(logging.WARNING, "list: you may not")]
    reporter.report(Unavailable("get", "it does not exist"))
    reporter.report(NotFound("apply", "there is none"))
    assert log_lines(caplog) == [(logging.WARNING, "get: it does not exist")]
    reporter.report(Unavailable("get", "it does not exist"))
    clock.ms += REPEAT_MS
    reporter.report(Forbidden("list", "you may not"))
    assert log_lines(caplog)[-1] == (logging.WARNING, "list: you may not")
    before = reporter.is_terminating

    assert reporter.report(NamespaceTerminating("create", "it is being terminated")) == TERMINATING_S
    assert (before, reporter.is_terminating) == (False, True)
    assert log_lines(caplog) == [(logging.INFO, "create: it is being terminated")]


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (403, GOING, NamespaceTerminating),
        (403, {"message": "you may not"}, Forbidden),
        (403, {"details": {"causes": [{"reason": "FieldValueInvalid"}, "NamespaceTerminating"]}}, Forbidden),
        (403, {"details": {"causes": "NamespaceTerminating"}}, Forbidden),
        (403, {"details": ["NamespaceTerminating"]}, Forbidden),
        (403, ["NamespaceTerminating"], Forbidden),
        (404, GOING, NotFound),
    ],
    ids=["going", "rights", "another cause", "no list", "no details", "no document", "another status"],
)
async def test_only_the_namespace_cause_means_a_terminating_namespace(
    status: int, body: object, kind: type[ApiError]
) -> None:
    """Other refusals keep their meaning."""
    async with http_kubernetes() as (server, api):
        server.raw = status, json.dumps(body).encode()
        with pytest.raises(ApiError) as caught:
            await api.get(PLACE)

    assert type(caught.value) is kind


class PromotesOnce:
    """A reconciler whose first round executes an action, and whose status is always due."""

    def __init__(self) -> None:
        self.events = [Event("MasterPromoted", "member 2")]

    async def reconcile(self, document: Object, written: WrittenStatus) -> Outcome:
        events, self.events = self.events, []
        return Outcome(1.0, {"phase": "Ready"}, events)

    async def close(self) -> None:
        """Do nothing: no action is under way."""


class PromotingContext(LoopContext[PromotesOnce]):
    """The context of a group with this reconciler."""

    noun = "group"

    def make_reconciler(self, key: ResourceKey, wake_now: Callable[[], None]) -> PromotesOnce:
        return PromotesOnce()


async def test_event_is_kept_when_the_status_cannot_be_written() -> None:
    """Events are recorded after the status; if that fails, they are recorded in the next round."""
    api = FakeKubernetes()
    context = PromotingContext(cache=Cache(), api=api, clock=ModelClock(), metrics=Metrics())
    api.watchers.append(context.cache.apply_event)
    api.put(group_object("orders"))
    loop = ResourceLoop(("shop", "orders"), context)
    api.fault_of = lambda verb, ref: Unavailable("status", "no answer")
    with pytest.raises(Unavailable):
        await loop.reconcile_once()
    assert api.of_kind(EVENTS) == []

    api.fault_of = lambda verb, ref: None
    assert await loop.reconcile_once() == 1.0
    assert [one["reason"] for one in api.of_kind(EVENTS)] == ["MasterPromoted"]
