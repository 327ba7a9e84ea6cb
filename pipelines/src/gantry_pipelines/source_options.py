"""A pipeline's configuration as options of `format("rocketmq")`: whom to read, which topics, from where on.

A job that asks brokers itself has the same options read as the source reads them (`read_settings`): so what a resource
says means the same there and in a job that has Spark do it.
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
from pyspark_rocketmq.option_words import OptionWords, moment_ms
from pyspark_rocketmq.options import read_settings as settings_of
from pyspark_rocketmq.options import read_token
from pyspark_rocketmq.settings import ReadSettings

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


def read_settings(config: PipelineConfig[PipelineSpec]) -> ReadSettings:
    """Return how to reach what a configuration names. Raises ConfigError, also for files that cannot be read."""
    try:
        return settings_of(OptionWords(connection_options(config)))
    except InvalidOption as error:
        raise ConfigError([f"here: {error}"]) from error


def token_file(files: Mapping[str, str], sidecars: Sequence[str]) -> str:
    """The file with the token for these sidecars. Raises ConfigError where they have several."""
    named = {fitting_name(url, files) for url in sidecars} if sidecars else {EVERY_SIDECAR} & set(files)
    found = {files[name] for name in named if name}
    if len(found) > 1:
        raise ConfigError(["here.tokenFiles: these sidecars have different tokens; one pipeline reads with one"])
    path = next(iter(found), "")
    if path and not Path(path).is_file():
        raise ConfigError([f"here.tokenFiles: there is no file {path}"])
    return path


def read_tokens(files: Mapping[str, str]) -> dict[str, str]:
    """Return the token in each of these files, under the same name. Raises ConfigError."""
    found: dict[str, str] = {}
    for name, path in files.items():
        try:
            found[name] = read_token(Path(path))
        except (OSError, ValueError) as error:
            raise ConfigError([f"here.tokenFiles.{name}: {error}"]) from error
    return found


def fitting_name(url: str, names: Iterable[str]) -> str:
    """Return the longest of these names that is a beginning of the URL, or `*` if it is among them; else ""."""
    return max((name for name in names if name == EVERY_SIDECAR or url.startswith(name)), key=len, default="")


def selected(topics: Iterable[str], wanted: Topics) -> list[str]:
    """The topics whose whole name an include matches and no exclude."""
    pattern = re.compile(topics_pattern(wanted))
    return sorted(topic for topic in topics if pattern.fullmatch(topic))


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
    start_ms(start)
    return {"startingTimestamp": start, "startingOffsetsByTimestampStrategy": "latest"}


def start_ms(start: str) -> int:
    """Return the moment that `start` names, in milliseconds since 1970. Raises ConfigError."""
    try:
        return moment_ms("start", start)
    except InvalidOption as error:
        raise ConfigError([str(error)]) from error


def limit_options(limits: Limits) -> dict[str, str]:
    """How much one batch takes."""
    return {
        "maxRowsPerTrigger": str(limits.max_rows_per_trigger),
        "maxBytesPerTrigger": str(int(limits.max_bytes_per_trigger)),
    }
