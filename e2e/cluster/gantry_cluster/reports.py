"""What a group that runs says of itself: its brokers, its sidecars, its name servers, its objects, and the operator.

Brokers are asked in a client's pod, each at the Service of its own; sidecars in their container, since only whoever is
in there has a token; the way in from outside is tried from outside. Where several say the same, it is one word.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from gantry_cluster.api import Object
from gantry_cluster.clients import external_address, outside_gantry
from gantry_cluster.errors import ApiRefused, CommandFailed
from gantry_cluster.groups import CLIENT, Group

NOT_FOUND: Final = 404
COLLECTIONS: Final = {
    "Service": ("services", "api/v1"),
    "PersistentVolumeClaim": ("persistentvolumeclaims", "api/v1"),
    "StatefulSet": ("statefulsets", "apis/apps/v1"),
}

ASK_BROKERS: Final = """
import asyncio, json, ssl, sys
from gantry_access import Credentials
from gantry_client import Admin, ClientSettings
from gantry_client.errors import ClientError
from gantry_remoting import RemotingError

wanted = json.loads(sys.argv[1])

def settings(is_plain):
    if is_plain:
        return ClientSettings()
    tls = None
    if wanted["authority"]:
        tls = ssl.create_default_context(cadata=wanted["authority"])
        tls.check_hostname = False
    account = Credentials(*wanted["account"]) if wanted["account"] else None
    return ClientSettings(tls=tls, credentials=account)

async def ask():
    said = {"config": {}, "doors": {}}
    async with Admin("127.0.0.1:1", client_settings=settings(False)) as admin:
        for pod, address in wanted["brokers"].items():
            said["config"][pod] = await admin.brokers.config(address)
        master = wanted["brokers"][wanted["master"]]
        topics, groups = await admin.brokers.topic_table(master), await admin.brokers.group_table(master)
        said["tables"] = {
            "topics": {name: {"queues": one.write_queue_nums} for name, one in topics.items()},
            "groups": {name: {"retryMax": one.retry_max_times} for name, one in groups.items()},
        }
    async with Admin("127.0.0.1:1", client_settings=settings(True)) as stranger:
        for pod, address in wanted["brokers"].items():
            try:
                await stranger.brokers.config(address)
                said["doors"][pod] = "yes"
            except (ClientError, RemotingError, OSError):
                said["doors"][pod] = "no"
    print(json.dumps(said))

asyncio.run(ask())
"""

ASK_SIDECAR: Final = """
import json, pathlib, ssl, urllib.request
words = []
for place in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
    try:
        found = place.read_text().split(chr(0))
    except OSError:
        continue
    if found[1:3] == ["-m", "gantry_admin"]:
        words = found
token = pathlib.Path("/etc/gantry/sidecar/read-tokens").read_text().strip().partition(":")[2]
url = ("https" if "--tls-cert" in words else "http") + "://127.0.0.1:8080/v1/status"
anybody = ssl._create_unverified_context()
request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
status = json.load(urllib.request.urlopen(request, timeout=10, context=anybody))
print(json.dumps({"status": status, "arguments": words}))
"""


class Way(NamedTuple):
    """How clients come in now."""

    account: tuple[str, str] | None = None
    authority: str = ""


def brokers_say(group: Group, way: Way) -> Mapping[str, Any]:
    """Settings of each broker of the first shard, tables of its master, and whether strangers are answered."""
    pods = [pod for pod in group.brokers() if pod.startswith(f"{group.name}-0-")]
    wanted = {
        "brokers": {pod: f"{pod}.{group.space.name}.svc:10911" for pod in pods},
        "master": group.masters()[0],
        "account": way.account,
        "authority": way.authority,
    }
    place = ("exec", CLIENT, f"--namespace={group.space.name}", "--", "python", "-c", ASK_BROKERS, json.dumps(wanted))
    said: Mapping[str, Any] = json.loads(group.space.cluster.kubectl(*place))
    return said


def sidecar_says(group: Group, pod: str) -> tuple[Object, dict[str, str]]:
    """Its status, and what it was started with: the last value of each option, and how many peers."""
    said = json.loads(group.space.run(pod, ASK_SIDECAR, "sidecar"))
    words = said["arguments"]
    options = {word: words[place + 1] for place, word in enumerate(words[:-1]) if word.startswith("--")}
    return said["status"], options | {"--peer": str(words.count("--peer"))}


def object_of(group: Group, kind: str, name: str) -> Object | None:
    """One of the group's namespace, if it is there."""
    try:
        return group.space.cluster.api.get(f"{group.space.path(*COLLECTIONS[kind])}/{name}")
    except ApiRefused as refusal:
        if refusal.status != NOT_FOUND:
            raise
        return None


def is_known_outside(group: Group, topic: str) -> bool:
    """Whether a client outside of the cluster is told of a broker of the first shard."""
    service = f"{group.name}-nameserver-external"
    if object_of(group, "Service", service) is None:
        return False
    try:
        return f"{group.name}-0" in outside_gantry(external_address(group.space, service), "topic", "describe", topic)
    except CommandFailed:
        return False


def agreed(values: Iterable[str]) -> str:
    """What all say, or each word that somebody says."""
    return " | ".join(sorted(set(values)))
