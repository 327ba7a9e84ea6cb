"""Shell completion, tested with real shells where they are installed. It never prints an error."""

import os
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from gantry_cli.completers import ANSWER_TIMEOUT_S, PROCESS_TIMEOUT_S
from gantry_cli.completion import SHELLS, completion_script
from gantry_cli.main import COMMAND_SECTIONS, cli
from gantry_testing.client import FakeCluster, ThreadedCluster
from gantry_testing.tree import PYTHON_PATH


@pytest.fixture(scope="module")
def cluster() -> Iterator[FakeCluster]:
    fake = FakeCluster()
    for name in ("orders", "orders-eu", "bills"):
        fake.add_topic(name, queues=1)
    with ThreadedCluster(fake):
        yield fake


@pytest.fixture
def program(tmp_path: Path) -> dict[str, str]:
    """The environment of a shell that finds `gantry`, without a stack."""
    return environment_with(tmp_path, "-m gantry_cli")


@pytest.fixture
def patient(tmp_path: Path) -> dict[str, str]:
    """The same environment, with longer timeouts of completion for a busy machine."""
    text = "from gantry_cli import completers; completers.ANSWER_TIMEOUT_S = completers.PROCESS_TIMEOUT_S = 90.0; "
    return environment_with(tmp_path, f"-c {shlex.quote(f'{text}from gantry_cli.main import main; main()')}")


def environment_with(folder: Path, words: str) -> dict[str, str]:
    """Return an environment in which `gantry` runs Python with these arguments."""
    launcher = folder / "bin/gantry"
    launcher.parent.mkdir()
    launcher.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {words} "$@"\n')
    launcher.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GANTRY_")}
    return kept | {"PATH": f"{launcher.parent}:{os.environ['PATH']}", "PYTHONPATH": PYTHON_PATH}


def bash_offers(program: dict[str, str], line: str, folder: Path) -> list[str]:
    """Return the completions of a real bash for Tab at the end of `line`; nothing else is printed."""
    asking = (
        'eval "$(gantry completion bash)"; COMP_LINE=$1; COMP_POINT=${#COMP_LINE}; '
        '_gantry_completion gantry; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "-c", asking, "bash", line],
        env=program, cwd=folder, capture_output=True, text=True, timeout=180, check=True,
    )  # fmt: skip
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.verify(quick=1)
@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("gantry st", ["status", "store"]),
        ("gantry topic des", ["describe"]),
        ("gantry store rep", ["repair-plan"]),
        ("gantry store verify --qu", ["--quick"]),
        ("gantry topic list --output ", ["table", "wide", "json", "yaml"]),
        ("gantry topic list -o ", ["table", "wide", "json", "yaml"]),
        ("gantry group list --int", ["--interval"]),
        ("gantry doctor --only sub", ["subscriptions"]),
        ("gantry topic describe -n nonsense ", []),
        ("gantry produce 'unfinished", []),
    ],
)
def test_bash_completes_commands_and_options(
    program: dict[str, str], line: str, offered: list[str], tmp_path: Path
) -> None:
    """Commands are imported for completion when needed; an invalid line has no completions and no error."""
    assert bash_offers(program, line, tmp_path) == offered


@pytest.mark.verify
def test_bash_completes_topics_after_an_address_with_a_colon(
    patient: dict[str, str], cluster: FakeCluster, tmp_path: Path
) -> None:
    """Bash splits words at colons; the name server of the line is queried nevertheless."""
    assert bash_offers(patient, f"gantry consume -n {cluster.name_server} or", tmp_path) == ["orders", "orders-eu"]
    by_environment = patient | {"GANTRY_NAMESRV": cluster.name_server}
    assert bash_offers(by_environment, "gantry topic delete b", tmp_path) == ["bills"]
    assert bash_offers(by_environment, "gantry group resend x", tmp_path) == []


@pytest.mark.verify
def test_unresponsive_name_server_does_not_block_completion(program: dict[str, str], tmp_path: Path) -> None:
    """A name server that accepts connections and never answers: completion ends soon, without names."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        began = time.monotonic()
        line = f"gantry consume -n 127.0.0.1:{silent.getsockname()[1]} "
        assert bash_offers(program, line, tmp_path) == []
        took_s = time.monotonic() - began

    assert ANSWER_TIMEOUT_S < PROCESS_TIMEOUT_S
    assert took_s < 90, "completion did not end by itself, even with time for a busy machine to start two interpreters"


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_script_of_every_shell_works(
    shell: str, patient: dict[str, str], cluster: FakeCluster, tmp_path: Path
) -> None:
    """The script uses the variable that `gantry` reads, and receives the topics in the format of the shell."""
    text = CliRunner().invoke(cli, ["completion", shell]).stdout
    words = f"gantry consume -n {cluster.name_server} or"
    typed = {"bash": {"COMP_TEXT": words}, "zsh": {"COMP_WORDS": words, "COMP_CWORD": "4"},
             "fish": {"COMP_WORDS": words, "COMP_CWORD": "or"}}[shell]  # fmt: skip
    variables = patient | typed | {"_GANTRY_COMPLETE": f"{shell}_complete"}
    answer = subprocess.run(
        ["gantry"], env=variables, cwd=tmp_path, capture_output=True, text=True, timeout=180, check=False
    )

    assert text == completion_script(shell) and f"_GANTRY_COMPLETE={shell}_complete" in text
    assert "orders" in answer.stdout and "orders-eu" in answer.stdout and "bills" not in answer.stdout
    assert answer.stderr == ""
    if (here := shutil.which(shell)) is not None:
        (tmp_path / "script").write_text(text)
        assert subprocess.run([here, "-n", str(tmp_path / "script")], check=False).returncode == 0


@pytest.mark.parametrize("damage", [None, "{", "[]"], ids=["none", "torn", "other"])
def test_damaged_record_of_local_group_offers_nothing(
    program: dict[str, str], damage: str | None, tmp_path: Path
) -> None:
    """Completion prints nothing; only the command itself reports the damage."""
    if damage is not None:
        (tmp_path / ".gantry/local").mkdir(parents=True)
        (tmp_path / ".gantry/local/group.json").write_text(damage)
    asked = program | {"_GANTRY_COMPLETE": "zsh_complete", "COMP_WORDS": "gantry kill ", "COMP_CWORD": "2"}

    answer = subprocess.run(
        ["gantry"], env=asked, cwd=tmp_path, capture_output=True, text=True, timeout=180, check=False
    )

    assert (answer.returncode, answer.stdout.strip(), answer.stderr) == (0, "", "")


def test_command_names_are_completed_without_importing_commands(program: dict[str, str], tmp_path: Path) -> None:
    """Names come from the table, so that completion does not load the module of every command."""
    asking = (
        "import sys; from gantry_cli.main import cli; import click;"
        "print([item.value for item in cli.shell_complete(click.Context(cli), '')]);"
        "print([name for name in sys.modules if name.startswith('gantry_cli.') and 'topic' in name])"
    )
    done = subprocess.run(
        [sys.executable, "-c", asking], env=program, cwd=tmp_path, capture_output=True, text=True, check=True
    )

    names, imported = done.stdout.splitlines()
    assert names == str([name for entries in COMMAND_SECTIONS.values() for name in entries])
    assert imported == "[]"
