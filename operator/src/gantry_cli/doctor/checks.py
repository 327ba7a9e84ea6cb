"""The list of all checks: their ids, titles, and decisions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from gantry_cli.doctor.connection_checks import check_accounts, check_addresses, check_name_servers, check_tls
from gantry_cli.doctor.facts import Facts
from gantry_cli.doctor.results import CheckResult, Finding, result_of
from gantry_cli.doctor.server_checks import (
    check_clocks,
    check_disks,
    check_huge_pages,
    check_slaves,
    check_subscriptions,
    check_versions,
)


class Check(NamedTuple):
    """One check. docs/doctor.md has a section for each."""

    id: str
    title: str
    decide: Callable[[Facts], Iterator[Finding]]
    """Returns the findings for facts; it has no input or output."""


CHECKS: Final = (
    Check("name-server", "name servers answer, and list brokers", check_name_servers),
    Check("broker-address", "brokers are reachable at their registered addresses", check_addresses),
    Check("tls", "certificates are valid for the servers", check_tls),
    Check("acl", "the account is accepted", check_accounts),
    Check("version", "all servers have the same, supported version", check_versions),
    Check("clock-skew", "clocks agree", check_clocks),
    Check("disk", "disks have free space", check_disks),
    Check("huge-pages", "write buffers have their huge pages", check_huge_pages),
    Check("slave-following", "slaves follow their master", check_slaves),
    Check("subscriptions", "the members of a consumer group have one subscription", check_subscriptions),
)
"""All checks, in an order in which an earlier one may explain a later one."""

CHECK_IDS: Final = tuple(check.id for check in CHECKS)


def decide_all(facts: Facts, only: Sequence[str] = ()) -> tuple[CheckResult, ...]:
    """Return the results of all checks, or of those in ``only``."""
    chosen = [check for check in CHECKS if not only or check.id in only]
    return tuple(result_of(check.id, check.title, check.decide(facts)) for check in chosen)
