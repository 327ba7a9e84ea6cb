"""The facts that a pod derives by itself: its member, its addresses, and the restarts of its server."""

from pathlib import Path

import pytest

from gantry_cli.pod.member import Addresses, NotReadyError, PodMember, merge_conf, parse_pod_name
from gantry_cli.pod.supervisor import DELAY_S_MAX, IMMEDIATE_RESTARTS_MAX, SHORT_RUNS_MAX, pod_restart_policy


@pytest.mark.parametrize(
    ("pod", "member"),
    [
        ("orders-0-master-0", PodMember(1, "orders-0-master-0", "orders-0")),
        ("orders-12-slave-0", PodMember(2, "orders-12-slave-0", "orders-12")),
        ("a-master-3-slave-7", PodMember(9, "a-master-3-slave-7", "a-master-3")),
        ("orders-0-master-1", None),
        ("orders-nameserver-0", None),
        ("orders-slave-0", None),
        ("orders-0-slave-x", None),
    ],
)
def test_pod_name_determines_the_member(pod: str, member: PodMember | None) -> None:
    """The number never changes; the Service that follows the role is the shard's."""
    assert parse_pod_name(pod) == member


def test_server_restarts_at_once_until_it_crashes_too_often() -> None:
    """Five crashes within a minute cause no delay; more cause longer delays, up to 16 s."""
    restarts = pod_restart_policy()

    delays = [restarts.delay_after_death(float(second), second + 0.5) for second in range(SHORT_RUNS_MAX - 1)]

    assert delays == [0.0] * IMMEDIATE_RESTARTS_MAX + [1.0, 2.0, 4.0, 8.0, 16.0, DELAY_S_MAX]


def test_crashes_are_forgotten_after_a_minute() -> None:
    """Crashes more than a minute apart are all followed by an immediate restart."""
    restarts = pod_restart_policy()

    assert [restarts.delay_after_death(now, now + 100.0) for now in range(0, 5000, 500)] == [0.0] * 10
    assert restarts.recent == 1


def test_server_that_always_crashes_ends_the_container() -> None:
    """Twelve short lives in a row end the container; one long life restarts the count."""
    restarts = pod_restart_policy()
    for number in range(SHORT_RUNS_MAX - 1):
        assert restarts.delay_after_death(number, number + 0.1) is not None

    spoiled = restarts.delay_after_death(20.0, 20.1)

    assert spoiled is None
    assert restarts.delay_after_death(100.0, 300.0) == 0.0


def test_pod_settings_override_those_of_the_operator() -> None:
    """The result has one line per key: the pod's own value where both exist."""
    assert merge_conf("# made\na=1\n\n brokerId = 9\n", {"brokerId": "2"}) == "a=1\nbrokerId=2\n"


def test_address_is_resolved_once_per_pod(tmp_path: Path) -> None:
    """A restarted container needs no DNS: the address is stored in the pod."""
    asked: list[str] = []

    def resolve(host: str) -> str:
        asked.append(host)
        return "10.96.0.7"

    assert Addresses(tmp_path, "shop", resolve).address_of("orders-0") == "10.96.0.7"
    assert Addresses(tmp_path, "shop", resolve).address_of("orders-0") == "10.96.0.7"
    assert asked == ["orders-0.shop.svc"]


@pytest.mark.parametrize("text", ["", "{", "[]", "null"], ids=["empty", "torn", "list", "null"])
def test_damaged_address_file_is_ignored(tmp_path: Path, text: str) -> None:
    """Its addresses are resolved again, and it causes no crash."""
    (tmp_path / "addresses.json").write_text(text)

    assert Addresses(tmp_path, "shop", lambda host: "10.0.0.1").address_of("orders-0") == "10.0.0.1"


def test_unresolved_name_is_retried(tmp_path: Path) -> None:
    """A Service that does not exist yet is not an error, and nothing is stored."""

    def resolve(host: str) -> str:
        raise NotReadyError(host)

    with pytest.raises(NotReadyError):
        Addresses(tmp_path, "shop", resolve).address_of("orders-0")
    assert list(tmp_path.iterdir()) == []
