"""Both peers with brokers that require accounts.

Both store users and policies, begin with the same first user, and change them on request. The output of the commands is
compared. The settings are RocketMQ's, except for the broker's own credentials: Gantry's broker reads them from a file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from gantry_interop.admin import scene
from gantry_interop.processes import Nursery

ADMINISTRATOR: Final = "administrator"
SECRET: Final = "secret-of-the-administrator"

_OWN_CREDENTIALS: Final = "innerClientAuthenticationCredentials"
_PROVIDER: Final = "org.apache.rocketmq.auth.{0}.provider.{1}"
APACHE: Final = {
    "authenticationEnabled": "true",
    "authenticationProvider": _PROVIDER.format("authentication", "DefaultAuthenticationProvider"),
    "authenticationMetadataProvider": _PROVIDER.format("authentication", "LocalAuthenticationMetadataProvider"),
    "authorizationEnabled": "true",
    "authorizationProvider": _PROVIDER.format("authorization", "DefaultAuthorizationProvider"),
    "authorizationMetadataProvider": _PROVIDER.format("authorization", "LocalAuthorizationMetadataProvider"),
    "initAuthenticationUser": json.dumps({"username": ADMINISTRATOR, "password": SECRET}),
    _OWN_CREDENTIALS: json.dumps({"accessKey": ADMINISTRATOR, "secretKey": SECRET}),
}


def settings(kind: str, directory: Path) -> dict[str, str]:
    """Return the settings of a broker that stores users; the directory gets the broker's own account."""
    directory.mkdir(parents=True)
    if kind != "gantry":
        return dict(APACHE)
    own = directory / "own.yml"
    own.write_text(f"accessKey: {ADMINISTRATOR}\nsecretKey: {SECRET}\n")
    shared = {key: value for key, value in APACHE.items() if key != _OWN_CREDENTIALS}
    return {**shared, "aclCredentialsPath": str(own), "haListenPort": "-1"}


def proxy_settings() -> dict[str, object]:
    """Return the settings with which Apache's proxy reads users and policies from brokers, without its own account."""
    reader = "org.apache.rocketmq.proxy.auth.ProxyAuth{0}MetadataProvider"
    return {
        "enableAclRpcHookForClusterMode": True,  # or the proxy does not sign its own requests
        "authenticationEnabled": True,
        "authenticationProvider": APACHE["authenticationProvider"],
        "authenticationMetadataProvider": reader.format("entication"),
        "authorizationEnabled": True,
        "authorizationProvider": APACHE["authorizationProvider"],
        "authorizationMetadataProvider": reader.format("orization"),
    }


def start(kind: str, nursery: Nursery, directory: Path) -> scene.Side:
    """Start a peer whose broker requires accounts."""
    side = scene.Side.start(kind, nursery, directory, settings(kind, directory))
    side.credentials = {"access_key": ADMINISTRATOR, "secret_key": SECRET}
    return side
