"""An error that repeats is logged once, a terminating namespace is told from a lack of rights, and no event is lost."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable

import pytest
from operator_world.cluster import ModelClock
from operator_world.fake_kubernetes import FakeKubernetes
from operator_world.http_kubernetes import http_kubernetes
from test_operator_process import group_object

from gantry_operator.api import EVENTS, SERVICES, Object, Place
from gantry_operator.cache import Cache, ResourceKey
from gantry_operator.errors import ApiError, Forbidden, Gone, Terminating, Unavailable
from gantry_operator.event_recorder import Event
from gantry_operator.metrics import Metrics
from gantry_operator.resource_loop import (
    LEAVING_S,
    REPEAT_MS,
    RETRY_S,
    ErrorReporter,
    LoopContext,
    Outcome,
    ResourceLoop,
    Written,
)

PLACE = Place(SERVICES, "shop", "orders-0")
GOING = {"details": {"causes": [{"reason": "NamespaceTerminating", "field": "metadata.namespace"}]}}


def said(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    """Level and reason of every line, and nothing is left of them."""
    found = [(record.levelno, str(vars(record)["reason"])) for record in caplog.records]
    caplog.clear()
    return found


def test_the_same_reason_is_said_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """Another one at once; that something is gone is no trouble at all."""
    caplog.set_level(logging.INFO)
    clock = ModelClock()
    reporter = ErrorReporter("pipeline", ("shop", "orders"), clock)

    assert {reporter.report(Forbidden("list", "you may not")) for _ in range(5)} == {RETRY_S}
    assert {vars(record)["pipeline"] for record in caplog.records} == {"shop/orders"}
    assert said(caplog) == [(logging.WARNING, "list: you may not")]
    reporter.report(Unavailable("get", "nobody is there"))
    reporter.report(Gone("apply", "there is none"))
    assert said(caplog) == [(logging.WARNING, "get: nobody is there")]
    reporter.report(Unavailable("get", "nobody is there"))
    clock.ms += REPEAT_MS
    reporter.report(Forbidden("list", "you may not"))
    assert said(caplog)[-1] == (logging.WARNING, "list: you may not")
    before = reporter.is_leaving

    assert reporter.report(Terminating("create", "it is being terminated")) == LEAVING_S
    assert (before, reporter.is_leaving) == (False, True)
    assert said(caplog) == [(logging.INFO, "create: it is being terminated")]


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (403, GOING, Terminating),
        (403, {"message": "you may not"}, Forbidden),
        (403, {"details": {"causes": [{"reason": "FieldValueInvalid"}, "NamespaceTerminating"]}}, Forbidden),
        (403, {"details": {"causes": "NamespaceTerminating"}}, Forbidden),
        (403, {"details": ["NamespaceTerminating"]}, Forbidden),
        (403, ["NamespaceTerminating"], Forbidden),
        (404, GOING, Gone),
    ],
    ids=["going", "rights", "another cause", "no list", "no details", "no document", "another status"],
)
async def test_only_that_cause_says_that_a_namespace_goes(status: int, body: object, kind: type[ApiError]) -> None:
    """Whatever else stands in a refusal is what it was."""
    async with http_kubernetes() as (server, api):
        server.raw = status, json.dumps(body).encode()
        with pytest.raises(ApiError) as caught:
            await api.get(PLACE)

    assert type(caught.value) is kind


class PromotesOnce:
    """A reconciler whose first round executes something, and whose status is always due."""

    def __init__(self) -> None:
        self.events = [Event("MasterPromoted", "member 2")]

    async def reconcile(self, document: Object, written: Written) -> Outcome:
        events, self.events = self.events, []
        return Outcome(1.0, {"phase": "Ready"}, events)

    async def close(self) -> None:
        """Nothing is under way."""


class PromotingContext(LoopContext[PromotesOnce]):
    """Of a group that is reconciled by it."""

    noun = "group"

    def make_reconciler(self, key: ResourceKey, wake_now: Callable[[], None]) -> PromotesOnce:
        return PromotesOnce()


async def test_an_event_outlives_a_status_that_cannot_be_written() -> None:
    """Events are recorded after the status; where that fails they are recorded in the next round."""
    api = FakeKubernetes()
    context = PromotingContext(cache=Cache(), api=api, clock=ModelClock(), metrics=Metrics())
    api.watchers.append(context.cache.take)
    api.put(group_object("orders"))
    loop = ResourceLoop(("shop", "orders"), context)
    api.refuse = lambda verb, place: Unavailable("status", "no answer")
    with pytest.raises(Unavailable):
        await loop.step()
    assert api.of_kind(EVENTS) == []

    api.refuse = lambda verb, place: None
    assert await loop.step() == 1.0
    assert [one["reason"] for one in api.of_kind(EVENTS)] == ["MasterPromoted"]
