"""How long messages are kept: the two fields for the time in the log, and settings that an archive excludes."""

from __future__ import annotations

from typing import Any

import pytest
from objects_scene import group

from gantry_operator.objects.configuration import live_conf, startup_conf
from gantry_spec.broker_conf import template_of
from gantry_spec.manifest.errors import ManifestError


@pytest.mark.parametrize(
    ("spec", "hours"),
    [
        ({}, "72"),
        ({"storage": {"reservedTime": "48h"}}, "48"),
        ({"retention": {"local": "24h"}}, "24"),
        ({"retention": {"local": "90m"}}, "2"),
        ({"retention": {"local": "24h"}, "storage": {"reservedTime": "72h"}}, "24"),
        ({"retention": {"local": "24h"}, "storage": {"reservedTime": "24h"}}, "24"),
        ({"retention": {"local": None}, "storage": {"reservedTime": "48h"}}, "48"),
    ],
)
def test_time_in_the_log_is_that_of_either_field(spec: dict[str, Any], hours: str) -> None:
    """`retention.local` wins over the default of `storage.reservedTime`, which the API server stores in every group."""
    assert f"fileReservedTime={hours}\n" in live_conf(group(**spec))


def test_two_different_times_are_refused() -> None:
    """One of them would have no effect, and the shorter one deletes messages."""
    with pytest.raises(ManifestError, match=r"spec.retention.local: 24h contradicts spec.storage.reservedTime, 48h"):
        group(retention={"local": "24h"}, storage={"reservedTime": "48h"})


@pytest.mark.parametrize("key", ["archiveSocketPath", "archiveAddress", "archiveSecretPath", "archiveTlsTrustCertPath"])
def test_archive_excludes_settings_of_another_server(key: str) -> None:
    """They stay possible without an archive, for brokers that are no pods."""
    with pytest.raises(ManifestError, match=f"spec.broker: {key}: spec.retention.archive already names an archive"):
        group(retention={"archive": "history"}, broker={key: "x"})

    assert group(broker={key: "x"}).spec.broker == {key: "x"}


def test_other_settings_for_reads_from_an_archive_are_kept() -> None:
    """Limits of reads are settings of brokers, with an archive of the group, too."""
    conf = startup_conf(group(retention={"archive": "history"}, broker={"archiveReadsMax": "4"}), 0)

    assert "archiveReadsMax=4\n" in conf
    assert "archiveAddress=orders-archive-server.shop.svc:10915\n" in conf


def test_archive_is_no_setting_of_a_local_group() -> None:
    """Its members are not restarted for a field without effect."""
    assert template_of(group(retention={"archive": "history"}).spec, ()) == template_of(group().spec, ())
