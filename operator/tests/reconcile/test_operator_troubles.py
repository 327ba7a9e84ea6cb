"""What fails again and again is said once, and a namespace that goes is told from a lack of rights."""

from __future__ import annotations

import json
import logging

import pytest
from operator_world.cluster import ModelClock
from operator_world.http_kubernetes import http_kubernetes

from gantry_operator.api import SERVICES, Place
from gantry_operator.errors import ApiError, Forbidden, Gone, Terminating, Unavailable
from gantry_operator.troubles import AGAIN_MS, Troubles

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
    troubles = Troubles(("shop", "orders"), clock)

    assert {troubles.failed(Forbidden("list", "you may not"), 1.0) for _ in range(5)} == {1.0}
    assert said(caplog) == [(logging.WARNING, "list: you may not")]
    troubles.failed(Unavailable("get", "nobody is there"), 1.0)
    troubles.failed(Gone("apply", "there is none"), 1.0)
    assert said(caplog) == [(logging.WARNING, "get: nobody is there")]
    troubles.failed(Unavailable("get", "nobody is there"), 1.0)
    clock.ms += AGAIN_MS
    troubles.failed(Forbidden("list", "you may not"), 1.0)
    assert said(caplog)[-1] == (logging.WARNING, "list: you may not")
    before = troubles.is_leaving

    assert troubles.failed(Terminating("create", "it is being terminated"), 1.0) > 1.0
    assert (before, troubles.is_leaving) == (False, True)
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
