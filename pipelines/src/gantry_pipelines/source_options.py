"""Convert a pipeline's configuration to options of `format("rocketmq")`: servers, topics, and start offsets.

A job that calls brokers itself parses the same options with the source's own parser (`read_settings`), so that a field
of a resource has the same meaning in both.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

from gantry_pipelines.config import PipelineConfig
from gantry_pipelines.errors import ConfigError
from gantry_spec.pipelines.parts import Limits, PipelineSpec, Topics
from pyspark_rocketmq.errors import InvalidOption
from pyspark_rocketmq.option_parser import OptionParser, moment_ms
from pyspark_rocketmq.options import read_settings as settings_of
from pyspark_rocketmq.options import read_token
from pyspark_rocketmq.settings import ReadSettings

EVERY_SIDECAR: Final = "*"
"""The name that stands for all sidecars in ``runtime.tokenFiles``."""


def connection_options(config: PipelineConfig[PipelineSpec]) -> dict[str, str]:
    """Return the options for connections to name servers, brokers and sidecars. Raises ConfigError."""
    runtime = config.runtime
    if not config.name_servers and not runtime.directories and config.spec.broker_groups:
        named = ", ".join(config.spec.broker_groups)
        raise ConfigError([f"brokerGroups: {named} can only be resolved in a cluster: set runtime.nameServers, or -n"])
    if not config.name_servers and not runtime.directories:
        raise ConfigError(["nameServers: missing; set it to host:port, or set runtime.nameServers, or -n"])
    given = {
        "nameServers": ";".join(config.name_servers),
        "transport": config.spec.transport.value,
        "readFrom": config.spec.read_from.value,
        "sidecars": ",".join(runtime.sidecars),
        "directories": msgspec.json.encode(runtime.directories).decode() if runtime.directories else "",
        "credentialsFile": runtime.access_file,
        "signature": "" if runtime.signature is None else runtime.signature.value,
        "tokenFile": token_file(runtime.token_files, runtime.sidecars),
        "tlsCa": runtime.ca_file,
        "tlsCertificate": runtime.certificate_file,
        "tlsKey": runtime.key_file,
    }
    checked = "" if runtime.host_names_checked else "false"
    if runtime.ca_file or runtime.certificate_file:
        given["tlsCheckHost"] = checked
    if any(urlsplit(url).scheme == "https" for url in runtime.sidecars):
        given |= {
            "sidecarCa": runtime.ca_file,
            "sidecarCertificate": runtime.certificate_file,
            "sidecarKey": runtime.key_file,
            "sidecarCheckHost": checked,
        }
    return {name: value for name, value in given.items() if value}


def read_settings(config: PipelineConfig[PipelineSpec]) -> ReadSettings:
    """Return the source's settings for a configuration. Raises ConfigError, also for files that cannot be read."""
    try:
        return settings_of(OptionParser(connection_options(config)))
    except InvalidOption as error:
        raise ConfigError([f"runtime: {error}"]) from error


def token_file(files: Mapping[str, str], sidecars: Sequence[str]) -> str:
    """Return the file with the read token of these sidecars; empty if there is none.

    Raises ConfigError if the sidecars have different files, or if the file does not exist.
    """
    named = {matching_url_prefix(url, files) for url in sidecars} if sidecars else {EVERY_SIDECAR} & set(files)
    found = {files[name] for name in named if name}
    if len(found) > 1:
        raise ConfigError(["runtime.tokenFiles: these sidecars have different tokens; a pipeline can use only one"])
    path = next(iter(found), "")
    if path and not Path(path).is_file():
        raise ConfigError([f"runtime.tokenFiles: file {path} not found"])
    return path


def read_tokens(files: Mapping[str, str]) -> dict[str, str]:
    """Return the token in each of these files, under the same name. Raises ConfigError."""
    found: dict[str, str] = {}
    for name, path in files.items():
        try:
            found[name] = read_token(Path(path))
        except (OSError, ValueError) as error:
            raise ConfigError([f"runtime.tokenFiles.{name}: {error}"]) from error
    return found


def matching_url_prefix(url: str, names: Iterable[str]) -> str:
    """Return the longest of these names that is a prefix of the URL, else `*` if it is among them, else ""."""
    return max((name for name in names if name == EVERY_SIDECAR or url.startswith(name)), key=len, default="")


def select_topics(topics: Iterable[str], selection: Topics) -> list[str]:
    """Return the topics whose whole name matches an include and no exclude, sorted. Raises ConfigError."""
    pattern = re.compile(topics_pattern(selection))
    return sorted(topic for topic in topics if pattern.fullmatch(topic))


def topics_pattern(topics: Topics) -> str:
    """Return one regular expression for the names of all selected topics. Raises ConfigError."""
    for field, patterns in (("include", topics.include), ("exclude", topics.exclude)):
        for pattern in patterns:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ConfigError([f"topics.{field}: {pattern!r} is not a regular expression: {error}"]) from error
    if not topics.include:
        raise ConfigError(["topics.include: empty; use .* for all topics"])
    included = "|".join(f"(?:{pattern})" for pattern in topics.include)
    excluded = "|".join(f"(?:{pattern})" for pattern in topics.exclude)
    pattern = f"(?!(?:{excluded})$)(?:{included})" if excluded else f"(?:{included})"
    try:
        re.compile(pattern)
    except re.error as error:  # for example global flags such as (?i), which must be at the start of the expression
        raise ConfigError([f"topics: the patterns cannot be joined to one, {pattern!r}: {error}"]) from error
    return pattern


def start_options(start: str) -> dict[str, str]:
    """Return the options for the start of a query without a checkpoint. Raises ConfigError."""
    if start in ("earliest", "latest"):
        return {"startingOffsets": start}
    if start.startswith("group:"):
        return {"startingGroup": start.removeprefix("group:")}
    start_ms(start)
    return {"startingTimestamp": start, "startingOffsetsByTimestampStrategy": "latest"}


def start_ms(start: str) -> int:
    """Return the time in `start` as milliseconds since 1970. Raises ConfigError."""
    try:
        return moment_ms("start", start)
    except InvalidOption as error:
        raise ConfigError([str(error)]) from error


def limit_options(limits: Limits) -> dict[str, str]:
    """Return the options that limit the size of a batch."""
    return {
        "maxRowsPerTrigger": str(limits.max_rows_per_trigger),
        "maxBytesPerTrigger": str(int(limits.max_bytes_per_trigger)),
    }
