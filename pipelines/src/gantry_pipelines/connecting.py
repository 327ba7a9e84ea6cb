"""From a configuration to the options of `format("rocketmq")`: whom to ask, as whom, which topics, where to begin.

Every job reads by these, so that what a resource says means the same in each. Options are text, as Spark has them.
"""

from __future__ import annotations

import json
import re

from gantry_pipelines.config import AnalyticsConfig, ArchiveConfig, OnDataLoss, PipelineConfig, Topics
from gantry_pipelines.config_reading import ConfigError


def connection_options(config: PipelineConfig) -> dict[str, str]:
    """How name servers, brokers and sidecars are reached. Raises ``ConfigError`` where nobody is named."""
    here = config.here
    if not config.reached_by and not here.directories:
        if config.broker_groups:
            words = f"brokerGroups: only a cluster knows {', '.join(config.broker_groups)}: say here.nameServers, or -n"
        else:
            words = "nameServers: say host:port of a name server, here.nameServers, or -n"
        raise ConfigError([words])
    found = {"nameServers": ";".join(config.reached_by)}
    found["readFrom"] = str(config.read_from)
    found["transport"] = str(config.transport)
    checked = str(here.host_names_checked).lower()
    if here.sidecars:
        found |= {"sidecars": ",".join(here.sidecars), "sidecarCheckHost": checked}
    if here.directories:
        found["directories"] = json.dumps(here.directories)
    if here.token_file:
        found["tokenFile"] = here.token_file
    if here.access_file:
        found["credentialsFile"] = here.access_file
    if here.ca_file:
        found |= {"tls": "true", "tlsCa": here.ca_file, "sidecarCa": here.ca_file, "tlsCheckHost": checked}
    if here.certificate_file:
        found |= {"tlsCertificate": here.certificate_file, "tlsKey": here.key_file}
        found |= {"sidecarCertificate": here.certificate_file, "sidecarKey": here.key_file}
    return found


def reading_options(config: ArchiveConfig | AnalyticsConfig) -> dict[str, str]:
    """All that a stream of these topics needs: connection, topics, where it begins, how much at once."""
    found = connection_options(config) | {"subscribePattern": topic_pattern(config.topics)}
    start = config.start
    if start in ("earliest", "latest"):
        found["startingOffsets"] = start
    elif start.startswith("group:"):
        found["startingGroup"] = start.removeprefix("group:")
    else:
        found["startingTimestamp"] = start
    found["maxRowsPerTrigger"] = str(config.limits.max_rows_per_trigger)
    found["maxBytesPerTrigger"] = str(int(config.limits.max_bytes_per_trigger))
    found["failOnDataLoss"] = str(config.on_data_loss is OnDataLoss.FAIL).lower()
    group = getattr(config, "commit_group", "")
    return found | ({"commitGroup": group} if group else {})


def topic_pattern(topics: Topics) -> str:
    """One regular expression for what is wanted and what is not. Raises ``ConfigError``."""
    problems = []
    for field, patterns in (("include", topics.include), ("exclude", topics.exclude)):
        for number, pattern in enumerate(patterns):
            try:
                re.compile(pattern)
            except re.error as error:
                problems.append(f"topics.{field}[{number}]: {pattern} is no regular expression: {error}")
    if problems or not topics.include:
        raise ConfigError(problems or ["topics.include: no topic is wanted: say .* for all"])
    wanted = "|".join(f"(?:{one})" for one in topics.include)
    unwanted = "|".join(f"(?:{one})" for one in topics.exclude)
    return f"(?!(?:{unwanted})$)(?:{wanted})" if unwanted else f"(?:{wanted})"
