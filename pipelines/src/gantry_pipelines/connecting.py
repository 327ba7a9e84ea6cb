"""From a configuration to what a reader needs without Spark: settings of the catalog, and which topics were meant.

The words are turned into the source's options first (``source_options``), and those read as the source reads them: so
what a resource says means the same in a job that asks brokers itself and in one that has Spark do it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from gantry_pipelines.config import PipelineConfig
from gantry_pipelines.errors import ConfigError
from gantry_pipelines.source_options import connection_options, topics_pattern
from gantry_spec.pipelines.parts import PipelineSpec, Topics
from pyspark_rocketmq.errors import InvalidOption
from pyspark_rocketmq.option_words import OptionWords
from pyspark_rocketmq.options import read_settings as settings_of
from pyspark_rocketmq.settings import ReadSettings

ANY: Final = "*"


def read_settings(config: PipelineConfig[PipelineSpec]) -> ReadSettings:
    """How to reach what a configuration names. Raises ``ConfigError`` for files that cannot be read."""
    try:
        return settings_of(OptionWords(connection_options(config)))
    except InvalidOption as error:
        raise ConfigError([f"here: {error}"]) from error


def reader_options(config: PipelineConfig[PipelineSpec]) -> dict[str, str]:
    """The same for `spark.read.format("rocketmq").options(...)`."""
    return connection_options(config)


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


def selected(topics: Iterable[str], wanted: Topics) -> list[str]:
    """The topics whose whole name an include matches and no exclude."""
    pattern = re.compile(topics_pattern(wanted))
    return sorted(topic for topic in topics if pattern.fullmatch(topic))
