"""Settings of access control: contradictions, invalid values and missing account files prevent the start of a broker.

S6 is a row of the fault catalogue (`faults/rows.py`).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from gantry_access import AccessMode
from gantry_broker.errors import AccessFilesUnusable
from gantry_broker.setting_keys import broker_settings, effective_settings, without_secrets
from gantry_remoting.setting_kinds import SettingsError
from gantry_testing.accounts import guarded_broker, write_accounts

FIRST = '{"username":"admin","password":"first-secret"}'
REFUSED_SETTINGS = [
    ({"aclEnable": "true"}, "aclEnable=true needs aclFile"),
    ({"aclFile": "a.yml"}, "aclFile=a.yml .* aclEnable is false"),
    ({"aclMode": "STRICT"}, "aclMode=STRICT .* aclEnable is false"),
    ({"aclEnable": "true", "aclFile": "a.yml"}, "aclEnable=true and haListenPort=10912 without haSecretPath"),
    ({"aclMode": "LAX"}, "aclMode=LAX: write one of V1, STRICT"),
    ({"aclTimeWindow": "1"}, "aclTimeWindow=1"),
    (
        {"authenticationEnabled": "true", "aclEnable": "true"},
        "aclEnable=true and authenticationEnabled=true contradict",
    ),
    ({"authenticationEnabled": "true", "aclFile": "a.yml"}, "aclFile=a.yml and authenticationEnabled=true contradict"),
    ({"authorizationEnabled": "true"}, "authorizationEnabled=true needs authenticationEnabled=true"),
    ({"initAuthenticationUser": FIRST}, "initAuthenticationUser is set, but authenticationEnabled is false"),
    ({"authenticationEnabled": "true"}, "authenticationEnabled=true and haListenPort=10912 without haSecretPath"),
    ({"authenticationStrategy": "a.Stateful"}, "authenticationStrategy=a.Stateful .* takes effect at once"),
    ({"authorizationProvider": "my.Own"}, "authorizationProvider=my.Own .* one implementation"),
    ({"authenticationWhitelist": "10"}, "authenticationWhitelist=10 .*every request needs a user"),
]


@pytest.mark.parametrize(("pairs", "message"), REFUSED_SETTINGS, ids=[message for _, message in REFUSED_SETTINGS])
def test_contradictory_or_invalid_access_settings_are_refused(pairs: dict[str, str], message: str) -> None:
    """S6: the keys are named; an open replication port would expose the whole log beside the guard."""
    with pytest.raises(SettingsError, match=message):
        broker_settings(pairs)


@pytest.mark.parametrize(
    "pairs",
    [
        {"haListenPort": "-1"},
        {"haSecretPath": "secret"},
        {"haTlsCertPath": "c", "haTlsKeyPath": "k", "haTlsTrustCertPath": "a"},
        {"haClassicPeers": "true"},
    ],
    ids=["no replication", "a secret", "certificates", "open by choice"],
)
def test_replication_port_that_is_not_open_by_default_is_accepted(pairs: dict[str, str]) -> None:
    """S6's twin: access control contradicts only a replication port that was left open without `haClassicPeers`."""
    settings = broker_settings({"aclEnable": "true", "aclFile": "a.yml", "aclMode": "strict", **pairs})

    assert settings.access.is_enabled and settings.access.mode is AccessMode.STRICT


def test_certificate_authority_needs_a_certificate() -> None:
    """TLS of the replication port is enabled only with a certificate of the broker."""
    with pytest.raises(SettingsError, match="haSecretPath"):
        broker_settings({"aclEnable": "true", "aclFile": "a.yml", "haTlsTrustCertPath": "a"})


def test_access_control_is_off_by_default() -> None:
    """The default is the same as in RocketMQ; setting it explicitly changes nothing."""
    assert not broker_settings({}).access.is_enabled
    assert not broker_settings({"aclEnable": "FALSE"}).access.is_enabled


@pytest.mark.parametrize(
    ("conf", "message"),
    [
        ({"aclFile": "gone.yml"}, "aclFile: cannot read .*gone.yml"),
        ({"aclCredentialsPath": "gone.yml"}, "aclCredentialsPath: cannot read .*gone.yml"),
    ],
)
async def test_missing_access_files_prevent_the_start(tmp_path: Path, conf: dict[str, str], message: str) -> None:
    """The broker is neither open nor closed to all: the error names the missing file, and no store is created."""
    paths = {key: str(tmp_path / name) for key, name in conf.items()}

    with pytest.raises(AccessFilesUnusable, match=message):
        async with guarded_broker(tmp_path, clock=None, **paths):
            pass

    assert not (tmp_path / "store" / "commitlog").exists()


async def test_start_error_names_account_and_field(tmp_path: Path) -> None:
    """The error of the failed start names the position of the fault."""
    path = write_accounts(tmp_path / "broken.yml", "accounts:\n  - accessKey: someone\n    secretKey: short\n")

    with pytest.raises(AccessFilesUnusable, match=r"broken.yml: account 1 \(someone\): secretKey"):
        async with guarded_broker(tmp_path, aclFile=str(path)):
            pass


@pytest.mark.parametrize(
    ("key", "text", "message"),
    [
        ("initAuthenticationUser", '{"username":"admin","password":"first-secret"', "write JSON such as"),
        ("initAuthenticationUser", '["first-secret"]', "write JSON such as"),
        ("initAuthenticationUser", '{"username":"first-secret"}', "a username and a password"),
        ("initAuthenticationUser", '{"username":" ","password":"first-secret"}', "a username and a password"),
        ("innerClientAuthenticationCredentials", "first-secret", "set aclCredentialsPath"),
    ],
)
def test_errors_about_secret_settings_do_not_show_them(key: str, text: str, message: str) -> None:
    """The error names the key and what is expected."""
    with pytest.raises(SettingsError, match=message) as caught:
        broker_settings({"authenticationEnabled": "true", key: text})
    assert key in str(caught.value) and "first-secret" not in str(caught.value)


def test_settings_of_rocketmq_5_are_accepted() -> None:
    """A broker.conf of RocketMQ with ACL 2.0 works; the broker's own credentials are in a file."""
    provider = "org.apache.rocketmq.auth.{0}.provider.{1}"
    pairs = {
        "authenticationEnabled": "true", "authorizationEnabled": "true", "initAuthenticationUser": FIRST,
        "authenticationProvider": provider.format("authentication", "DefaultAuthenticationProvider"),
        "authenticationMetadataProvider": provider.format("authentication", "LocalAuthenticationMetadataProvider"),
        "authorizationProvider": provider.format("authorization", "DefaultAuthorizationProvider"),
        "authorizationMetadataProvider": provider.format("authorization", "LocalAuthorizationMetadataProvider"),
        "haListenPort": "-1",
    }  # fmt: skip
    settings = broker_settings(pairs)
    assert settings.access.is_guarded and settings.access.is_authorizing
    assert settings.access.initial_user is not None and settings.access.initial_user.password == "first-secret"


def test_printed_settings_have_no_secret() -> None:
    """Neither the settings that are returned to clients, nor those in the log of a start, nor a repr."""
    settings = broker_settings({"authenticationEnabled": "true", "initAuthenticationUser": FIRST, "haListenPort": "-1"})
    shown = f"{effective_settings(settings)} {without_secrets(settings.given)} {settings!r}"
    assert "first-secret" not in shown and '"username": "admin"' in shown
