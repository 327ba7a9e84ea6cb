"""Kubeconfig files: the address of the API server and a client certificate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from gantry_cluster.network import HUB_ADDRESS

if TYPE_CHECKING:  # nodes of kind, which import this module, have no library for certificates
    from gantry_cluster.certificates import Authority, Pair

API_PORT = 6443
API_URL = f"https://{HUB_ADDRESS}:{API_PORT}"


def write_kubeconfig(path: Path, authority: Authority, pair: Pair) -> Path:
    """Write a kubeconfig with one context, named gantry-e2e so that it is not confused with another cluster."""
    name = "gantry-e2e"
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "clusters": [
            {
                "name": name,
                "cluster": {"server": API_URL, "certificate-authority": str(authority.pair.certificate)},
            }
        ],
        "users": [
            {
                "name": name,
                "user": {"client-certificate": str(pair.certificate), "client-key": str(pair.key)},
            }
        ],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
    }
    path.touch(mode=0o600)
    path.write_text(json.dumps(content, indent=1))
    return path
