"""Permissions of written files: the owner alone by default, the group if configured; for output of a job the umask."""

from __future__ import annotations

import ast
import os
import signal
import stat
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from local_group_kit import FREE_PORTS, Group, gantry

from gantry_cli.kube import plugin
from gantry_cli.local.bundle import write_bundle
from gantry_remoting import file_access
from gantry_remoting.file_access import FileAccess, limit_existing_files
from gantry_testing.local import local_conf
from gantry_testing.tree import ROOT

OTHERS = 0o007
GROUP_AND_OTHERS = 0o077


def paths_with_mode_bits(root: Path, mask: int) -> dict[str, str]:
    """Return everything below ``root``, itself included, that has a bit of ``mask``, with its mode."""
    paths = [root, *(Path(folder, name) for folder, folders, files in os.walk(root) for name in folders + files)]
    modes = {str(path.relative_to(root)): stat.S_IMODE(path.lstat().st_mode) for path in paths if not path.is_symlink()}
    return {name: f"{mode:04o}" for name, mode in modes.items() if mode & mask}


@pytest.fixture(autouse=True)
def generous_umask() -> Iterator[None]:
    """Set the usual umask of a machine, with which all users can read."""
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.verify
def test_running_group_leaves_no_file_readable_by_others(tmp_path: Path) -> None:
    """Stores, tables, logs, status pages, tokens, sockets: 0600 and 0700, while it runs and after it has ended."""
    group = Group(tmp_path / "state")
    group.up(*FREE_PORTS)
    try:
        gantry("produce", "-n", group.name_server, "hello", "one", "two", "--key", "k")
        gantry("consume", "-n", group.name_server, "hello", "--group", "readers")
        running = paths_with_mode_bits(group.folder, GROUP_AND_OTHERS)
        names = {path.name for path in group.folder.rglob("*")}
    finally:
        group.down()

    assert running == {}
    assert paths_with_mode_bits(group.folder, GROUP_AND_OTHERS) == {}
    assert {"store.json", "status", "control.sock", "up.log", "topics.json"} <= names, "the walk is incomplete"


@contextmanager
def broker_process(store: Path, **conf: str) -> Iterator[str]:
    """Start a broker as a service manager does, and return its log until it listened."""
    words = [
        word for key, value in local_conf(store, haListenPort="-1", **conf).items() for word in ("-o", f"{key}={value}")
    ]
    with subprocess.Popen(
        [sys.executable, "-m", "gantry_broker", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith("broker listening"):
                break
        try:
            yield "".join(lines)
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=120)


def test_store_can_be_readable_by_the_brokers_group(tmp_path: Path) -> None:
    """`fileAccess=GROUP`: the group reads files and enters directories, writes nothing, and others have no access."""
    store = tmp_path / "store"
    with broker_process(store, fileAccess="GROUP"):
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in store.rglob("*")}

    assert paths_with_mode_bits(store, OTHERS | 0o020) == {}
    assert (modes["config"], modes["topics.json"], modes["store.json"]) == (0o750, 0o640, 0o640)


def test_readable_store_is_restricted_at_the_start(tmp_path: Path) -> None:
    """An earlier version's files lose what `fileAccess` does not allow, and the log has their number."""
    store = tmp_path / "store"
    with broker_process(store):
        pass
    for path in [store, *store.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)

    with broker_process(store) as output:
        assert paths_with_mode_bits(store, GROUP_AND_OTHERS) == {}
    assert "restricted access to files of the store that were open to other users files=" in output


def test_permissions_are_never_extended(tmp_path: Path) -> None:
    """Limiting to the group leaves files that only the owner reads as they are; a link is not followed."""
    outside = tmp_path / "outside"
    outside.write_text("")
    outside.chmod(0o644)
    store = tmp_path / "store"
    store.mkdir(mode=0o700)
    (store / "secret").touch(mode=0o600)
    (store / "open").touch(mode=0o644)
    (store / "link").symlink_to(outside)

    assert limit_existing_files(store, FileAccess.GROUP) == (1, 0)

    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in [*store.iterdir()]}
    assert modes == {"secret": 0o600, "open": 0o640, "link": 0o644}
    assert limit_existing_files(tmp_path / "missing", FileAccess.OWNER) == (0, 0)


def test_files_of_a_pipeline_follow_the_users_umask(tmp_path: Path) -> None:
    """A job's output is for its readers: the command passes on the umask with which it was started."""
    script = (
        "import os, sys\n"
        "from gantry_cli.pipeline import _run\n"
        "from gantry_remoting.file_access import limit_new_files\n"
        "limit_new_files()\n"
        f"_run([sys.executable, '-c', {f'open({str(tmp_path / chr(114))!r}, {chr(119)!r})'!r}])\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)

    assert stat.S_IMODE((tmp_path / "r").stat().st_mode) == 0o644


def test_bundle_of_the_kubectl_plugin_is_its_users_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the logs and objects of a cluster, like the one of `gantry bundle`."""
    monkeypatch.setattr(file_access, "_inherited", [])
    monkeypatch.setattr(plugin.cli, "main", lambda **_: write_bundle(tmp_path / "bundle.tar.gz", "bundle", []))

    with pytest.raises(SystemExit):
        plugin.main()

    assert stat.S_IMODE((tmp_path / "bundle.tar.gz").stat().st_mode) == 0o600


SOURCES = {
    ".".join(path.relative_to(folder).with_suffix("").parts): path
    for folder in (ROOT / "broker/src", ROOT / "operator/src", ROOT / "pipelines/src")
    for path in folder.rglob("*.py")
}
"""Every module of the packages, by its name."""

UNLIMITED = {
    "gantry_cli.child": "executes a server, which limits its files itself",
    "gantry_operator.main": "writes no files",
    "gantry_admin.search.scan_process": "writes no files, and inherits the limit of the sidecar",
    "gantry_proxy.serving_process": "writes no files, and inherits the limit of the main process",
    "gantry_pipelines.__main__": "writes a job's output, which is for its readers",
}
"""The modules of entry points that do not limit new files, and why."""


def test_every_entry_point_limits_its_files() -> None:
    """A new command or program must limit its files, or be listed with a reason; no other module decides that."""
    limiting = {name for name, path in SOURCES.items() if "limit_new_files" in calls_of(path)}

    assert limiting.isdisjoint(UNLIMITED)
    assert limiting | set(UNLIMITED) == entry_points()


def entry_points() -> set[str]:
    """Return the modules of all installed commands, and of all programs that `python -m` runs."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    programs = [
        name
        for name, path in SOURCES.items()
        if path.name == "__main__.py" or '__name__ == "__main__"' in path.read_text()
    ]
    return {target.partition(":")[0] for target in scripts.values()} | {module_of_main(name) for name in programs}


def module_of_main(program: str) -> str:
    """Return the module from which a program imports its function `main`; itself if it imports none."""
    imports = [node for node in ast.walk(ast.parse(SOURCES[program].read_text())) if isinstance(node, ast.ImportFrom)]
    found = [node.module for node in imports if "main" in [name.name for name in node.names]]
    return found[0] or program if found else program


def test_no_explicit_mode_gives_access_to_others() -> None:
    """An explicit mode gives others nothing, so that a library user's umask opens no file either."""
    sources = [*ROOT.glob("broker/src/**/*.py"), *ROOT.glob("operator/src/**/*.py")]
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sources
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and name_of(node) in ("open", "chmod", "mkdir", "makedirs", "fchmod")
        for mode in [*node.args, *(keyword.value for keyword in node.keywords)]
        if isinstance(mode, ast.Constant)
        and type(mode.value) is int
        and 0o400 <= mode.value <= 0o777
        and mode.value & OTHERS
    ]

    assert found == []


def calls_of(path: Path) -> set[str]:
    return {name_of(node) for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)}


def name_of(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
