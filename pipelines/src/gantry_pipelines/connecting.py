"""From a configuration to what a reader needs: addresses, credentials, and which topics were meant.

The words of a configuration (``config``) and those of the source (``pyspark_rocketmq.options``) differ, since one is
written by people who think of a cluster, and the other by those who write queries. Here they meet, and nowhere else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Final

from gantry_client import read_credentials
from gantry_pipelines.config import PipelineConfig, Topics
from gantry_pipelines.config_reading import ConfigError
from pyspark_rocketmq.settings import ReadSettings, TlsFiles

ANY: Final = "*"


def read_settings(config: PipelineConfig) -> ReadSettings:
    """How to reach what a configuration names. Raises ``ConfigError`` for files that cannot be read."""
    here = config.here
    if not config.reached_by and not here.directories:
        raise ConfigError(["nameServers: name at least one, or here.directories"])
    tls = None
    if here.ca_file or here.certificate_file:
        tls = TlsFiles(ca=here.ca_file or None, certificate=here.certificate_file or None, key=here.key_file or None)
    settings = ReadSettings(
        name_servers=";".join(config.reached_by),
        transport=config.transport,
        read_from=config.read_from,
        sidecars=tuple(here.sidecars),
        directories=dict(here.directories),
        token=token_for("", here.token_files) or None,
        tls=tls,
        sidecar_tls=tls or TlsFiles(),
    )
    if here.access_file:
        try:
            found = read_credentials(Path(here.access_file))
        except (OSError, ValueError) as error:
            raise ConfigError([f"here.accessFile: {error}"]) from error
        settings = replace(settings, access_key=found.access_key, secret_key=found.secret_key)
    return settings


def token_for(url: str, files: dict[str, str]) -> str:
    """What is shown to a sidecar: from the file under its URL, under the longest beginning of it, or under `*`.

    A file has `name:token` lines, or a token alone; the first line counts. Empty where there is none.
    """
    best = max((name for name in files if name == ANY or (url and url.startswith(name))), key=len, default="")
    if not url and len(files) == 1:
        best = next(iter(files))
    if not best:
        return ""
    try:
        line = Path(files[best]).read_text(encoding="utf-8").split("\n", 1)[0].strip()
    except OSError as error:
        raise ConfigError([f"here.tokenFiles.{best}: {error.strerror or error}"]) from error
    return line.rpartition(":")[2]


def reader_options(config: PipelineConfig) -> dict[str, str]:
    """The same for `spark.read.format("rocketmq").options(...)`."""
    settings = read_settings(config)
    options = {
        "nameServers": settings.name_servers,
        "transport": settings.transport.value,
        "readFrom": settings.read_from.value,
        "sidecars": ",".join(settings.sidecars),
        "directories": json.dumps(dict(settings.directories)) if settings.directories else "",
        "token": settings.token or "",
        "accessKey": settings.access_key or "",
        "secretKey": settings.secret_key or "",
    }
    if settings.tls is not None:
        files = {"Ca": settings.tls.ca, "Certificate": settings.tls.certificate, "Key": settings.tls.key}
        for name, path in files.items():
            options |= {f"tls{name}": path or "", f"sidecar{name}": path or ""}
    return {name: value for name, value in options.items() if value}


def selected(topics: Iterable[str], wanted: Topics) -> list[str]:
    """The topics whose whole name an include matches and no exclude."""
    include = [re.compile(one) for one in wanted.include]
    exclude = [re.compile(one) for one in wanted.exclude]
    return sorted(
        topic for topic in topics
        if any(one.fullmatch(topic) for one in include) and not any(one.fullmatch(topic) for one in exclude)
    )  # fmt: skip
