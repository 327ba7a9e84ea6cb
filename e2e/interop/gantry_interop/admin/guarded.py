"""Both peers with brokers that require accounts.

Apache's broker keeps users and permissions in its own database and changes them on request; Gantry's reads a file. So
the same users are created in two ways: at Apache's broker by `createUser` and `createAcl`, at Gantry's by the file,
which is complete from the start. The output of the commands is compared.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from gantry_interop.admin import scene
from gantry_interop.processes import Nursery

ADMINISTRATOR: Final = "administrator"
SECRET: Final = "secret-of-the-administrator"

_PROVIDER: Final = "org.apache.rocketmq.auth.{0}.provider.{1}"
APACHE: Final = {
    "authenticationEnabled": "true",
    "authenticationProvider": _PROVIDER.format("authentication", "DefaultAuthenticationProvider"),
    "authenticationMetadataProvider": _PROVIDER.format("authentication", "LocalAuthenticationMetadataProvider"),
    "authorizationEnabled": "true",
    "authorizationProvider": _PROVIDER.format("authorization", "DefaultAuthorizationProvider"),
    "authorizationMetadataProvider": _PROVIDER.format("authorization", "LocalAuthorizationMetadataProvider"),
    "initAuthenticationUser": json.dumps({"username": ADMINISTRATOR, "password": SECRET}),
    "innerClientAuthenticationCredentials": json.dumps({"accessKey": ADMINISTRATOR, "secretKey": SECRET}),
}

ACCOUNTS: Final = f"""\
accounts:
  - accessKey: {ADMINISTRATOR}
    secretKey: {SECRET}
    admin: true
  - accessKey: alice-one
    secretKey: secret-of-alice
    defaultTopicPerm: DENY
    defaultGroupPerm: DENY
    topicPerms:
      - orders=PUB|SUB
    groupPerms:
      - readers=SUB
  - accessKey: bob-the-boss
    secretKey: secret-of-bob
    admin: true
"""


def start(kind: str, nursery: Nursery, directory: Path) -> scene.Side:
    """Start a peer whose broker requires accounts."""
    directory.mkdir(parents=True)
    settings = APACHE
    if kind == "gantry":
        accounts, own = directory / "plain_acl.yml", directory / "own.yml"
        accounts.write_text(ACCOUNTS)
        own.write_text(f"accessKey: {ADMINISTRATOR}\nsecretKey: {SECRET}\n")
        settings = {"aclEnable": "true", "aclFile": str(accounts), "aclCredentialsPath": str(own), "haListenPort": "-1"}
    side = scene.Side.start(kind, nursery, directory, settings)
    side.credentials = {"access_key": ADMINISTRATOR, "secret_key": SECRET}
    return side
