"""The hints of failed commands, with real servers: a hint names a command only if that command can help."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import trustme
from click.testing import CliRunner
from doctor_scene import Scene, guarded, tls_words, write_account

from gantry_cli.main import cli
from gantry_testing.certificates import Party
from gantry_testing.ports import free_port

COMMANDS: Final = (
    ("produce", "orders", "x"),
    ("consume", "orders"),
    ("topic", "list"),
    ("topic", "describe", "orders"),
    ("topic", "delete", "orders", "--yes"),
    ("topic", "create", "other"),
    ("group", "list"),
    ("group", "describe", "billing"),
    ("status",),
)
"""Commands that need a cluster, and in which a topic is named where one can be."""
CREATE: Final = "gantry topic create"


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with Scene(tmp_path) as one:
        yield one


def output(*words: str) -> str:
    """Return what a command prints, with its hint."""
    environment = {name: "" for name in os.environ if name.startswith("GANTRY_")}
    result = CliRunner().invoke(cli, words, env=environment)
    return result.stdout + result.stderr


def outputs(scene: Scene, *after: str, before: tuple[str, ...] = ()) -> dict[str, str]:
    """Return the output of every command, by its words."""
    return {" ".join(words): output(*before, *words, "-n", scene.name_server, *after) for words in COMMANDS}


def test_shard_without_master_is_waited_for(scene: Scene) -> None:
    """Only a slave is registered: no command suggests to create the topic or to start a broker."""
    scene.start_name_server()
    scene.start_broker("slave", brokerRole="SLAVE", brokerId="1", haMasterAddress=f"127.0.0.1:{free_port()}")
    scene.wait_for_brokers(1)

    found = outputs(scene)

    assert not [words for words, text in found.items() if CREATE in text or "gantry up" in text]
    for words in ("produce orders x", "consume orders", "topic describe orders", "group list", "topic create other"):
        assert "a failover may be in progress" in found[words], found[words]


def test_topic_that_is_missing_is_created(scene: Scene) -> None:
    """With a master, and a topic that it does not have, creating it is the remedy."""
    scene.start_name_server()
    scene.start_broker("master", autoCreateTopicEnable="false")
    scene.wait_for_brokers(1)

    for words in COMMANDS[:2] + COMMANDS[3:5]:
        hint = f"{CREATE} orders -n {scene.name_server}"  # without -n, it would query another cluster
        assert hint in output(*words, "-n", scene.name_server), words
    assert f"with: gantry topic create NAME -n {scene.name_server}" in output("topic", "list", "-n", scene.name_server)
    output("topic", "create", "orders", "--permission", "r", "-n", scene.name_server)
    assert f"see `gantry group list -n {scene.name_server}`" in output(
        "group", "describe", "g", "-n", scene.name_server
    )
    read_only = output("produce", "orders", "x", "-n", scene.name_server)
    assert "gantry topic describe orders" in read_only and CREATE not in read_only


def test_name_server_without_brokers_needs_a_broker(scene: Scene) -> None:
    """No topic can be created, and no failover is in progress."""
    scene.start_name_server()

    found = outputs(scene)

    assert not [words for words, text in found.items() if CREATE in text or "failover" in text]
    assert "gantry broker -n ADDRESS" in found["produce orders x"]
    assert "no broker is registered" in found["topic list"]


def test_refused_account_is_not_reported_as_missing_topic(scene: Scene) -> None:
    """Without an account, with a wrong secret and without rights, the hint is about the account."""
    scene.start_broker("master", **guarded(scene))
    scene.wait_for_brokers(1, before=write_account(scene, "admin", "admin-key", "admin-secret"))
    cases = {
        "gantry --credentials FILE": (),
        "check accessKey and secretKey": write_account(scene, "wrong", "admin-key", "other-secret"),
        "use an account with this permission": write_account(scene, "billing", "billing-key", "billing-secret"),
    }

    for hint, before in cases.items():
        found = outputs(scene, before=before)
        assert hint in found["produce orders x"] and hint in found["status"], found
        assert not [words for words, text in found.items() if CREATE in text]


def test_account_without_rights_to_list_brokers_gets_both_possibilities(scene: Scene) -> None:
    """The client cannot know whether a topic is missing or its shard has no master, and the hint does not claim it."""
    scene.start_broker("master", autoCreateTopicEnable="false", **guarded(scene))
    scene.wait_for_brokers(1, before=write_account(scene, "admin", "admin-key", "admin-secret"))

    text = output(*write_account(scene, "o", "orders-key", "orders-secret"), "produce", "TopicTest", "x", "-n",
                  scene.name_server)  # fmt: skip

    assert "may have no master now: try again; else create it: gantry topic create TopicTest" in text


def test_wrong_port_is_named(scene: Scene) -> None:
    """The port of a broker, and one on which nothing listens."""
    scene.start_name_server()
    broker = scene.start_broker("master")
    scene.name_server = broker.address

    for words, text in outputs(scene).items():
        assert "is no name server" in text and "9876" in text, words
    scene.name_server = f"127.0.0.1:{free_port()}"
    for words, text in outputs(scene).items():
        assert "gantry up" in text and CREATE not in text, words


def test_tls_on_one_side_only_is_named(scene: Scene) -> None:
    """Plain text to a TLS port does not suggest to start a name server; TLS to a plain port names the options."""
    party = Party(scene.folder / "party", trustme.CA())
    scene.start_name_server(*tls_words(party))
    for words, text in outputs(scene).items():
        assert "it may require TLS (--tls-ca FILE)" in text and "gantry up" not in text, (words, text)

    scene.start_name_server()
    for words, text in outputs(scene, "--tls-ca", str(party.authority)).items():
        assert "check the --tls options" in text and "gantry up" not in text, (words, text)
