"""What a pod knows by itself: which member it is, how it is reached, and when its server starts again."""

from pathlib import Path

import pytest

from gantry_cli.pod.member import Addresses, NotYet, PodMember, member_of_pod, with_own
from gantry_cli.pod.supervisor import AT_ONCE_MAX, DELAY_S_MAX, SHORT_LIVES_MAX, pod_restart_policy


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
def test_a_pod_is_a_member_by_its_name_alone(pod: str, member: PodMember | None) -> None:
    """The number stays the same for ever; the Service that follows the role is the shard's."""
    assert member_of_pod(pod) == member


def test_a_server_starts_again_at_once_until_it_dies_too_often() -> None:
    """Five deaths within a minute cost no wait; more cost ever longer ones, and never more than kubelet's first."""
    restarts = pod_restart_policy()

    delays = [restarts.delay_after_death(float(second), second + 0.5) for second in range(SHORT_LIVES_MAX - 1)]

    assert delays == [0.0] * AT_ONCE_MAX + [1.0, 2.0, 4.0, 8.0, 16.0, DELAY_S_MAX]


def test_deaths_are_forgotten_after_a_minute() -> None:
    """Three crashes an hour are three restarts at once."""
    restarts = pod_restart_policy()

    assert [restarts.delay_after_death(now, now + 100.0) for now in range(0, 5000, 500)] == [0.0] * 10
    assert restarts.recent == 1


def test_a_server_that_never_lives_is_left_to_kubelet() -> None:
    """Twelve short lives in a row end the container, where people look; one long life begins the count anew."""
    restarts = pod_restart_policy()
    for number in range(SHORT_LIVES_MAX - 1):
        assert restarts.delay_after_death(number, number + 0.1) is not None

    spoiled = restarts.delay_after_death(20.0, 20.1)

    assert spoiled is None
    assert restarts.delay_after_death(100.0, 300.0) == 0.0


def test_what_a_member_knows_itself_wins() -> None:
    """One line a key: the pod's own over what it was made with."""
    assert with_own("# made\na=1\n\n brokerId = 9\n", {"brokerId": "2"}) == "a=1\nbrokerId=2\n"


def test_an_address_is_asked_once_in_the_life_of_a_pod(tmp_path: Path) -> None:
    """A container that is started again needs no name server: what was found lies in the pod."""
    asked: list[str] = []

    def resolve(host: str) -> str:
        asked.append(host)
        return "10.96.0.7"

    assert Addresses(tmp_path, "shop", resolve).of("orders-0") == "10.96.0.7"
    assert Addresses(tmp_path, "shop", resolve).of("orders-0") == "10.96.0.7"
    assert asked == ["orders-0.shop.svc"]


@pytest.mark.parametrize("text", ["", "{", "[]", "null"], ids=["empty", "torn", "list", "null"])
def test_a_spoiled_memory_is_none(tmp_path: Path, text: str) -> None:
    """Whatever is not ours is asked for again, and never believed or died of."""
    (tmp_path / "addresses.json").write_text(text)

    assert Addresses(tmp_path, "shop", lambda host: "10.0.0.1").of("orders-0") == "10.0.0.1"


def test_a_name_that_is_not_known_is_waited_for(tmp_path: Path) -> None:
    """A Service that is not there yet is no error of ours, and nothing is written down."""

    def resolve(host: str) -> str:
        raise NotYet(host)

    with pytest.raises(NotYet):
        Addresses(tmp_path, "shop", resolve).of("orders-0")
    assert list(tmp_path.iterdir()) == []
