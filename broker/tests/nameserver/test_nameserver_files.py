"""What the name server keeps on disk, and what happens when the disk or the file is bad."""

import errno
import os
from pathlib import Path

import pytest

from gantry_nameserver.kv import KeyValueCorrupt, KeyValueError, KeyValueStore
from gantry_nameserver.settings import (
    UPDATABLE,
    NameServerSettings,
    SettingsError,
    entries_of,
    read_settings_file,
    with_entries,
)
from gantry_remoting.durable_files import replace_file
from gantry_wire.properties_text import read_properties, write_properties


async def test_refused_write_leaves_memory_as_the_disk_is(tmp_path: Path) -> None:
    """A full disk answers an error, and the value that was kept is still the one that is read."""
    fails = False

    def write(path: Path, data: bytes, *, keeps_predecessor: bool) -> None:
        if fails:
            raise OSError(errno.ENOSPC, "No space left on device")
        replace_file(path, data, keeps_predecessor=keeps_predecessor)

    store = KeyValueStore(tmp_path / "kvConfig.json", write=write)
    await store.put("n", "k", "kept")
    fails = True

    with pytest.raises(KeyValueError, match="No space left"):
        await store.put("n", "k", "lost")
    with pytest.raises(KeyValueError, match="No space left"):
        await store.delete("n", "k")

    assert store.get("n", "k") == "kept"
    again = KeyValueStore(tmp_path / "kvConfig.json")
    again.load()
    assert again.get("n", "k") == "kept"


async def test_damaged_file_falls_back_to_its_predecessor(tmp_path: Path) -> None:
    """One good predecessor is kept; with both damaged the store refuses to start rather than to forget."""
    path = tmp_path / "kvConfig.json"
    store = KeyValueStore(path)
    await store.put("n", "k", "one")
    await store.put("n", "k", "two")

    path.write_bytes(b'{"configTable":{"n":')
    recovered = KeyValueStore(path)
    recovered.load()
    assert recovered.get("n", "k") == "one"

    path.with_name("kvConfig.json.bak").write_bytes(b"")
    with pytest.raises(KeyValueCorrupt, match=r"kvConfig\.json"):
        KeyValueStore(path).load()


def test_javas_file_is_read(tmp_path: Path) -> None:
    """The layout is RocketMQ's, so that a name server's directory can move over."""
    path = tmp_path / "kvConfig.json"
    path.write_text('{"configTable":{"ORDER_TOPIC_CONFIG":{"T":"a:4;b:4"}}}')

    store = KeyValueStore(path)
    store.load()

    assert store.table("ORDER_TOPIC_CONFIG") == {"T": "a:4;b:4"}


def test_failed_replacement_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At every step that can fail, the present name still holds the old content."""
    path = tmp_path / "file"
    replace_file(path, b"old", keeps_predecessor=True)
    for step in ("fsync", "link", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, step, _failing)
            with pytest.raises(OSError, match="injected"):
                replace_file(path, b"new", keeps_predecessor=True)
        assert path.read_bytes() == b"old", step

    replace_file(path, b"new", keeps_predecessor=True)

    assert path.read_bytes() == b"new" and path.with_name("file.bak").read_bytes() == b"old"


def _failing(*_: object, **__: object) -> None:
    raise OSError(errno.EIO, "injected")


def test_properties_text_round_trips_and_names_bad_lines() -> None:
    """Comments and blanks are skipped, the first separator splits, spaces around both sides go."""
    text = "# comment\n\n a = b=c \nd:e\n! more\n"

    assert read_properties(text) == {"a": "b=c", "d": "e"}
    assert read_properties(write_properties({"x": "1", "a": "2"})) == {"a": "2", "x": "1"}
    with pytest.raises(ValueError, match="line 2"):
        read_properties("a=b\nnonsense\n")


def test_every_setting_is_read_back_from_what_is_shown() -> None:
    """entries_of and with_entries are each other's mirror for every field."""
    changed = with_entries(
        NameServerSettings(), {"orderMessageEnable": "TRUE", "listenPort": "1234", "bindAddress": "127.0.0.1"}
    )

    assert changed.order_message_enable and changed.listen_port == 1234
    assert with_entries(NameServerSettings(), entries_of(changed)) == changed


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("nope=1", "unknown setting 'nope'"),
        ("listenPort=x", "whole number"),
        ("listenPort=70000", "between 0 and 65535"),
        ("enableTopicList=1", "true or false"),
    ],
)
def test_wrong_settings_are_named(tmp_path: Path, line: str, text: str) -> None:
    """A file with a key that is unknown or out of range does not start."""
    path = tmp_path / "namesrv.conf"
    path.write_text(f"rocketmqHome=/opt/rocketmq\nserverWorkerThreads=8\n{line}\n")

    with pytest.raises(SettingsError, match=text):
        with_entries(NameServerSettings(), read_settings_file(path))


def test_missing_settings_file_is_named(tmp_path: Path) -> None:
    """The path that cannot be read is in the text."""
    with pytest.raises(SettingsError, match=r"nowhere\.conf"):
        read_settings_file(tmp_path / "nowhere.conf")


def test_every_key_that_changes_at_run_time_is_documented() -> None:
    """docs/nameserver.md has each of them with its default."""
    text = (Path(__file__).resolve().parents[3] / "docs/nameserver.md").read_text(encoding="utf-8")
    defaults = entries_of(NameServerSettings())

    assert [key for key in sorted(UPDATABLE) if f"| `{key}` | `{defaults[key]}` |" not in text] == []
