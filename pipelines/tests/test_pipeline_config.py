"""What a configuration may say, and what is said about one that cannot be used."""

from typing import Any

import pytest

from gantry_pipelines.config import ArchiveConfig, AuditConfig, EngineMode
from gantry_pipelines.config_reading import ConfigError, read_config

RESOURCE = """
apiVersion: gantry.dev/v1alpha1
kind: TopicArchive
metadata: {name: orders}
spec:
  brokerGroups: [prod]
  topics: {include: ["orders.*"]}
  limits: {maxBytesPerTrigger: 256Mi}
  trigger: 90s
  engine: {mode: kubernetes, executor: {instances: 3}}
"""


def read(text: str, *settings: str) -> ArchiveConfig:
    return read_config(text, ArchiveConfig, "TopicArchive", settings)


def test_resource_and_its_spec_alone_are_the_same_configuration() -> None:
    """A manifest for Kubernetes is run here as it is, and so is what stands below its spec."""
    whole = read(RESOURCE)
    assert whole == read("\n".join(line[2:] for line in RESOURCE.splitlines() if line.startswith("  ")))
    assert whole.limits.max_bytes_per_trigger == 256 << 20
    assert whole.trigger.seconds == 90
    assert (whole.engine.mode, whole.engine.executor.instances) == (EngineMode.KUBERNETES, 3)


def test_what_is_set_by_hand_stands_over_the_file() -> None:
    """`--set a.b=value` changes one field, leaves its neighbours, and makes what is not there."""
    config = read(RESOURCE, "engine.mode=local", "here.nameServers=[127.0.0.1:9876]", "topics.include=[a, b]")
    assert config.engine.mode is EngineMode.LOCAL
    assert config.engine.executor.instances == 3
    assert config.reached_by == ("127.0.0.1:9876",)
    assert config.topics.include == ["a", "b"]
    assert read("", "spec.trigger=1m").trigger == 60_000


@pytest.mark.parametrize(
    ("text", "settings", "words"),
    [
        ("topics: {includes: [a]}", (), "topics.includes: no such field; did you mean include?"),
        ("nope: 1", (), "nope: no such field"),
        ("trigger: fast", (), "trigger: 'fast' is no time"),
        ("limits: {maxRowsPerTrigger: 0}", (), "limits.maxRowsPerTrigger: expected int >= 1"),
        ("engine: {mode: yarn}", (), "engine.mode: invalid enum value 'yarn'"),
        ("suspend: yes", (), "suspend: expected bool, got str"),
        ("start: tomorrow", (), "start: expected str matching"),
        ("trigger: 1s\ntrigger: 2s", (), "a key is a word, and comes once"),
        ("a: &x 1\nb: *x", (), "anchors and aliases"),
        ("[1]", (), "it is no mapping"),
        ("kind: LogAudit\nspec: {}", (), "kind: it is 'LogAudit', and TopicArchive is read here"),
        ("", ("trigger",), "--set trigger: write it like"),
        ("trigger: 1s", ("trigger.x=1",), "trigger is no mapping"),
        ("--- \na: 1\n---\nb: 1\n", (), "2 documents"),
        ("{", (), "it is no YAML"),
    ],
)
def test_whatever_cannot_be_meant_is_named_with_its_field(text: str, settings: tuple[str, ...], words: str) -> None:
    """A wrong field is refused by its path, never taken for a default."""
    with pytest.raises(ConfigError) as refused:
        read(text, *settings)
    assert words in str(refused.value)


def test_all_unknown_fields_are_named_at_once() -> None:
    """Whoever mends a file mends it once."""
    with pytest.raises(ConfigError) as refused:
        read("nope: 1\ntopics: {of: [a]}\nhere: {where: b}")
    assert [problem.split(":")[0] for problem in refused.value.problems] == ["nope", "topics.of", "here.where"]


@pytest.mark.parametrize(("settings", "is_continuous"), [((), True), (("here.once=true",), False)])
def test_archive_without_schedule_goes_on_unless_told_otherwise(settings: tuple[str, ...], is_continuous: bool) -> None:
    """No schedule means for ever, and `--once` means now."""
    assert read("", *settings).is_continuous is is_continuous
    assert not read("schedule: '*/10 * * * *'").is_continuous


def test_defaults_of_one_configuration_are_not_anothers() -> None:
    """Lists that are defaults belong to one configuration each."""
    one: Any = read_config("", AuditConfig, "LogAudit")
    one.checks.clear()
    assert read_config("", AuditConfig, "LogAudit").checks
