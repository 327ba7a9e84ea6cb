"""`kubectl gantry` as a program: its help teaches, its examples can be typed, and the Tab key is quick and silent."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from gantry_cli.kube import options
from gantry_cli.kube.cluster_bundle import is_event_of, redact_object
from gantry_cli.kube.commands import plain_name
from gantry_cli.kube.naming import group_name_in
from gantry_cli.kube.plugin import cli
from gantry_cli.main import cli as gantry
from gantry_testing.tree import PYTHON_PATH

COMMANDS = sorted(cli.commands.items())
SECRET = "hunter2hunter2"


def examples(command: click.Command) -> list[list[str]]:
    """Return the words after `kubectl gantry` in each example."""
    lines = [line.strip() for line in (command.epilog or "").splitlines() if "kubectl gantry" in line]
    return [shlex.split(re.split(r"\s{3,}| \| ", line)[0])[2:] for line in lines]


@pytest.mark.parametrize(("name", "command"), COMMANDS, ids=[name for name, _ in COMMANDS])
def test_every_command_of_the_plugin_teaches(name: str, command: click.Command) -> None:
    """Its help has a sentence that says what it does, and examples that can be typed."""
    found = examples(command)

    assert command.help is not None and len(command.help) > 20
    assert len(found) >= 2 and all(words[0] == name for words in found)
    for words in found:
        command.make_context(name, list(words[1:]))
    with pytest.raises(click.UsageError):
        command.make_context(name, ["orders", "--no-such-option"])


def test_namespace_is_n_with_kubectl_and_the_name_server_without(tmp_path: Path) -> None:
    """As users of either expect; options and names for a cluster are refused where the local group is meant."""
    of_plugin = {option for one in cli.commands["status"].params for option in one.opts}
    alone = CliRunner().invoke(gantry, ["explain", "--namespace", "shop"])
    other = CliRunner().invoke(gantry, ["status", "orders"])

    assert {"-n", "--namespace", "--context", "--kubeconfig"} <= of_plugin and "--namesrv" not in of_plugin
    assert alone.exit_code == 2 and "bg/GROUP" in alone.stderr
    assert other.exit_code == 2 and "'orders' is not the name of a group" in other.stderr


def test_a_group_is_named_as_kubectl_names_it() -> None:
    """By any name of its kind; a plain one is enough for the plugin."""
    assert [group_name_in(text) for text in ("bg/a", "brokergroup/a", "BrokerGroups.gantry.dev/a")] == ["a", "a", "a"]
    assert [group_name_in(text) for text in ("a", "pods/a", "/a")] == [None, None, None]
    assert (plain_name("a"), plain_name("bg/a"), plain_name(None)) == ("a", "a", None)


# -- the Tab key -------------------------------------------------------------------------------------------------------


def completed(folder: Path, kubectl: str, *words: str) -> tuple[list[str], str]:
    """Return the output and errors of `kubectl_complete-gantry`; ``kubectl`` is a script in place of `kubectl`."""
    program = folder / "kubectl"
    program.write_text(f"#!/bin/sh\n{kubectl}\n")
    program.chmod(0o755)
    environment = dict(os.environ) | {"PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": PYTHON_PATH}
    code = "from gantry_cli.kube.plugin import complete; complete()"
    done = subprocess.run(
        [sys.executable, "-c", code, *words], env=environment, capture_output=True, text=True, timeout=180, check=True
    )
    return done.stdout.splitlines(), done.stderr


@pytest.mark.verify
def test_tab_offers_what_kubectl_finds(tmp_path: Path) -> None:
    """Commands, groups of the namespace and context that were typed, and namespaces; no files."""
    kubectl = 'echo "$@" >> calls; echo brokergroup.gantry.dev/orders; echo brokergroup.gantry.dev/bills'
    kubectl = kubectl.replace("calls", str(tmp_path / "calls"))

    commands, _ = completed(tmp_path, kubectl, "st")
    groups, errors = completed(tmp_path, kubectl, "status", "-n", "shop", "--context", "prod", "o")
    namespaces, _ = completed(tmp_path, kubectl, "fence", "orders", "0", "-n", "")

    assert [line.partition("\t")[0] for line in commands] == ["status", ":4"]
    assert (groups, errors) == (["orders", ":4"], "")
    assert namespaces == ["orders", "bills", ":4"]
    first, second = (tmp_path / "calls").read_text().splitlines()
    assert first.startswith("get brokergroups.gantry.dev --output=name") and "--namespace=shop" in first
    assert "--context=prod" in first and second.startswith("get namespaces") and "--namespace" not in second


@pytest.mark.verify(quick=1)
@pytest.mark.parametrize("kubectl", ["echo 'no such server' >&2; exit 1", "sleep 600; true", "exit 127"])
def test_tab_is_silent_where_nothing_answers(tmp_path: Path, kubectl: str) -> None:
    """If a cluster refuses, hangs or is missing, completion offers nothing, prints nothing and does not wait."""
    assert completed(tmp_path, kubectl, "status", "") == ([":4"], "")


def test_tab_of_gantry_asks_a_cluster_only_after_bg(monkeypatch: pytest.MonkeyPatch) -> None:
    """`gantry status <Tab>` sends no request where there is no cluster."""
    asked: list[str] = []

    def lines(words: list[str]) -> list[str]:
        asked.append(words[1])
        return ["brokergroup.gantry.dev/orders"]

    monkeypatch.setattr(options, "_lines", lines)
    context = click.Context(click.Command("status"))
    parameter = click.Argument(["group"])

    assert options.complete_cluster_group(context, parameter, "") == [] and asked == []
    [item] = options.complete_cluster_group(context, parameter, "bg/o")
    assert item.value == "bg/orders" and asked == ["brokergroups.gantry.dev"]


# -- secrets -----------------------------------------------------------------------------------------------------------


def test_an_object_loses_values_and_keeps_the_names_of_secrets() -> None:
    """Values of variables, arguments and annotations are removed; the names of Secrets stay, as one may be wrong."""
    pod: dict[str, Any] = {
        "metadata": {
            "managedFields": [{}],
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": SECRET, "example.com/token": SECRET},
        },
        "spec": {
            "automountServiceAccountToken": False,
            "imagePullSecrets": [{"name": "registry"}],
            "containers": [{"env": [{"name": "DB_PASSWORD", "value": SECRET}, {"name": "POD_NAME", "value": "a"}],
                            "args": ["--token-file", "/etc/gantry/sidecar/tokens", f"--password={SECRET}"]}],
            "volumes": [{"name": "sidecar", "secret": {"secretName": "orders-sidecar", "defaultMode": 288}}],
        },
    }  # fmt: skip

    found = redact_object(pod)

    assert SECRET not in str(found)
    assert found["spec"]["volumes"] == pod["spec"]["volumes"]
    assert found["spec"]["containers"][0]["env"][1] == {"name": "POD_NAME", "value": "a"}
    assert found["spec"]["containers"][0]["args"][:2] == ["--token-file", "/etc/gantry/sidecar/tokens"]
    assert found["spec"]["automountServiceAccountToken"] is False
    assert "managedFields" not in found["metadata"]


@pytest.mark.parametrize(
    ("kind", "name", "uid", "is_ours"),
    [
        ("Pod", "orders-0-slave-1", "gone", True),
        ("StatefulSet", "orders-1-master", "gone", True),
        ("Pod", "orders-nameserver-0", "gone", True),
        ("Deployment", "orders-proxy", "gone", True),
        ("ReplicaSet", "orders-proxy-6d4cf56db6", "gone", True),
        ("Pod", "orders-proxy-6d4cf56db6-x2x7t", "gone", True),
        ("StatefulSet", "orders-proxy-nameserver", "gone", False),
        ("StatefulSet", "orders-proxy-0-master", "gone", False),
        ("BrokerGroup", "orders", "present", True),
        ("ConfigMap", "any-name", "present", True),
        ("Pod", "orders-eu-0-slave-1", "gone", False),
        ("Pod", "orders-0-0-slave-1", "gone", False),
        ("BrokerGroup", "orders-0", "gone", False),
        ("Pod", "orders-api-7d9f", "gone", False),
        ("Pod", "my-orders-0-slave-1", "gone", False),
    ],
)
def test_bundle_has_no_events_of_another_group(kind: str, name: str, uid: str, *, is_ours: bool) -> None:
    """Those of its present objects and its deleted pods belong to it, and not those of a group with a longer name."""
    event = {"involvedObject": {"kind": kind, "name": name, "uid": uid}}

    assert is_event_of(event, "orders", {"present"}) == is_ours
