"""The harness of the SDKs of RocketMQ 5: shares, locked packages, verdicts, and the part of the page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from gantry_interop import sdk, sdk_command, sdk_programs, sdk_servers, versions
from gantry_interop.sdk import FlowResult

LOCKS = ("go/go.sum", "node/package-lock.json", "python/requirements.txt", "rust/Cargo.lock")
CARGO_REGISTRY = 'source = "registry+https://github.com/rust-lang/crates.io-index"'
"""Cargo's name of its default registry, which it writes also on a machine that uses another one in its place."""
PASSED = FlowResult(
    "go", "gantry", "normal", is_ok=True, messages=30_000, expected=30_000, received=30_000, copies=30_000
)


def test_shares_are_a_hundred_thousand_messages() -> None:
    """The run at length sends what it is said to send, and a short run has messages for each flow."""
    assert sum(sdk.shares(100_000).values()) == 100_000
    assert min(sdk.shares(100).values()) == 10


@pytest.mark.parametrize("language", sdk.LANGUAGES)
def test_absences_name_flows(language: str) -> None:
    """What an SDK lacks is a flow, has a reason, and is shown with the version that lacks it."""
    absent = sdk.ABSENT[language]

    assert set(absent) < set(sdk.FLOWS) and all(absent.values())
    for flow, reason in absent.items():
        line = FlowResult(language, "gantry", flow, is_ok=True, absent=reason, version="1.2.3").line()
        assert line.startswith("absent") and line.endswith(f"{reason} (SDK 1.2.3)")


def test_priorities_are_absent_only_with_a_broker_that_lacks_them() -> None:
    """A flow that the servers lack is shown as absent, with their version, and runs with all others."""
    old = f"gantry-apache-{versions.PREVIOUS}"

    assert sdk.absence(old, "python", "priority") == f"RocketMQ {versions.PREVIOUS} has no priorities"
    assert [one for one in sdk_servers.KINDS if sdk.absence(one, "python", "priority")] == [old]
    assert sdk.absence(old, "python", "normal") == ""
    assert sdk.absence(f"apache-{versions.PREVIOUS}-gantry", "python", "priority") != ""
    assert sdk.absence("apache-gantry", "python", "priority") == ""


@pytest.mark.parametrize("name", LOCKS)
def test_packages_are_locked_without_addresses(name: str) -> None:
    """A build gets the same packages everywhere, from the registry that its machine uses."""
    text = (sdk_programs.SDK / name).read_text()

    assert text
    assert "resolved" not in text
    others = [line for line in text.splitlines() if "://" in line and line != CARGO_REGISTRY]
    assert [line for line in others if '"url": ' not in line] == []  # of sponsors


def test_program_is_built_again_after_a_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs was built from the present sources; without a change nothing is built."""
    built: list[Path] = []
    source = tmp_path / "sdk" / "go"
    source.mkdir(parents=True)
    (source / "main.go").write_text("package main")
    monkeypatch.setattr(sdk_programs, "SDK", tmp_path / "sdk")
    monkeypatch.setattr(sdk_programs, "TARGET", tmp_path / "target")
    fake = replace(sdk_programs.SDKS["go"], build=lambda _source, folder: built.append(folder))
    monkeypatch.setattr(sdk_programs, "SDKS", {"go": fake})

    sdk_programs.build("go")
    sdk_programs.build("go")
    assert len(built) == 1
    (source / "main.go").write_text("package main // changed")
    sdk_programs.build("go")
    assert built == [tmp_path / "target" / "go"] * 2


@pytest.mark.parametrize(
    ("digests", "fault"),
    [
        (["a", "b"], ""),
        (["a"], "1 of 2 messages are dead letters, in 1 copies"),
        (["a", "b", "a"], "2 of 2 messages are dead letters, in 3 copies"),
        (["a", "b", "c"], "3 of 2 messages are dead letters, in 3 copies"),
        (["a", ""], "1 dead letters are altered"),
    ],
    ids=["all", "missing", "twice", "foreign", "altered"],
)
def test_wrong_dead_letters_are_a_fault(digests: list[str], fault: str) -> None:
    """Each message that always fails is in the dead letters once, unaltered."""
    assert sdk_servers.judge_dead_letters(digests, 2) == fault


def test_recorded_results_replace_those_of_the_same_flow() -> None:
    """Runs can be recorded one by one, and the order does not depend on theirs."""
    other = replace(PASSED, flow="sql")
    failed = replace(PASSED, is_ok=False, received=29_999)

    assert sdk_command.merge([other, PASSED], [failed]) == [failed, other]


def test_page_shows_failures_and_absences() -> None:
    """A flow that does not pass is bold and explained; one that an SDK lacks has the reason."""
    failed = replace(PASSED, flow="sql", is_ok=False, received=29_999, note="1 lost")
    absent = FlowResult("rust", "gantry", "push", is_ok=True, absent="no push consumer")
    repeated = replace(PASSED, servers="apache", copies=30_002)
    page = sdk_command.build_section([PASSED, failed, absent, repeated])

    assert "| `normal` | not run | 30,000 | not run | not run | not run |" in page
    assert "| `sql` | not run | **30,000** | not run | not run | not run |" in page
    assert "| `push` | not run | not run | not run | not run | no push consumer |" in page
    assert "- Go, `sql`, with Gantry: 29,999 of 30,000 messages. 1 lost" in page
    assert "- Go, `normal`, with RocketMQ: duplicates, 30,002 deliveries of 30,000 messages." in page
    assert sdk_command.NO_DIFFERENCE not in page
    assert sdk_command.NO_DIFFERENCE in sdk_command.build_section([PASSED, absent])


def test_page_counts_the_flows_of_other_servers() -> None:
    """Each pair of servers other than Gantry's has a row with the flows that pass, failures included in the total."""
    mixed = replace(PASSED, servers="gantry-apache", messages=10)
    page = sdk_command.build_section([PASSED, mixed, replace(mixed, flow="sql", is_ok=False)])

    assert "| Gantry's proxy and RocketMQ's broker | not run | 1 of 2, 20 | not run | not run |" in page
    assert "| RocketMQ | not run | not run | not run | not run |" in page


@pytest.mark.parametrize("servers", ["apache", "gantry-apache", f"gantry-apache-{versions.PREVIOUS}"])
def test_page_explains_duplicates_of_rocketmqs_broker_once(servers: str) -> None:
    """A known cause follows the differences once, however many SDKs show it."""
    repeated = replace(PASSED, flow="transaction", servers=servers, copies=30_002)
    page = sdk_command.build_section([repeated, replace(repeated, language="java")])

    assert page.count("transactionOpBatchInterval") == 1


@pytest.mark.parametrize("servers", ["gantry", "apache-gantry"])
def test_page_excuses_no_duplicates_of_gantrys_broker(servers: str) -> None:
    """What RocketMQ's broker does is no cause of duplicates with another broker, and no cause of a failure."""
    repeated = replace(PASSED, flow="transaction", servers=servers, copies=30_002)
    failed = replace(repeated, servers="apache", is_ok=False)

    assert "transactionOpBatchInterval" not in sdk_command.build_section([repeated, failed])


def test_recorded_results_are_of_the_tested_versions() -> None:
    """After an update of an SDK its flows must be recorded again, before the page shows its new version."""
    recorded = sdk_command.read()

    assert recorded
    for one in recorded:
        assert one.version == sdk_programs.version_of(one.language)
        assert one.flow in sdk.FLOWS and one.servers in sdk_servers.KINDS
        assert one.absent == sdk.absence(one.servers, one.language, one.flow)
        assert one.absent or one.messages > 0


def test_recorded_flows_pass_with_gantry() -> None:
    """A flow that fails with Gantry's proxy and broker is a fault to mend, also if the page would show it."""
    assert [one.line() for one in sdk_command.read() if one.servers == "gantry" and not one.is_ok] == []
