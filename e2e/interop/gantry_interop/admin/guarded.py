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


def start(kind: str, nursery: Nursery, directory: Path) -> scene.Side:
    """Start a peer whose broker requires accounts."""
    directory.mkdir(parents=True)
    settings = APACHE
    if kind == "gantry":
        own = directory / "own.yml"
        own.write_text(f"accessKey: {ADMINISTRATOR}\nsecretKey: {SECRET}\n")
        shared = {key: value for key, value in APACHE.items() if key != _OWN_CREDENTIALS}
        settings = {**shared, "aclCredentialsPath": str(own), "haListenPort": "-1"}
    side = scene.Side.start(kind, nursery, directory, settings)
    side.credentials = {"access_key": ADMINISTRATOR, "secret_key": SECRET}
    return side
