"""Which policy decides: resources, actions, addresses and types, as RocketMQ's AclAuthorizationHandler does."""

from __future__ import annotations

import pytest

from gantry_access import Kind, Need, Permission
from gantry_access.policies import Action, Decision, Policies, PolicyEntry
from gantry_access.resources import Pattern, Resource, ResourceType, parse_resource
from gantry_access.stored_accounts import make_entry
from gantry_wire import names

ALLOW, DENY = Decision.ALLOW, Decision.DENY
PEER = "10.1.2.3"


def entry(resource: str, decision: Decision = ALLOW, *actions: Action, sources: tuple[str, ...] = ()) -> PolicyEntry:
    found = parse_resource(resource)
    assert found is not None
    return make_entry(found, actions or (Action.PUB,), decision, sources)


def publish(topic: str) -> Need:
    return Need(Kind.TOPIC, topic, Permission.PUB)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("*", (ResourceType.ANY, "", Pattern.ANY)),
        ("Topic:orders", (ResourceType.TOPIC, "orders", Pattern.LITERAL)),
        ("topic:orders", (ResourceType.TOPIC, "orders", Pattern.LITERAL)),
        ("Topic:*", (ResourceType.TOPIC, "", Pattern.ANY)),
        ("Group:ord*", (ResourceType.GROUP, "ord", Pattern.PREFIXED)),
        ("Cluster:Default", (ResourceType.CLUSTER, "Default", Pattern.LITERAL)),
        ("Topic:a*b", (ResourceType.TOPIC, "a*b", Pattern.LITERAL)),
        ("Topic:a*b*", (ResourceType.TOPIC, "a", Pattern.PREFIXED)),
        ("Topic:", (ResourceType.TOPIC, "", Pattern.LITERAL)),
        ("Nonsense:orders", None),
        (" ", None),
        (None, None),
    ],
)
def test_resource_is_parsed_as_in_rocketmq(key: str | None, expected: tuple[object, ...] | None) -> None:
    """Types are found in any case; a star ends a prefix only at the end."""
    assert parse_resource(key) == (None if expected is None else Resource(*expected))  # type: ignore[arg-type]


@pytest.mark.parametrize("key", ["*", "Topic:orders", "Topic:*", "Group:ord*", "Topic:a*b"])
def test_resource_is_listed_as_it_was_given(key: str) -> None:
    """A listed resource, copied to another broker, means the same."""
    found = parse_resource(key)
    assert found is not None and found.key == key


def test_most_specific_resource_decides() -> None:
    """An exact name, then the longest prefix, then every name of the type, then everything."""
    rules = [
        entry("*", ALLOW, Action.ALL), entry("Topic:*", DENY), entry("Topic:o*", ALLOW), entry("Topic:ord*", DENY),
        entry("Topic:orders", ALLOW),
    ]  # fmt: skip
    policies = Policies(rules)
    decisions = {name: policies.decide(publish(name), PEER) for name in ("orders", "order", "other", "billing")}
    assert decisions == {"orders": ALLOW, "order": DENY, "other": ALLOW, "billing": DENY}
    assert policies.decide(Need(Kind.GROUP, "g", Permission.SUB), PEER) is ALLOW


def test_default_entries_decide_only_without_custom_ones() -> None:
    """A Default entry for the exact name does not override a Custom one for every topic."""
    policies = Policies([entry("Topic:*", DENY)], [entry("Topic:orders", ALLOW), entry("Group:*", ALLOW, Action.SUB)])
    assert policies.decide(publish("orders"), PEER) is DENY
    assert policies.decide(Need(Kind.GROUP, "g", Permission.SUB), PEER) is ALLOW


def test_entry_without_the_action_does_not_match() -> None:
    """A denial of Pub does not concern Sub; All means every action; nothing that matches is no decision."""
    policies = Policies([entry("Topic:orders", DENY, Action.PUB), entry("Topic:o*", ALLOW, Action.ALL)])
    assert policies.decide(Need(Kind.TOPIC, "orders", Permission.SUB), PEER) is ALLOW
    assert policies.decide(publish("orders"), PEER) is DENY
    assert policies.decide(publish("billing"), PEER) is None
    unknown = Policies([entry("Topic:orders", ALLOW, Action.UNKNOWN)])
    assert unknown.decide(publish("orders"), PEER) is None


def test_one_of_several_sufficient_permissions_matches() -> None:
    """A denial of Pub denies the route, too, for which Pub, Sub or Get suffices, as in RocketMQ."""
    route = Need(Kind.TOPIC, "orders", Permission.PUB | Permission.SUB | Permission.GET)
    assert Policies([entry("Topic:orders", ALLOW, Action.GET)]).decide(route, PEER) is ALLOW
    both = Policies([entry("Topic:orders", DENY, Action.PUB), entry("Topic:*", ALLOW, Action.SUB)])
    assert both.decide(route, PEER) is DENY


@pytest.mark.parametrize(
    ("source", "peer", "is_match"),
    [
        ("10.1.2.3", "10.1.2.3", True),
        ("10.1.2.3", "10.1.2.4", False),
        ("10.1.0.0/16", "10.1.2.3", True),
        ("10.1.2.3/16", "10.1.9.9", True),
        ("10.2.0.0/16", "10.1.2.3", False),
        ("0.0.0.0/0", "192.0.2.1", True),
        ("0.0.0.0/0", "fd00::1", False),
        ("fd00::/8", "fd00::1", True),
        ("10.1.0.0/16", "::ffff:10.1.2.3", True),
        ("10.1.0.0/16", "not an address", False),
    ],
)
def test_entry_applies_to_its_addresses(source: str, peer: str, is_match: bool) -> None:
    """Addresses and networks of both families; an account with such an entry takes no short cut."""
    policies = Policies([entry("Topic:*", ALLOW, sources=(source,))])
    assert policies.is_address_bound
    assert (policies.decide(publish("orders"), peer) is ALLOW) is is_match


def test_topics_of_the_broker_need_an_entry_of_their_own() -> None:
    """They hold messages of other topics, so that no pattern reaches them."""
    need = Need(Kind.TOPIC, names.SCHEDULE_TOPIC, Permission.SUB)
    assert Policies([entry("*", ALLOW, Action.ALL), entry("Topic:*", ALLOW, Action.SUB)]).decide(need, PEER) is None
    exact = Policies([entry(f"Topic:{names.SCHEDULE_TOPIC}", ALLOW, Action.SUB)])
    assert exact.decide(need, PEER) is ALLOW


def test_denial_wins_between_equal_entries() -> None:
    """Only entries for everything can be equally specific, since a user has one entry for a resource."""
    rules = [entry("Any:one", ALLOW), entry("Any:two", DENY)]
    assert Policies(rules).decide(publish("x"), PEER) is DENY
    assert Policies(rules[::-1]).decide(publish("x"), PEER) is DENY
