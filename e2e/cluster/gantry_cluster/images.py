"""Images without a registry: an archive of a few files that containerd can import.

The archive has the old `docker save` form, which every tool reads: a layer, a configuration, and a manifest that
names them. Real images come from `scripts/image`; buildah writes them in the same form.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
UNPRIVILEGED = "65535:65535"
SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def _layer(files: Mapping[str, Path]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as layer:
        for name, source in files.items():
            entry = tarfile.TarInfo(name.lstrip("/"))
            entry.size = source.stat().st_size
            entry.mode = 0o755
            layer.addfile(entry, io.BytesIO(source.read_bytes()))
    return buffer.getvalue()


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    archive.addfile(entry, io.BytesIO(data))


def write_archive(
    path: Path,
    name: str,
    files: Mapping[str, Path],
    entrypoint: Sequence[str],
    machine: str,
    *,
    user: str = UNPRIVILEGED,
) -> None:
    """Write an image of a few executable files for this machine's architecture (`uname -m`). The user of its programs
    may be empty, for root."""
    layer = _layer(files)
    settings = {
        "architecture": ARCHITECTURES.get(machine, machine),
        "os": "linux",
        "config": {"Entrypoint": list(entrypoint), "User": user, "Env": [f"PATH={SEARCH_PATH}"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    configuration = json.dumps(settings).encode()
    configuration_name = f"{hashlib.sha256(configuration).hexdigest()}.json"
    listing = [{"Config": configuration_name, "RepoTags": [name], "Layers": ["layer.tar"]}]
    with tarfile.open(path, "w") as archive:
        _add(archive, configuration_name, configuration)
        _add(archive, "layer.tar", layer)
        _add(archive, "manifest.json", json.dumps(listing).encode())
