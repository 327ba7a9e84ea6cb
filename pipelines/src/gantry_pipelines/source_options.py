"""A pipeline's configuration as options of `format("rocketmq")`: whom to read, which topics, from where on."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

from gantry_pipelines.config import PipelineConfig
from gantry_pipelines.errors import ConfigError
from gantry_spec.pipelines.parts import Limits, PipelineSpec, Topics

EVERY_SIDECAR: Final = "*"


def connection_options(config: PipelineConfig[PipelineSpec]) -> dict[str, str]:
    """How to reach name servers, brokers and sidecars. Raises ConfigError."""
    here = config.here
    if not config.name_servers and not here.directories and config.spec.broker_groups:
        named = ", ".join(config.spec.broker_groups)
        raise ConfigError([f"brokerGroups: only a cluster knows {named}: say here.nameServers, or -n"])
    if not config.name_servers and not here.directories:
        raise ConfigError(["nameServers: it is missing: say host:port, here.nameServers, or -n"])
    given = {
        "nameServers": ";".join(config.name_servers),
        "transport": config.spec.transport.value,
        "readFrom": config.spec.read_from.value,
        "sidecars": ",".join(here.sidecars),
        "directories": msgspec.json.encode(here.directories).decode() if here.directories else "",
        "credentialsFile": here.access_file,
        "tokenFile": token_file(here.token_files, here.sidecars),
        "tlsCa": here.ca_file,
        "tlsCertificate": here.certificate_file,
        "tlsKey": here.key_file,
    }
    checked = "" if here.host_names_checked else "false"
    if here.ca_file or here.certificate_file:
        given["tlsCheckHost"] = checked
    if any(urlsplit(url).scheme == "https" for url in here.sidecars):
        given |= {
            "sidecarCa": here.ca_file,
            "sidecarCertificate": here.certificate_file,
            "sidecarKey": here.key_file,
            "sidecarCheckHost": checked,
        }
    return {name: value for name, value in given.items() if value}


def token_file(files: dict[str, str], sidecars: list[str]) -> str:
    """The file with the token for these sidecars. Raises ConfigError where they have several."""
    found = {
        path
        for url in sidecars
        for path in [next((files[key] for key in sorted(files, reverse=True) if _is_for(key, url)), "")]
        if path
    }
    if not sidecars:
        found = {files[EVERY_SIDECAR]} if EVERY_SIDECAR in files else set()
    if len(found) > 1:
        raise ConfigError(["here.tokenFiles: these sidecars have different tokens; one pipeline reads with one"])
    path = next(iter(found), "")
    if path and not Path(path).is_file():
        raise ConfigError([f"here.tokenFiles: there is no file {path}"])
    return path


def topics_pattern(topics: Topics) -> str:
    """One expression for all that are read. Raises ConfigError."""
    for field, patterns in (("include", topics.include), ("exclude", topics.exclude)):
        for pattern in patterns:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ConfigError([f"topics.{field}: {pattern!r} is no regular expression: {error}"]) from error
    if not topics.include:
        raise ConfigError(["topics.include: no topic is wanted: say .* for all"])
    included = "|".join(f"(?:{pattern})" for pattern in topics.include)
    excluded = "|".join(f"(?:{pattern})" for pattern in topics.exclude)
    return f"(?!(?:{excluded})$)(?:{included})" if excluded else f"(?:{included})"


def start_options(start: str) -> dict[str, str]:
    """Where a query without a checkpoint begins. Raises ConfigError."""
    if start in ("earliest", "latest"):
        return {"startingOffsets": start}
    if start.startswith("group:"):
        return {"startingGroup": start.removeprefix("group:")}
    try:
        datetime.fromisoformat(start)
    except ValueError as error:
        raise ConfigError([f"start: {start} is no moment like 2026-11-01T00:00:00Z"]) from error
    return {"startingTimestamp": start, "startingOffsetsByTimestampStrategy": "latest"}


def limit_options(limits: Limits) -> dict[str, str]:
    """How much one batch takes."""
    return {
        "maxRowsPerTrigger": str(limits.max_rows_per_trigger),
        "maxBytesPerTrigger": str(int(limits.max_bytes_per_trigger)),
    }


def _is_for(key: str, url: str) -> bool:
    return key == EVERY_SIDECAR or url.startswith(key)
