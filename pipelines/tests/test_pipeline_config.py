"""Parsing of configurations, and the errors for invalid ones."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from gantry_pipelines.__main__ import main
from gantry_pipelines.archive import settings as archive_settings
from gantry_pipelines.archive.job import ArchiveJob
from gantry_pipelines.archive.restore_job import RestoreJob, RestoreSpec
from gantry_pipelines.config import PipelineConfig, config_of, read_config
from gantry_pipelines.engine import EXECUTOR_ARGUMENTS, EXECUTOR_MAIN, executor_command, spark_conf
from gantry_pipelines.errors import ConfigError
from gantry_pipelines.migrate_check.job import MigrateCheckJob, MigrateCheckSpec
from gantry_pipelines.outcome import EXIT_CONFIG
from gantry_pipelines.source_options import (
    connection_options,
    limit_options,
    matching_url_prefix,
    read_settings,
    start_options,
    topics_pattern,
)
from gantry_spec.manifest.reading import plain_values
from gantry_spec.pipelines.kinds import PIPELINE_KINDS, ArchiveSpec, AuditSpec, PipelineKind
from gantry_spec.pipelines.parts import EngineMode, TableFormat
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
    """A Kubernetes manifest is a valid configuration, and so is only its spec."""
    whole = read(RESOURCE)
    assert whole == read("\n".join(line[2:] for line in RESOURCE.splitlines() if line.startswith("  ")))
    assert whole.spec.limits.max_bytes_per_trigger == 256 << 20
    assert whole.spec.trigger.seconds == 90
    assert (whole.spec.engine.mode, whole.spec.engine.executor.instances) == (EngineMode.KUBERNETES, 3)


def test_set_option_overrides_the_file() -> None:
    """`--set a.b=value` changes one field, keeps the others, and creates missing parents."""
    config = read(RESOURCE, "engine.mode=local", "runtime.nameServers=[127.0.0.1:9876]", "topics.include=[a, b]")
    assert config.spec.engine.mode is EngineMode.LOCAL
    assert config.spec.engine.executor.instances == 3
    assert config.name_servers == ("127.0.0.1:9876",)
    assert config.spec.topics.include == ["a", "b"]
    assert read("", "spec.trigger=1m").spec.trigger == 60_000


@pytest.mark.parametrize(
    ("text", "settings", "words"),
    [
        ("topics: {includes: [a]}", (), "topics.includes: unknown field; did you mean include?"),
        ("nope: 1", (), "nope: unknown field"),
        ("trigger: fast", (), "trigger: 'fast' is not a duration"),
        ("limits: {maxRowsPerTrigger: 0}", (), "limits.maxRowsPerTrigger: expected int >= 1"),
        ("engine: {mode: yarn}", (), "engine.mode: invalid enum value 'yarn'"),
        ("suspend: yes", (), "suspend: expected bool, got str"),
        ("start: tomorrow", (), "start: expected str matching"),
        ("trigger: 1s\ntrigger: 2s", (), "trigger: duplicate key"),
        ("a: &x 1\nb: *x", (), "anchors and aliases"),
        ("[1]", (), "not a mapping"),
        ("kind: LogAudit\nspec: {}", (), "kind: 'LogAudit' is not supported, expected TopicArchive"),
        ("", ("trigger",), "--set trigger: expected FIELD=VALUE"),
        ("trigger: 1s", ("trigger.x=1",), "trigger is not a mapping"),
        ("--- \na: 1\n---\nb: 1\n", (), "2 documents"),
        ("{", (), "invalid YAML"),
    ],
)
def test_invalid_field_is_named_by_its_path(text: str, settings: tuple[str, ...], words: str) -> None:
    """An invalid field is refused with its path, never replaced by a default."""
    with pytest.raises(ConfigError) as refused:
        read(text, *settings)
    assert words in str(refused.value)


def test_former_name_of_the_runtime_settings_is_read() -> None:
    """A file, and an operator of an earlier version, name them `here`; with both names the file is refused."""
    settings = {"destination": "/archive", "once": True}
    expected = read("", "runtime.destination=/archive", "runtime.once=true")

    assert read(json.dumps({"here": settings})) == expected
    assert read(RESOURCE + "here: {destination: /archive, once: true}").runtime == expected.runtime
    assert config_of({"here": settings}, ArchiveSpec) == expected
    assert read("here: {once: true}", "here.destination=/archive") == expected
    with pytest.raises(ConfigError, match="here: unknown field"):
        read("here: {once: true}\nruntime: {once: true}")


def test_all_unknown_fields_are_named_at_once() -> None:
    """All problems are reported together, so that a file has to be corrected only once."""
    with pytest.raises(ConfigError) as refused:
        read("nope: 1\ntopics: {of: [a]}\nruntime: {where: b}")
    assert [problem.split(":")[0] for problem in refused.value.problems] == ["nope", "topics.of", "runtime.where"]


@pytest.mark.parametrize("kind", PIPELINE_KINDS, ids=[kind.name for kind in PIPELINE_KINDS])
def test_spec_written_by_the_operator_is_parsed_unchanged(kind: PipelineKind) -> None:
    """A spec that the operator encodes for its pods is decoded to an equal one."""
    assert config_of(plain_values(kind.spec()), kind.spec) == PipelineConfig(kind.spec())


@pytest.mark.parametrize(("settings", "is_continuous"), [((), True), (("runtime.once=true",), False)])
def test_archive_without_schedule_is_continuous_unless_once_is_set(
    settings: tuple[str, ...], is_continuous: bool
) -> None:
    """Without a schedule the job runs continuously, except with `--once`."""
    assert read("", *settings).is_continuous is is_continuous
    assert not read("schedule: '*/10 * * * *'").is_continuous


def test_configurations_do_not_share_default_lists() -> None:
    """A change of one configuration's default list does not affect another configuration."""
    one: Any = read_config("", AuditSpec, "LogAudit")
    one.spec.checks.clear()
    assert read_config("", AuditSpec, "LogAudit").spec.checks


def test_configuration_is_converted_to_options_of_the_source(tmp_path: Path) -> None:
    """Every option is known to the source and has the field's value; the catalog gets the same settings."""
    (tmp_path / "token").write_text("# readers\nspark:the-token-of-spark\nother:another-token-here\n")
    (tmp_path / "account").write_text("accessKey: archiver\nsecretKey: a-secret-key\n")
    text = "limits: {maxRowsPerTrigger: 7, maxBytesPerTrigger: 1Mi}\nreadFrom: slave"
    secure = ["runtime.caFile=/ca", "runtime.sidecars=['https://a:1', 'https://b:2']", "runtime.hostNamesChecked=false"]
    files = [f"runtime.tokenFiles={{'*': {tmp_path}/token}}", f"runtime.accessFile={tmp_path}/account"]
    config = read(text, "runtime.nameServers=['127.0.0.1:9876']", *secure, *files)
    found = connection_options(config) | limit_options(config.spec.limits) | start_options("group:mine")

    assert set(found) <= {*CONNECTION_OPTIONS, *READ_OPTIONS}
    assert (found["maxRowsPerTrigger"], found["maxBytesPerTrigger"]) == ("7", "1048576")
    assert found["startingGroup"] == "mine"
    settings = read_settings(config)
    assert (settings.read_from, settings.sidecars) == ("slave", ("https://a:1", "https://b:2"))
    assert (settings.token, settings.access_key) == ("the-token-of-spark", "archiver")
    assert settings.tls is not None and settings.tls == settings.sidecar_tls
    assert (settings.tls.ca, settings.tls.is_host_checked) == ("/ca", False)


@pytest.mark.parametrize(
    ("arguments", "signature"),
    [((), "strict"), (("--signature", "v1"), "v1"), (("--set", "runtime.signature=v1"), "v1")],
    ids=["environment", "option", "configuration"],
)
def test_signature_is_passed_to_the_source(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], signature: str
) -> None:
    """It is that of the configuration, else of the option, else of the environment, as for every command of gantry."""
    configs: list[PipelineConfig[ArchiveSpec]] = []
    monkeypatch.setenv("GANTRY_SIGNATURE", "strict")
    monkeypatch.setattr(ArchiveJob, "parse", lambda _, config: configs.append(config))

    with pytest.raises(SystemExit) as done:
        main(["archive", "--check", "-n", "127.0.0.1:9876", *arguments])

    assert done.value.code == 0
    assert connection_options(configs[0])["signature"] == signature
    assert read_settings(configs[0]).signature == signature


@pytest.mark.parametrize("job", ["archive", "analytics", "migrate-check"])
@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        ("topics.include=['(']", "topics.include: '(' is not a regular expression"),
        ("topics.include=['(?i)orders']", "topics: the patterns cannot be joined"),
        ("engine.mode=kubernetes", "engine.mode: kubernetes runs only in a pod of the operator"),
    ],
    ids=["pattern", "joined patterns", "engine"],
)
def test_check_refuses_what_a_run_would_refuse(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], job: str, setting: str, problem: str
) -> None:
    """An invalid configuration is one line and exit code 2, before anything is started or any server is called."""
    settings = [f"runtime.destination={tmp_path}", setting]
    settings += ["source.nameServers=['127.0.0.1:1']"] if job == "migrate-check" else []

    with pytest.raises(SystemExit) as done:
        main([job, "--check", "-n", "127.0.0.1:1", *(word for one in settings for word in ("--set", one))])

    assert done.value.code == 2
    [line] = [one for one in capsys.readouterr().err.splitlines() if one.startswith("gantry: ")]
    assert line.startswith(f"gantry: {problem}")


def test_signature_of_target_is_not_used_at_the_source_of_a_migration() -> None:
    """The source is often RocketMQ, which has only v1; so each cluster has a signature of its own."""
    runtime = {"nameServers": ["127.0.0.1:2"], "signature": "strict"}
    source = {"nameServers": ["127.0.0.1:1"]}
    for given, expected in (({}, "v1"), ({"signature": "strict"}, "strict")):
        document = {"source": {**source, **given}, "runtime": runtime}
        parameters = MigrateCheckJob().parse(config_of(document, MigrateCheckSpec))

        assert (parameters.source.signature, parameters.target.signature) == (expected, "strict")


def test_longest_url_prefix_selects_the_token_of_a_sidecar() -> None:
    """A prefix of the URL has precedence over `*`, and a longer prefix over a shorter one."""
    names = ("*", "https://a", "https://a:1/x")

    assert [matching_url_prefix(url, names) for url in ("https://a:1/x/y", "https://a:1", "http://b")] == [
        "https://a:1/x", "https://a", "*"
    ]  # fmt: skip
    assert matching_url_prefix("http://b", names[1:]) == ""


def test_restore_names_an_unreadable_file() -> None:
    """An unreadable credentials file is reported by the parser, before anything is started."""
    settings = (
        "runtime.nameServers=['127.0.0.1:9876']",
        "runtime.destination=/archive",
        "runtime.accessFile=/nowhere/account",
    )
    config = read_config("restore: {topics: {orders: again}}", RestoreSpec, "TopicArchive", settings)

    with pytest.raises(ConfigError, match="/nowhere/account"):
        RestoreJob().parse(config)


def read_restore(destination: str) -> PipelineConfig[RestoreSpec]:
    settings = ("runtime.nameServers=['127.0.0.1:9876']", f"runtime.destination={destination}")
    return read_config("restore: {topics: {orders: again}}", RestoreSpec, "TopicArchive", settings)


@pytest.mark.parametrize(
    ("restore", "problem"),
    [
        ("{}", r"restore\.topics: missing.*or set restore\.intoNewGroup"),
        ("{topics: {orders: again}, intoNewGroup: true}", r"restore\.topics: contradicts restore\.intoNewGroup"),
    ],
)
def test_restore_needs_topics_or_a_new_group(restore: str, problem: str) -> None:
    """Without either, a topic would be restored into itself; with both, it is unclear what is wanted."""
    settings = ("runtime.nameServers=['127.0.0.1:9876']", "runtime.destination=/archive")

    with pytest.raises(ConfigError, match=problem):
        RestoreJob().parse(read_config(f"restore: {restore}", RestoreSpec, "TopicArchive", settings))


@pytest.mark.parametrize("destination", ["/data/archive", "file:///data/archive"])
def test_restore_stores_its_progress_in_the_folder_of_the_archive(destination: str) -> None:
    """A folder may be written as a URL; only an object store needs another folder for the progress."""
    assert RestoreJob().parse(read_restore(destination)).progress == "/data/archive/_restore"

    with pytest.raises(ConfigError, match=r"restore\.progress: missing"):
        RestoreJob().parse(read_restore("s3://bucket/archive"))


@pytest.mark.parametrize(
    ("topic", "is_wanted"),
    [("orders", True), ("orders.eu", True), ("myorders", False), ("orders-test", False), ("%RETRY%orders", False)],
)
def test_topic_patterns_match_whole_names(topic: str, is_wanted: bool) -> None:
    """A topic is selected if one include matches its whole name, and no exclude does."""
    topics = read("topics: {include: ['orders.*', '%RETRY%.*'], exclude: ['.*-test', '%RETRY%.*']}").spec.topics
    assert (re.fullmatch(topics_pattern(topics), topic) is not None) is is_wanted


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("topics: {include: ['(']}", "topics.include: '(' is not a regular expression"),
        ("topics: {include: []}", "topics.include: empty"),
    ],
)
def test_invalid_topic_patterns_are_refused(text: str, words: str) -> None:
    """An invalid or empty pattern is refused before Spark is started."""
    with pytest.raises(ConfigError) as refused:
        topics_pattern(read(text).spec.topics)
    assert words in str(refused.value)


@pytest.mark.parametrize("text", ["brokerGroups: [prod]", ""])
def test_missing_name_servers_are_reported_with_a_remedy(text: str) -> None:
    """A broker group can only be resolved in a cluster; elsewhere name servers are required."""
    with pytest.raises(ConfigError, match=r"runtime\.nameServers, or -n"):
        read_settings(read(text))


def test_memory_and_executors_follow_the_fields() -> None:
    """`sparkConf` overrides defaults, and the operator's settings override everything."""
    pod = {"POD_NAME": "orders-archive-0"}
    own = (
        'engine: {mode: kubernetes, sparkConf: {"spark.sql.shuffle.partitions": "9"}, executor: {heap: 2Gi, cores: 3}}'
    )
    override = "runtime.sparkConf={spark.master: 'k8s://https://x', spark.kubernetes.namespace: shop}"
    found = spark_conf(read(own, override), pod)

    assert (found["spark.master"], found["spark.kubernetes.driver.pod.name"]) == ("k8s://https://x", "orders-archive-0")
    assert (found["spark.executor.memory"], found["spark.executor.cores"]) == ("2048m", "3")
    assert (found["spark.executor.instances"], found["spark.driver.memory"]) == ("2", "1024m")
    assert found["spark.sql.shuffle.partitions"] == "9"
    prefix, _, life = found["spark.kubernetes.executor.podNamePrefix"].rpartition("-")
    assert prefix == "orders-archive-0" and life, "expected a part that differs for another driver in this pod"
    assert "spark.executor.memory" not in spark_conf(read("engine: {cores: 2}"), {})
    with pytest.raises(ConfigError, match=r"engine\.mode: kubernetes runs only in a pod"):
        spark_conf(read(own), {})


LOCAL = "runtime.nameServers=[127.0.0.1:9876]"


def test_table_option_selects_the_formats(capsys: pytest.CaptureFixture[str]) -> None:
    """`--table` is the same as the field, and the job `tables` needs one of them."""
    words = ["tables", "--check", "--set", "runtime.destination=/archive"]
    with pytest.raises(SystemExit) as ended:
        main([*words, "--table", "iceberg", "--table", "delta"])
    assert ended.value.code == 0
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == EXIT_CONFIG
    assert "tables.formats: missing; set it to [iceberg], [delta] or both, or use --table" in capsys.readouterr().err

    parameters = ArchiveJob().parse(
        read("", LOCAL, "runtime.destination=/archive", "runtime.once=true", "tables.formats=[delta, delta]")
    )
    assert parameters.tables.formats == (TableFormat.DELTA,)


def test_tables_without_their_package_are_refused_before_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The problem names the extra that installs it."""
    monkeypatch.setattr(archive_settings, "find_spec", lambda _: None)
    words = re.escape("tables.formats: needs the package deltalake, which is not installed: pip install 'gantry-mq[tab")
    with pytest.raises(ConfigError, match=words):
        ArchiveJob().parse(read("", LOCAL, "runtime.destination=/archive", "tables.formats=[delta]"))


def test_schema_of_a_file_is_passed_to_workers_as_text(tmp_path: Path) -> None:
    """A worker on another machine has no such file. A descriptor set is binary, and becomes Base64."""
    avro = '{"type": "record", "name": "R", "fields": [{"name": "x", "type": "int"}]}'
    (tmp_path / "r.avsc").write_text(avro)
    base = (LOCAL, "runtime.destination=/archive", "runtime.once=true")
    named = f"schemas=[{{topics: [a], format: avro, schemaFile: {tmp_path}/r.avsc}}]"

    parameters = ArchiveJob().parse(read("", *base, named))

    assert json.loads(parameters.options["archive.schemas"])[0]["schema"] == avro
    assert [one.name for one in parameters.schemas.columns_of("a")] == ["decodeError", "x"]
    assert "archive.schemas" not in ArchiveJob().parse(read("", *base)).options


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        (
            "schemas=[{topics: [a], format: avro, schemaFile: /none.avsc}]",
            r"schemas\[0\].schemaFile: cannot read /none",
        ),
        ("schemas=[{topics: [a], format: avro, schema: '{}', schemaFile: /none}]", "has schema and schemaFile"),
        ("schemas=[{topics: ['('], columns: [{name: x, type: int}]}]", "topics: '\\(' is not a regular expression"),
        ("schemas=[{topics: [a], columns: [{name: x, type: text}]}]", r"schemas\[0\]: column 'x': unknown type 'text'"),
        ("schemas=[{topics: [a], columns: [{name: x-y, type: int}]}]", r"schemas\[0\].columns\[0\].name"),
        ("schemas=[{topics: [a], format: xml}]", r"schemas\[0\].format"),
        ("layout.partitionBy=minute", "layout.partitionBy"),
    ],
)
def test_schema_that_cannot_be_used_is_refused_before_a_run(setting: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        ArchiveJob().parse(read("", LOCAL, "runtime.destination=/archive", setting))


def test_typed_columns_need_the_body() -> None:
    setting = "schemas=[{topics: [a], columns: [{name: x, type: int}]}]"
    with pytest.raises(ConfigError, match="schemas: typed columns are decoded from the body: add body to columns"):
        ArchiveJob().parse(read("", LOCAL, "runtime.destination=/archive", setting, "columns=[tags]"))


RESERVED_SETTING = (
    "engine.sparkConf: a key of sparkConf is reserved, because another field or Gantry itself controls it"
)


def test_reserved_spark_setting_is_refused_by_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    """A Spark setting that a field of `engine` controls is refused, in a file and with `--set`, as in a cluster."""
    memory = "engine.sparkConf={spark.driver.memory: 9g}"
    with pytest.raises(ConfigError) as refused:
        read(RESOURCE, memory)
    assert refused.value.problems == (RESERVED_SETTING,)
    with pytest.raises(ConfigError, match="is reserved"):
        read('engine: {sparkConf: {"spark.master": "local[2]"}}')
    with pytest.raises(SystemExit) as ended:
        main(["archive", "--check", "--set", "runtime.destination=/archive", "-n", "127.0.0.1:1", "--set", memory])
    assert ended.value.code == EXIT_CONFIG and RESERVED_SETTING in capsys.readouterr().err

    runtime = read("", "runtime.sparkConf={spark.driver.memory: 9g}")
    assert spark_conf(runtime, {})["spark.driver.memory"] == "9g", "expected the machine's setting"


def test_executor_is_started_with_the_variables_of_its_driver() -> None:
    """Java options keep the driver's order; a missing variable is an error that names it."""
    given = {name: name.lower() for name in EXECUTOR_ARGUMENTS.values()}
    given |= {"SPARK_EXECUTOR_MEMORY": "1g", "SPARK_JAVA_OPT_10": "-Dlate", "SPARK_JAVA_OPT_9": "-Dearly"}
    command = executor_command(given, "java", "/spark")

    assert command[:6] == ["java", "-Dearly", "-Dlate", "-Xms1g", "-Xmx1g", "-cp"]
    assert command[6:8] == ["/spark/jars/*", EXECUTOR_MAIN]
    assert command[command.index("--podName") + 1] == "spark_executor_pod_name"
    with pytest.raises(KeyError, match="SPARK_DRIVER_URL"):
        executor_command({name: "" for name in given if name != "SPARK_DRIVER_URL"}, "java", "/spark")
