"""`--output`: every command with output has tables and documents in JSON and YAML of a declared type."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
import yaml
from click.testing import CliRunner, Result
from store_commands.store_states import fill_store

from gantry_cli.document_types import DOCUMENTS
from gantry_cli.kube.plugin import cli as plugin
from gantry_cli.main import cli
from gantry_cli.output import OUTPUT_FORMATS, OutputFormat, show, table, yaml_text
from gantry_testing.client import FakeCluster, ThreadedCluster

COMMANDS_WITHOUT_DOCUMENTS = {
    "gantry up": "runs servers",
    "gantry down": "stops servers",
    "gantry apply": "sends an order to the local group; `status` shows the result",
    "gantry kill": "sends an order to the local group; `status` shows the result",
    "gantry bundle": "writes a file",
    "gantry console": "prints an address that works once, and serves it",
    "kubectl gantry console": "prints an address that works once, and serves it",
    "gantry pod console-code": "prints a document for `gantry console`",
    "gantry nameserver": "is the server itself",
    "gantry proxy": "is the server itself",
    "gantry broker": "is the server itself",
    "gantry sidecar": "is the server itself",
    "gantry pipeline": "runs a job, which has its own output formats",
    "gantry completion": "prints a script",
    "gantry pod broker": "is the first process of a container",
    "gantry pod nameserver": "is the first process of a container",
    "gantry pod sidecar": "is the first process of a container",
    "gantry pod proxy": "is the first process of a container",
    "gantry pod certificate": "writes files, and is run by the first process of a container",
    "gantry pod ask": "the former name of `gantry pod get`",
    "gantry pod get": "prints the response of a sidecar, which is a document",
    "kubectl gantry bundle": "writes a file",
}


def leaves(command: click.Command, words: str = "gantry") -> Iterator[tuple[str, click.Command]]:
    """Yield every command without subcommands, including hidden ones, with its name."""
    if not isinstance(command, click.Group):
        yield words, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        assert inner is not None
        yield from leaves(inner, f"{words} {name}")


def lacks_output_option(command: click.Command) -> bool:
    """Return whether a command lacks an option for the output format."""
    options = {word for parameter in command.params for word in parameter.opts}
    return not {"--output", "-O", "--json"} <= options


def test_short_option_is_that_of_kubectl() -> None:
    """-o selects the format, as -O does, but where -o sets a key of a broker.conf, as for `gantry broker`."""
    others = {"gantry migrate"}
    for words, command in (dict(leaves(cli)) | dict(leaves(plugin, "kubectl gantry"))).items():
        options = {word: parameter.name for parameter in command.params for word in parameter.opts}
        if "-O" in options:
            assert options["-O"] == "output"
            assert options["-o"] == ("options" if words in others else "output"), words


def test_every_command_with_output_supports_all_formats() -> None:
    """A command without `--output` must be in the list of exceptions, with a reason."""
    found = dict(leaves(cli)) | dict(leaves(plugin, "kubectl gantry"))

    assert {words for words, command in found.items() if lacks_output_option(command)} - set(
        COMMANDS_WITHOUT_DOCUMENTS
    ) == set()
    assert {words for words, command in found.items() if not lacks_output_option(command)} - set(DOCUMENTS) == set()
    for words in DOCUMENTS:
        name, _, option = words.partition(" --")  # an option may select another document of a command
        assert name in found
        assert not option or any(f"--{option}" in parameter.opts for parameter in found[name].params)


def test_format_check_detects_missing_output_option() -> None:
    """The check above detects a command that has only --json."""
    assert lacks_output_option(click.Command("new", params=[click.Option(["--json"])]))


@pytest.fixture(scope="module")
def cluster() -> Iterator[FakeCluster]:
    fake = FakeCluster()
    fake.add_topic("orders", queues=1)
    with ThreadedCluster(fake):
        CliRunner().invoke(cli, ["produce", "-n", fake.name_server, "orders", "4 apples", "--tag", "on"])
        yield fake


def gantry(*words: str) -> Result:
    return CliRunner().invoke(cli, list(words), catch_exceptions=False)


NETWORK = [
    ("status",),
    ("topic", "list"),
    ("topic", "describe", "orders"),
    ("topic", "create", "orders", "--queues", "1"),
    ("produce", "orders", "2 pears", "--key", "17"),
    ("consume", "orders"),
    ("group", "resend", "billing", "--from-dead-letters", "--dry-run"),
]
WIDE = [
    (("status",), "not flushed"),
    (("topic", "list"), "last message"),
    (("doctor",), "subject"),
    (("topic", "describe", "orders"), 'Topic "orders"'),
]
"""Commands with their first words, and what --output wide shows."""


def read(form: str, text: str, words: tuple[str, ...]) -> list[Any]:
    """Parse the output: one document, or one a line of a command that prints a stream."""
    is_stream = words[0] in ("produce", "consume") or words[:2] == ("store", "dump")
    if form == "yaml":
        return list(yaml.safe_load_all(text))
    return [json.loads(line) for line in text.splitlines()] if is_stream else [json.loads(text)]


def document_type(words: tuple[str, ...]) -> Any:
    """Return the type of a command's JSON document."""
    return DOCUMENTS.get(f"gantry {words[0]}") or DOCUMENTS[f"gantry {words[0]} {words[1]}"]


@pytest.mark.parametrize("words", NETWORK, ids=" ".join)
@pytest.mark.parametrize("form", ["json", "yaml"])
def test_documents_match_their_declared_types(words: tuple[str, ...], form: str, cluster: FakeCluster) -> None:
    """A document has exactly the fields of its type."""
    cluster.add_topic("%DLQ%billing", queues=1)
    result = gantry(*words, "-n", cluster.name_server, "--output", form)

    documents = read(form, result.stdout, words)

    assert result.exit_code == 0 and documents
    for document in documents:
        typed = msgspec.convert(document, document_type(words), strict=True)
        assert json.loads(msgspec.json.encode(typed)) == document


@pytest.mark.parametrize("command", ["inspect", "verify", "dump", "repair-plan"])
def test_store_documents_are_equal_in_json_and_yaml(command: str, tmp_path: Path) -> None:
    """YAML and JSON have the same content, and every field of the type."""
    fill_store(tmp_path).close()
    words = ("store", command)
    forms = {form: gantry(*words, str(tmp_path / "store"), "-O", form) for form in ("json", "yaml")}
    as_json, as_yaml = (read(form, result.stdout, words) for form, result in forms.items())

    def timeless(documents: list[Any]) -> list[Any]:
        return [
            {name: one for name, one in each.items() if name not in ("elapsed_s", "gb_per_s", "space")}
            for each in documents
        ]

    assert timeless(as_json) == timeless(as_yaml)
    kind = DOCUMENTS[f"gantry store {command}"]
    promised = {field.name for field in msgspec.inspect.type_info(kind).fields}  # type: ignore[attr-defined]
    assert set(as_json[0]) <= promised
    if command != "dump":
        typed = msgspec.convert(as_json[0], kind)
        assert set(as_json[0]) == promised and json.loads(msgspec.json.encode(typed)) == as_json[0]


def test_json_option_is_shorthand_for_output_json(cluster: FakeCluster) -> None:
    """--json works alone and with --output json, and is refused with another format."""
    short = gantry("topic", "list", "--json", "-n", cluster.name_server)
    long = gantry("topic", "list", "--output", "json", "-n", cluster.name_server)
    both = gantry("topic", "list", "--json", "-O", "json", "-n", cluster.name_server)
    contradictory = gantry("topic", "list", "--json", "-O", "yaml", "-n", cluster.name_server)

    assert short.stdout == long.stdout == both.stdout and json.loads(long.stdout) == ["orders"]
    assert contradictory.exit_code == 2 and "mutually exclusive" in contradictory.stderr


def test_table_is_the_default_format(cluster: FakeCluster) -> None:
    """The table format is the default, and can be requested by name."""
    plain = gantry("topic", "describe", "orders", "-n", cluster.name_server)
    named = gantry("topic", "describe", "orders", "-n", cluster.name_server, "-O", "table")

    assert plain.stdout == named.stdout and 'Topic "orders":' in plain.stdout
    assert OUTPUT_FORMATS == ("table", "wide", "json", "yaml")
    assert [form for form in OutputFormat if not form.is_document] == [OutputFormat.TABLE, OutputFormat.WIDE]


@pytest.mark.parametrize(("words", "expected"), WIDE, ids=lambda one: one if isinstance(one, str) else one[0])
def test_wide_has_further_columns(words: tuple[str, ...], expected: str, cluster: FakeCluster) -> None:
    """`-o wide` shows more of the same, and `-O wide` the same as `-o wide`; without further columns it is a table."""
    wide = gantry(*words, "-n", cluster.name_server, "-o", "wide").stdout
    plain = gantry(*words, "-n", cluster.name_server, "-o", "table").stdout

    assert expected in wide
    assert (expected in plain) == (words == WIDE[-1][0])
    assert gantry(*words, "-n", cluster.name_server, "-O", "wide").exit_code in (0, 1)


def test_dry_run_of_topic_create_shows_changes_and_makes_none(cluster: FakeCluster) -> None:
    """The settings of each broker before and after; a topic that would be new has none before."""

    def plan(name: str, *options: str) -> list[list[object]]:
        words = ["topic", "create", name, "--dry-run", "--json", "-n", cluster.name_server, *options]
        result = CliRunner().invoke(cli, words)
        assert result.exit_code == 0, result.output
        return [[row["setting"], row["before"], row["after"]] for row in json.loads(result.output)["changes"]]

    words = ["topic", "create", "planned", "--queues", "2", "-n", cluster.name_server]
    new = plan("planned", "--queues", "2")
    assert CliRunner().invoke(cli, words).exit_code == 0
    unchanged, changed = plan("planned", "--queues", "2"), plan("planned", "--queues", "4", "--permission", "r")

    assert new == [["write queues", None, "2"], ["read queues", None, "2"], ["permission", None, "read, write"],
                   ["ordered", None, "no"]]  # fmt: skip
    assert unchanged == []
    assert changed == [["write queues", "2", "4"], ["read queues", "2", "4"], ["permission", "read, write", "read"]]
    assert plan("planned", "--queues", "2") == [], "a dry run changes nothing"


def test_topic_create_prints_whether_the_topic_was_new(cluster: FakeCluster) -> None:
    """An update of an existing topic is not reported as its creation."""
    words = ("topic", "create", "bills", "-n", cluster.name_server, "--queues")

    assert gantry(*words, "2").stdout == 'Topic "bills" created (2 queues on 1 broker)\n'
    assert gantry(*words, "3").stdout == 'Topic "bills" updated (3 queues on 1 broker)\n'


def test_topic_delete_counts_only_messages_of_the_cluster_that_it_empties() -> None:
    """With --cluster, the question and the document leave out the messages of other clusters."""
    fake = FakeCluster(["broker-a", "broker-w"])
    fake.broker("broker-w").state.cluster = "west"
    fake.add_topic("bills", brokers=["broker-a"])
    with ThreadedCluster(fake):
        for body in ("1 plum", "2 plums"):
            gantry("produce", "bills", body, "-n", fake.name_server)
        fake.add_topic("bills", brokers=["broker-w"])
        words = ("topic", "delete", "bills", "-n", fake.name_server, "--cluster")

        asked = gantry(*words, "west").stdout
        deleted = [json.loads(gantry(*words, name, "--yes", "--json").stdout) for name in ("west", "DefaultCluster")]

    assert 'Delete topic "bills" in cluster "west" with 0 messages?' in asked
    assert [document["messages"] for document in deleted] == [0, 2]


def test_text_is_never_interpreted_as_markup(capsys: pytest.CaptureFixture[str]) -> None:
    """Names, filters and errors come from other programs: sentences and tables show them unchanged."""
    text = "[/x] [red]a[/red] \\[b] :warning:"

    show(OutputFormat.TABLE, None, lambda: [text, table(f"title {text}", (f"column {text}",), [(f"cell {text}",)])])

    printed = capsys.readouterr().out
    assert [line.strip() for line in printed.splitlines() if "x" in line] == [
        text, f"title {text}", f"column {text}", f"cell {text}"
    ]  # fmt: skip


def test_yaml_quotes_ambiguous_strings() -> None:
    """`on`, `1e3`, `null` and line breaks remain strings; nothing is folded or shared."""
    again = ["same"]
    document = {
        "tag": "on",
        "key": "1e3",
        "none": "null",
        "body": "a\n b: c",
        "long": "x " * 300,
        "a": again,
        "b": again,
    }

    text = yaml_text(document)

    assert yaml.safe_load(text) == document
    assert "&id" not in text and "!!" not in text
