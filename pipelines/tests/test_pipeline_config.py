"""What a configuration may say, and what is said about one that cannot be used."""

import re
from pathlib import Path
from typing import Any

import pytest

from gantry_pipelines.archive.restore_job import RestoreJob, RestoreSpec
from gantry_pipelines.config import PipelineConfig, config_of, read_config
from gantry_pipelines.engine import EXECUTOR_ARGUMENTS, EXECUTOR_MAIN, executor_command, spark_conf
from gantry_pipelines.errors import ConfigError
from gantry_pipelines.source_options import (
    connection_options,
    fitting_name,
    limit_options,
    read_settings,
    start_options,
    topics_pattern,
)
from gantry_spec.manifest.reading import plain
from gantry_spec.pipelines.kinds import PIPELINE_KINDS, ArchiveSpec, AuditSpec, PipelineKind
from gantry_spec.pipelines.parts import EngineMode
from pyspark_rocketmq.options import CONNECTION_OPTIONS, READ_OPTIONS

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


def read(text: str, *settings: str) -> PipelineConfig[ArchiveSpec]:
    return read_config(text, ArchiveSpec, "TopicArchive", settings)


def test_resource_and_its_spec_alone_are_the_same_configuration() -> None:
    """A manifest for Kubernetes is run here as it is, and so is what stands below its spec."""
    whole = read(RESOURCE)
    assert whole == read("\n".join(line[2:] for line in RESOURCE.splitlines() if line.startswith("  ")))
    assert whole.spec.limits.max_bytes_per_trigger == 256 << 20
    assert whole.spec.trigger.seconds == 90
    assert (whole.spec.engine.mode, whole.spec.engine.executor.instances) == (EngineMode.KUBERNETES, 3)


def test_what_is_set_by_hand_stands_over_the_file() -> None:
    """`--set a.b=value` changes one field, leaves its neighbours, and makes what is not there."""
    config = read(RESOURCE, "engine.mode=local", "here.nameServers=[127.0.0.1:9876]", "topics.include=[a, b]")
    assert config.spec.engine.mode is EngineMode.LOCAL
    assert config.spec.engine.executor.instances == 3
    assert config.name_servers == ("127.0.0.1:9876",)
    assert config.spec.topics.include == ["a", "b"]
    assert read("", "spec.trigger=1m").spec.trigger == 60_000


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
        ("trigger: 1s\ntrigger: 2s", (), "trigger: comes twice"),
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


@pytest.mark.parametrize("kind", PIPELINE_KINDS, ids=[kind.name for kind in PIPELINE_KINDS])
def test_what_the_operator_writes_is_read(kind: PipelineKind) -> None:
    """A spec as the operator hands it to its pods is read as what it was."""
    assert config_of(plain(kind.spec()), kind.spec) == PipelineConfig(kind.spec())


@pytest.mark.parametrize(("settings", "is_continuous"), [((), True), (("here.once=true",), False)])
def test_archive_without_schedule_goes_on_unless_told_otherwise(settings: tuple[str, ...], is_continuous: bool) -> None:
    """No schedule means for ever, and `--once` means now."""
    assert read("", *settings).is_continuous is is_continuous
    assert not read("schedule: '*/10 * * * *'").is_continuous


def test_defaults_of_one_configuration_are_not_anothers() -> None:
    """Lists that are defaults belong to one configuration each."""
    one: Any = read_config("", AuditSpec, "LogAudit")
    one.spec.checks.clear()
    assert read_config("", AuditSpec, "LogAudit").spec.checks


def test_a_configuration_says_what_spark_is_told(tmp_path: Path) -> None:
    """Every option is one that the source knows, and says what the field says; the catalog is told the same."""
    (tmp_path / "token").write_text("# readers\nspark:the-token-of-spark\nother:another-token-here\n")
    (tmp_path / "account").write_text("accessKey: archiver\nsecretKey: a-secret-key\n")
    text = "limits: {maxRowsPerTrigger: 7, maxBytesPerTrigger: 1Mi}\nreadFrom: slave"
    secure = ["here.caFile=/ca", "here.sidecars=['https://a:1', 'https://b:2']", "here.hostNamesChecked=false"]
    files = [f"here.tokenFiles={{'*': {tmp_path}/token}}", f"here.accessFile={tmp_path}/account"]
    config = read(text, "here.nameServers=['127.0.0.1:9876']", *secure, *files)
    found = connection_options(config) | limit_options(config.spec.limits) | start_options("group:mine")

    assert set(found) <= {*CONNECTION_OPTIONS, *READ_OPTIONS}
    assert (found["maxRowsPerTrigger"], found["maxBytesPerTrigger"]) == ("7", "1048576")
    assert found["startingGroup"] == "mine"
    settings = read_settings(config)
    assert (settings.read_from, settings.sidecars) == ("slave", ("https://a:1", "https://b:2"))
    assert (settings.token, settings.access_key) == ("the-token-of-spark", "archiver")
    assert settings.tls is not None and settings.tls == settings.sidecar_tls
    assert (settings.tls.ca, settings.tls.is_host_checked) == ("/ca", False)


def test_longest_name_that_fits_a_sidecar_says_its_token() -> None:
    """A beginning of the URL goes before `*`, and a longer one before a shorter one."""
    names = ("*", "https://a", "https://a:1/x")

    assert [fitting_name(url, names) for url in ("https://a:1/x/y", "https://a:1", "http://b")] == [
        "https://a:1/x", "https://a", "*"
    ]  # fmt: skip
    assert fitting_name("http://b", names[1:]) == ""


def test_restore_names_a_file_that_cannot_be_read() -> None:
    """Before anything is started, as every job does."""
    settings = ("here.nameServers=['127.0.0.1:9876']", "here.destination=/archive", "here.accessFile=/nowhere/account")
    config = read_config("restore: {topics: {orders: again}}", RestoreSpec, "TopicArchive", settings)

    with pytest.raises(ConfigError, match="/nowhere/account"):
        RestoreJob().parse(config)


@pytest.mark.parametrize(
    ("topic", "is_wanted"),
    [("orders", True), ("orders.eu", True), ("myorders", False), ("orders-test", False), ("%RETRY%orders", False)],
)
def test_topics_fit_a_pattern_as_a_whole(topic: str, is_wanted: bool) -> None:
    """Included by one, and excluded by none."""
    topics = read("topics: {include: ['orders.*', '%RETRY%.*'], exclude: ['.*-test', '%RETRY%.*']}").spec.topics
    assert (re.fullmatch(topics_pattern(topics), topic) is not None) is is_wanted


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("topics: {include: ['(']}", "topics.include: '(' is no regular expression"),
        ("topics: {include: []}", "topics.include: no topic is wanted"),
    ],
)
def test_patterns_that_are_none_are_named(text: str, words: str) -> None:
    """Before Spark is started."""
    with pytest.raises(ConfigError) as refused:
        topics_pattern(read(text).spec.topics)
    assert words in str(refused.value)


@pytest.mark.parametrize("text", ["brokerGroups: [prod]", ""])
def test_whoever_names_nobody_is_told_what_to_say(text: str) -> None:
    """A group is known to its cluster only; on a laptop name servers are."""
    with pytest.raises(ConfigError, match=r"here\.nameServers, or -n"):
        read_settings(read(text))


def test_memory_and_executors_are_what_the_fields_say() -> None:
    """A person's own settings go before defaults, and what the operator says before everything."""
    pod = {"POD_NAME": "orders-archive-0"}
    own = (
        'engine: {mode: kubernetes, sparkConf: {"spark.sql.shuffle.partitions": "9"}, executor: {heap: 2Gi, cores: 3}}'
    )
    said = "here.sparkConf={spark.master: 'k8s://https://x', spark.kubernetes.namespace: shop}"
    found = spark_conf(read(own, said), pod)

    assert (found["spark.master"], found["spark.kubernetes.driver.pod.name"]) == ("k8s://https://x", "orders-archive-0")
    assert (found["spark.executor.memory"], found["spark.executor.cores"]) == ("2048m", "3")
    assert (found["spark.executor.instances"], found["spark.driver.memory"]) == ("2", "1024m")
    assert found["spark.sql.shuffle.partitions"] == "9"
    prefix, _, life = found["spark.kubernetes.executor.podNamePrefix"].rpartition("-")
    assert prefix == "orders-archive-0" and life, "another driver in this pod finds its own names free"
    assert "spark.executor.memory" not in spark_conf(read("engine: {cores: 2}"), {})
    with pytest.raises(ConfigError, match=r"engine\.mode: kubernetes runs in a pod"):
        spark_conf(read(own), {})


def test_an_executor_is_started_with_what_its_driver_says() -> None:
    """In the order of the driver's options; a variable that is missing is named, never guessed."""
    given = {name: name.lower() for name in EXECUTOR_ARGUMENTS.values()}
    given |= {"SPARK_EXECUTOR_MEMORY": "1g", "SPARK_JAVA_OPT_10": "-Dlate", "SPARK_JAVA_OPT_9": "-Dearly"}
    command = executor_command(given, "java", "/spark")

    assert command[:6] == ["java", "-Dearly", "-Dlate", "-Xms1g", "-Xmx1g", "-cp"]
    assert command[6:8] == ["/spark/jars/*", EXECUTOR_MAIN]
    assert command[command.index("--podName") + 1] == "spark_executor_pod_name"
    with pytest.raises(KeyError, match="SPARK_DRIVER_URL"):
        executor_command({name: "" for name in given if name != "SPARK_DRIVER_URL"}, "java", "/spark")
