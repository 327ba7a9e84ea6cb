"""Orders over HTTP: guarded, passed on, refused in the broker's words, and one audit line each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from admin_scene import (
    READ_TOKEN,
    TOKEN,
    BrokerChild,
    SidecarChild,
    broker_process,
    sidecar_process,
    wait_for,
    write_token_files,
)

ORDERS = {
    "promise": {"epoch": 3, "to": "tests"},
    "promote": {"epoch": 3},
    "demote": {"epoch": 3, "master": "127.0.0.1:1"},
    "fence": {"epoch": 3},
    "drain": {"timeout_ms": 100},
    "flush": {},
}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BrokerChild, SidecarChild]]:
    store = tmp_path_factory.mktemp("store")
    with broker_process(store) as broker:
        broker.send(3)
        with sidecar_process(store, *write_token_files(tmp_path_factory.mktemp("tokens"))) as sidecar:
            sidecar.wait_ready()
            yield broker, sidecar


def audit_lines(log: str) -> list[dict[str, object]]:
    return [json.loads(line.partition(" gantry.audit ")[2]) for line in log.splitlines() if " gantry.audit " in line]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("token", "status"), [(None, 401), (READ_TOKEN, 403), ("x" * 40, 401)], ids=["no", "read", "wrong"]
)
def test_order_requires_a_token_that_may_change(
    pair: tuple[BrokerChild, SidecarChild], order: str, token: str | None, status: int
) -> None:
    """401 and 403, one audit line, and nothing reaches the broker."""
    broker, sidecar = pair
    before, audited_by_broker = len(audit_lines(sidecar.child.log)), broker.child.log.count("gantry.audit")

    answer = sidecar.post(f"/v1/role/{order}", ORDERS[order], token=token)

    assert answer.status_code == status
    wait_for(lambda: len(audit_lines(sidecar.child.log)) == before + 1, "the line is written")
    line = audit_lines(sidecar.child.log)[-1]
    assert (line["what"], line["outcome"], line["server"]) == (order, f"http {status}", "sidecar")
    assert broker.child.log.count("gantry.audit") == audited_by_broker
    assert "x" * 40 not in sidecar.child.log and READ_TOKEN not in sidecar.child.log


@pytest.mark.verify
def test_orders_move_the_role_and_are_audited(tmp_path: Path) -> None:
    """Drain, promote, fence: the broker executes or refuses with its reason; the sidecar's lines name the caller."""
    with broker_process(tmp_path / "store") as broker:
        broker.send(3)
        with sidecar_process(tmp_path / "store", *write_token_files(tmp_path / "tokens")) as sidecar:
            sidecar.wait_ready()
            epoch = sidecar.get("/v1/role", token=TOKEN).json()["epoch"]
            drained = sidecar.post("/v1/role/drain", {"timeout_ms": 5000}, token=TOKEN)
            wait_for(lambda: sidecar.get("/readyz").status_code == 503, "it drains and is not ready")
            reason = sidecar.get("/readyz").json()["reason"]
            back = sidecar.post("/v1/role/promote", {"epoch": epoch}, token=TOKEN)
            fenced = sidecar.post("/v1/role/fence", {"epoch": epoch + 1}, token=TOKEN)
            again = sidecar.post("/v1/role/fence", {"epoch": epoch + 1}, token=TOKEN)
            late = sidecar.post("/v1/role/promote", {"epoch": epoch}, token=TOKEN)
            sidecar.post("/v1/role/demote", {"epoch": epoch, "master": "127.0.0.1:1"}, token=TOKEN)
            wait_for(lambda: len(audit_lines(sidecar.child.log)) == 6, "every line is written")
            wait_for(lambda: broker.child.log.count('"what":"fence"') == 2, "the broker's own lines, too")
            lines = audit_lines(sidecar.child.log)
            broker_log = broker.child.log

    assert (drained.status_code, drained.json()["is_draining"]) == (200, True)
    assert "drain" in reason
    assert (back.status_code, back.json()["is_draining"]) == (200, False)
    assert (fenced.status_code, fenced.json()["role"]) == (200, "unassigned")
    assert again.status_code == 200, "idempotent"
    assert late.status_code == 409
    assert late.json()["reason"]
    assert [(line["what"], line["outcome"]) for line in lines] == [
        ("drain", "http 200"), ("promote", "http 200"), ("fence", "http 200"), ("fence", "http 200"),
        ("promote", "http 409"), ("demote", "http 409"),
    ]  # fmt: skip
    assert {line["account"] for line in lines} == {"token:operator"}
    assert broker_log.count('"what":"fence"') == 2


@pytest.mark.parametrize(
    ("order", "body"),
    [
        ("fence", {}), ("fence", {"epoch": 0}), ("fence", {"epoch": "7"}), ("fence", {"epoch": True}),
        ("fence", {"epoch": 7.5}), ("fence", {"epoch": 7, "and": 1}), ("fence", []), ("fence", {"epoch": 1 << 62}),
        ("promote", {"epoch": 7, "expected": {"end": 1}}),
        ("promote", {"epoch": 7, "electable": [-1]}), ("promote", {"epoch": 7, "force": "yes"}),
        ("demote", {"epoch": 7, "master": ""}), ("demote", {"epoch": 7, "master": "a b"}),
        ("drain", {"timeout_ms": -1}),
    ],
)  # fmt: skip
def test_invalid_order_is_refused_before_it_reaches_the_broker(
    pair: tuple[BrokerChild, SidecarChild], order: str, body: object
) -> None:
    """422, with the place in the body, and no audit line of the broker."""
    broker, sidecar = pair
    audited_by_broker = broker.child.log.count("gantry.audit")

    answer = sidecar.post(f"/v1/role/{order}", body, token=TOKEN)

    assert answer.status_code == 422
    assert "body" in answer.json()["reason"]
    assert broker.child.log.count("gantry.audit") == audited_by_broker


def test_reading_the_role_changes_nothing(pair: tuple[BrokerChild, SidecarChild]) -> None:
    """`GET /v1/role` needs the permission to view: a read token is enough, and no audit line is written."""
    _, sidecar = pair
    before = len(audit_lines(sidecar.child.log))

    assert sidecar.get("/v1/role", token=READ_TOKEN).json()["role"] == "master"
    assert len(audit_lines(sidecar.child.log)) == before


def test_role_now_is_the_current_report_of_the_broker(pair: tuple[BrokerChild, SidecarChild]) -> None:
    """`GET /v1/role/now` is the broker's current report, by the names of the control socket; viewing is enough."""
    broker, sidecar = pair
    before = len(audit_lines(sidecar.child.log))
    broker.send(1)

    answer = sidecar.get("/v1/role/now", token=READ_TOKEN)

    assert answer.status_code == 200
    assert (answer.json()["role"], answer.json()["wrote"]) == ("MASTER", broker.log_end)
    assert sidecar.get("/v1/role/now").status_code == 401
    assert len(audit_lines(sidecar.child.log)) == before


def test_promotion_with_an_outdated_expectation_is_refused(tmp_path: Path) -> None:
    """With `expected`, the broker must still have the named state: the length of its log, and the role it continues.

    A power loss between election and promotion may have destroyed data that the election rested on. Without `expected`,
    and with the true state, the broker is promoted.
    """
    with broker_process(tmp_path / "store") as broker:
        broker.send(3)
        with sidecar_process(tmp_path / "store", *write_token_files(tmp_path / "tokens")) as sidecar:
            sidecar.wait_ready()
            now = sidecar.get("/v1/role/now", token=TOKEN).json()
            epoch, end = now["epoch"] + 10, now["wrote"]
            longer = {"last_epoch": now["last_epoch"], "end": end + 1}
            refused = sidecar.post("/v1/role/promote", {"epoch": epoch, "expected": longer}, token=TOKEN)
            gone = {"last_epoch": 0, "end": 0, "continues": now["epoch"] + 1}
            other = sidecar.post("/v1/role/promote", {"epoch": epoch, "expected": gone}, token=TOKEN)
            still = sidecar.get("/v1/role/now", token=TOKEN).json()
            right = {"last_epoch": now["last_epoch"], "end": end, "continues": now["epoch"]}
            done = sidecar.post("/v1/role/promote", {"epoch": epoch, "expected": right}, token=TOKEN)
            again = sidecar.post(
                "/v1/role/promote", {"epoch": epoch, "expected": longer | {"end": 1 << 40}}, token=TOKEN
            )
            plain = sidecar.post("/v1/role/promote", {"epoch": epoch + 1}, token=TOKEN)

    assert (refused.status_code, other.status_code) == (409, 409)
    assert "expected a log" in refused.json()["reason"] and "expected the master" in other.json()["reason"]
    assert (still["epoch"], still["role"]) == (now["epoch"], "MASTER")
    assert (done.status_code, done.json()["epoch"]) == (200, epoch)
    assert again.status_code == 200, "it was done already: a repetition is answered like the first"
    assert (plain.status_code, plain.json()["epoch"]) == (200, epoch + 1)
