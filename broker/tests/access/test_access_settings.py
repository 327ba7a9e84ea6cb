"""Settings of access control: contradictions do not start, and neither does a broker without its accounts."""

from __future__ import annotations

from pathlib import Path

import pytest

from gantry_access import AccessMode
from gantry_broker.errors import AccessFilesUnusable
from gantry_broker.setting_keys import broker_settings
from gantry_broker.settings import SettingsError
from gantry_testing.accounts import guarded_broker, write_accounts

CONTRADICTIONS = [
    ({"aclEnable": "true"}, "aclEnable=true needs aclFile"),
    ({"aclFile": "a.yml"}, "aclFile=a.yml .* aclEnable is false"),
    ({"aclMode": "STRICT"}, "aclMode=STRICT .* aclEnable is false"),
    ({"aclEnable": "true", "aclFile": "a.yml"}, "aclEnable=true and haListenPort=10912 without haSecretPath"),
    ({"aclMode": "LAX"}, "aclMode=LAX: write one of V1, STRICT"),
    ({"aclTimeWindow": "1"}, "aclTimeWindow=1"),
]


@pytest.mark.parametrize(("pairs", "says"), CONTRADICTIONS, ids=[says for _, says in CONTRADICTIONS])
def test_contradictory_settings_do_not_start(pairs: dict[str, str], says: str) -> None:
    """S6: the keys are named; a replication port that asks nobody would give the whole log away beside the guard."""
    with pytest.raises(SettingsError, match=says):
        broker_settings(pairs)


@pytest.mark.parametrize(
    "pairs",
    [
        {"haListenPort": "-1"},
        {"haSecretPath": "secret"},
        {"haTlsCertPath": "c", "haTlsKeyPath": "k", "haTlsTrustCertPath": "a"},
        {"haClassicPeers": "true"},
    ],
    ids=["no replication", "a secret", "certificates", "weak by name"],
)
def test_a_replication_port_that_asks_who_comes_starts(pairs: dict[str, str]) -> None:
    """S6's twin: what makes the settings above contradictory is the open port alone."""
    settings = broker_settings({"aclEnable": "true", "aclFile": "a.yml", "aclMode": "strict", **pairs})

    assert settings.access.is_enabled and settings.access.mode is AccessMode.STRICT


def test_a_certificate_authority_without_a_certificate_guards_nothing() -> None:
    """TLS of the replication port is on only with a certificate of our own."""
    with pytest.raises(SettingsError, match="haSecretPath"):
        broker_settings({"aclEnable": "true", "aclFile": "a.yml", "haTlsTrustCertPath": "a"})


def test_access_control_is_off_by_default() -> None:
    """As in RocketMQ; saying so changes nothing."""
    assert not broker_settings({}).access.is_enabled
    assert not broker_settings({"aclEnable": "FALSE"}).access.is_enabled


@pytest.mark.parametrize(
    ("conf", "says"),
    [
        ({"aclFile": "gone.yml"}, "aclFile: cannot read .*gone.yml"),
        ({"aclCredentialsPath": "gone.yml"}, "aclCredentialsPath: cannot read .*gone.yml"),
    ],
)
async def test_a_broker_without_its_files_does_not_start(tmp_path: Path, conf: dict[str, str], says: str) -> None:
    """Neither open to everybody nor closed to all: it says which file is missing, and made no store."""
    paths = {key: str(tmp_path / name) for key, name in conf.items()}

    with pytest.raises(AccessFilesUnusable, match=says):
        async with guarded_broker(tmp_path, clock=None, **paths):
            pass

    assert not (tmp_path / "store" / "commitlog").exists()


async def test_a_broken_file_is_named_with_account_and_field(tmp_path: Path) -> None:
    """The reason of the start that failed says where to look."""
    path = write_accounts(tmp_path / "broken.yml", "accounts:\n  - accessKey: someone\n    secretKey: short\n")

    with pytest.raises(AccessFilesUnusable, match=r"broken.yml: account 1 \(someone\): secretKey"):
        async with guarded_broker(tmp_path, aclFile=str(path)):
            pass
