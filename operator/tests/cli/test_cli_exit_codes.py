"""The exit codes that all commands share: 0 success, 1 failure, 2 invalid usage, 3 not found, 130 interrupted."""

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from test_cli_output import leaves

from gantry_cli import errors
from gantry_cli import main as main_module
from gantry_cli.main import cli, main
from gantry_cli.status import page
from gantry_cli.store import options as store_options
from gantry_testing.tree import PYTHON_PATH, ROOT

PAGE = ROOT / "docs/exit-codes.md"
SERVERS = {"gantry nameserver", "gantry broker", "gantry sidecar", "gantry proxy"}
COMMANDS = {words: command for words, command in leaves(cli) if words not in SERVERS}

TOLERANT = ("gantry pod broker", "gantry pod nameserver", "gantry pod sidecar")
"""The operator may be newer than the image of a pod: these commands ignore unknown options and report them
(test_pod_newer)."""

ARGUMENTS = {
    "name": "x",
    "topic": "x",
    "directory": "/nowhere/at/all",
    "shell": "bash",
    "bodies": "x",
    "words": "0",
    "paths": "/v1/status",
    "source": "y",
    "which": "x/b/0@0",
    "places": "x/b/0@0",
    "message_id": "7F00000100002A9F0000000000000C80",
}
"""Values for the arguments of commands; a new argument must be added here."""
OPTIONS = {
    "--socket": "/nowhere/control.sock",
    "--epoch": "8",
    "--master": "192.0.2.1:10912",
    "--data": "/nowhere/x",
    "-f": __file__,
}

ABSENT = [
    *(f"store {name} /nowhere/at/all" for name in ("inspect", "verify", "dump", "repair-plan", "recover --yes")),
    *(
        f"ha {name} --socket /nowhere/s"
        for name in ("promote", "promise --epoch 8", "fence --epoch 8", "drain", "flush")
    ),
    *(f"ha {name} --socket /nowhere/s --epoch 8 --master 192.0.2.1:1" for name in ("follow", "demote")),
    "status --page /nowhere/status",
    *(f"{name} --data /nowhere/x" for name in ("explain", "kill master-0", "promote 0", "bundle")),
    f"apply --data /nowhere/x -f {shlex.quote(__file__)}",
    *(f"{name} --kubeconfig /nowhere/k" for name in ("status bg/x", "explain bg/x", "bundle bg/x")),
    *(f"{name} bg/x 0 --kubeconfig /nowhere/k" for name in ("promote", "fence", "restore")),
]


def exit_code(*words: str) -> int:
    """Return the exit code of a command line."""
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    code = ended.value.code
    assert isinstance(code, int)
    return code


def arguments_of(command: click.Command) -> list[str]:
    """Return the required arguments and options of a command, and the option --socket if it has one."""
    words: list[str] = []
    for parameter in command.params:
        if isinstance(parameter, click.Argument) and (parameter.required or parameter.name == "bodies"):
            words.append(ARGUMENTS[parameter.name])
        elif isinstance(parameter, click.Option) and (parameter.required or "--socket" in parameter.opts):
            words += [parameter.opts[0], OPTIONS[parameter.opts[0]]]
    return words


def commands_with_name_server() -> list[str]:
    """Return the commands that connect to a name server."""
    return [words for words, command in COMMANDS.items() if any(one.name == "name_server" for one in command.params)]


@pytest.mark.parametrize("words", [words for words in COMMANDS if words not in TOLERANT])
def test_unknown_option_exits_with_2(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown option is invalid usage, without a traceback."""
    assert exit_code(*words.split()[1:], "--no-such-option") == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "ignored", "mode"),
    [
        ("status --page /nowhere/status --watch", "--watch", "--page"),
        ("status --page /nowhere/status --all", "--all", "--page"),
        ("status --page /nowhere/status -n 192.0.2.1:9876", "--namesrv", "--page"),
        ("status --page /nowhere/status --tls", "--tls", "--page"),
        ("status bg/x --page /nowhere/status", "--page", "bg/x"),
        ("status bg/x --all", "--all", "bg/x"),
        ("status bg/x -n 192.0.2.1:9876", "--namesrv", "bg/x"),
        ("status --no-exec", "--no-exec", "without bg/GROUP"),
        ("explain --no-exec", "--no-exec", "without bg/GROUP"),
        ("explain bg/x --data /nowhere/x", "--data", "bg/x"),
        ("bundle --no-exec", "--no-exec", "without bg/GROUP"),
        ("bundle bg/x --data /nowhere/x", "--data", "bg/x"),
        ("promote bg/x 0 --data /nowhere/x", "--data", "bg/x"),
        ("up --single --console-port 0", "--console-port", "--single"),
        ("consume x --verbose --output json", "--verbose", "--output json"),
        ("group resend x --from-dead-letters --verbose --json", "--verbose", "--output json"),
        ("--signature strict topic list", "--signature", "--credentials"),
    ],
)
def test_option_without_effect_is_refused(
    words: str, ignored: str, mode: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the option and the mode. A value from the environment is not an error."""
    monkeypatch.delenv("GANTRY_CREDENTIALS", raising=False)
    assert exit_code(*words.split()) == 2
    error = capsys.readouterr().err
    assert f"{ignored} has no effect" in error and mode in error


def test_attribute_cannot_be_set_and_removed_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Contradictory options are refused, so that none is ignored silently."""
    assert exit_code("topic", "create", "x", "--attribute", "color=red", "--no-attribute", "color") == 2
    assert "both name color" in capsys.readouterr().err


@pytest.fixture
def unused_address() -> Iterator[str]:
    """An address on which no process listens."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{unused.getsockname()[1]}"


@pytest.mark.parametrize("words", commands_with_name_server())
def test_unreachable_name_server_exits_with_1(
    words: str, unused_address: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every command that needs a name server fails with one line."""
    monkeypatch.setitem(OPTIONS, "--data", str(tmp_path))
    extra = {
        "gantry group resend": ["--from-dead-letters"],
        "gantry group reset": ["--to", "earliest"],
        "gantry migrate": ["--dry-run"],
    }.get(words, [])

    assert exit_code(*words.split()[1:], *arguments_of(COMMANDS[words]), "-n", unused_address, *extra) == 1
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if line.startswith("gantry: ")] == lines[-1:]


@pytest.mark.parametrize("line", ABSENT)
def test_missing_file_or_socket_exits_with_3(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A store, socket, page or group that does not exist has its own exit code."""
    assert exit_code(*shlex.split(line)) == 3
    assert capsys.readouterr().err.startswith("gantry: ")


def test_help_and_version_exit_with_0() -> None:
    """Help and version are successful commands."""
    assert exit_code("--version") == 0
    assert [words for words in COMMANDS if exit_code(*words.split()[1:], "--help") != 0] == []


@pytest.mark.parametrize("words", [words for words in COMMANDS if words != "gantry completion"])
def test_ctrl_c_exits_with_130(words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """130 is the conventional exit code for SIGINT."""

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(COMMANDS[words], "callback", interrupted)

    assert exit_code(*words.split()[1:], *arguments_of(COMMANDS[words])) == 130
    assert capsys.readouterr().err.strip() == "gantry: interrupted"


def test_sigint_ends_waiting_process_with_130() -> None:
    """A command that waits for an unresponsive name server ends on SIGINT."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        environment = os.environ | {"PYTHONPATH": PYTHON_PATH}
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with subprocess.Popen(
            [sys.executable, "-m", "gantry_cli", "topic", "list", "-n", address],
            stderr=subprocess.PIPE,
            env=environment,
        ) as process:
            silent.settimeout(60)
            peer, _ = silent.accept()  # the command waits for the response now
            with peer:
                process.send_signal(signal.SIGINT)
                _, errors_output = process.communicate(timeout=60)

    assert process.returncode == 130
    assert errors_output.decode().strip() == "gantry: interrupted"


def test_declined_confirmation_exits_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A declined confirmation is a failure, not an interruption."""

    def asking(*_: object, **__: object) -> None:
        raise click.Abort

    monkeypatch.setattr(COMMANDS["gantry topic delete"], "callback", asking)

    assert exit_code("topic", "delete", "x") == 1
    assert capsys.readouterr().err.strip() == "gantry: canceled"


def codes_in_the_source() -> set[int]:
    """Return the exit codes that the modules of errors, of the status page and of `gantry store` define."""
    modules = (errors, page, store_options)
    return {
        value for module in modules for name, value in vars(module).items() if name.startswith("EXIT_") and value != 0
    }


def test_exit_codes_page_lists_exactly_all_codes() -> None:
    """docs/exit-codes.md lists exactly the exit codes of the source."""
    listed = {int(number) for number in re.findall(r"^\| (\d+) \|", PAGE.read_text(), re.MULTILINE)}

    assert listed == codes_in_the_source() | {0}


def test_commands_use_only_named_exit_codes() -> None:
    """No module of the command line, in any of its packages, exits with a literal number above 1."""
    folder = Path(main_module.__file__).parent
    bare = re.compile(r"(?:Exit|sys\.exit|exit_code =|_exit)\(?\s*([2-9]|\d\d+)\b")
    modules = {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*.py")}

    assert {name: hits for name, text in modules.items() if (hits := bare.findall(text))} == {}
    assert {"main.py", "store/commands.py"} <= modules.keys()
    assert bare.findall("raise click.exceptions.Exit(7)") == ["7"]
