"""The name server's files, and its behavior when the disk or a file is damaged."""

import errno
import os
from pathlib import Path

import pytest

from gantry_nameserver.key_value_store import KeyValueCorrupt, KeyValueError, KeyValueStore
from gantry_nameserver.live_settings import LiveSettings
from gantry_nameserver.settings import UPDATABLE, NameServerSettings, entries_of, read_settings_file, with_entries
from gantry_remoting import durable_files
from gantry_remoting.durable_files import replace_file
from gantry_remoting.setting_kinds import SettingsError
from gantry_wire.properties_text import read_properties, write_properties


async def test_failed_write_keeps_the_stored_value(tmp_path: Path) -> None:
    """A full disk is answered with an error, and reads still return the stored value."""
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


@pytest.mark.parametrize("is_first", [True, False], ids=["first", "next"])
async def test_update_that_is_not_durable_is_not_read_by_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_first: bool
) -> None:
    """The answer says that it has no effect. It fails after the file is replaced, when the folder is synced."""
    values, settings = tmp_path / "kvConfig.json", tmp_path / "namesrv.properties"
    store, live = KeyValueStore(values), LiveSettings(NameServerSettings(), settings)
    if not is_first:
        await store.put("n", "k", "kept")
        await live.update({"orderMessageEnable": "false"})

    with monkeypatch.context() as patch:
        patch.setattr(durable_files, "sync_folder", _failing)
        with pytest.raises(KeyValueError, match="injected"):
            await store.put("n", "k", "lost")
        with pytest.raises(SettingsError, match="injected"):
            await live.update({"orderMessageEnable": "true"})

    again, live_again = KeyValueStore(values), LiveSettings(NameServerSettings(), settings)
    again.load()
    live_again.load()
    assert again.get("n", "k") == store.get("n", "k") == (None if is_first else "kept")
    assert live_again.now == live.now and not live.now.order_message_enable
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".tmp")]
    await store.put("n", "k", "stored")
    await live.update({"orderMessageEnable": "true"})
    again.load()
    live_again.load()
    assert again.get("n", "k") == "stored" and live_again.now.order_message_enable


async def test_damaged_file_falls_back_to_its_predecessor(tmp_path: Path) -> None:
    """One valid predecessor is kept; with both damaged the store refuses to start instead of losing data."""
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


def test_rocketmq_key_value_file_is_read(tmp_path: Path) -> None:
    """The layout is RocketMQ's, so that the directory of a Java name server can be used."""
    path = tmp_path / "kvConfig.json"
    path.write_text('{"configTable":{"ORDER_TOPIC_CONFIG":{"T":"a:4;b:4"}}}')

    store = KeyValueStore(path)
    store.load()

    assert store.table("ORDER_TOPIC_CONFIG") == {"T": "a:4;b:4"}


def test_failed_replacement_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failure at any step, the file still has its old content."""
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
    """Comments and blank lines are skipped, the first separator splits, and surrounding spaces are removed."""
    text = "# comment\n\n a = b=c \nd:e\n! more\n"

    assert read_properties(text) == {"a": "b=c", "d": "e"}
    assert read_properties(write_properties({"x": "1", "a": "2"})) == {"a": "2", "x": "1"}
    with pytest.raises(ValueError, match="line 2"):
        read_properties("a=b\nnonsense\n")


def test_every_setting_round_trips() -> None:
    """entries_of and with_entries are inverse for every field."""
    changed = with_entries(
        NameServerSettings(), {"orderMessageEnable": "TRUE", "listenPort": "1234", "bindAddress": "127.0.0.1"}
    )

    assert changed.order_message_enable and changed.listen_port == 1234
    assert with_entries(NameServerSettings(), entries_of(changed)) == changed


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("nope=1", "unknown setting 'nope'"),
        ("listenPort=x", "listenPort=x: write a whole number"),
        ("listenPort=70000", "listenPort=70000: 0 to 65535 is allowed"),
        ("enableTopicList=1", "true or false"),
    ],
)
def test_invalid_settings_are_named(tmp_path: Path, line: str, text: str) -> None:
    """A file with an unknown key or a value out of range prevents the start."""
    path = tmp_path / "namesrv.conf"
    path.write_text(f"rocketmqHome=/opt/rocketmq\nserverWorkerThreads=8\n{line}\n")

    with pytest.raises(SettingsError, match=text):
        with_entries(NameServerSettings(), read_settings_file(path))


def test_missing_settings_file_is_named(tmp_path: Path) -> None:
    """The error contains the path that cannot be read."""
    with pytest.raises(SettingsError, match=r"nowhere\.conf"):
        read_settings_file(tmp_path / "nowhere.conf")


def test_every_updatable_key_is_documented() -> None:
    """docs/nameserver.md lists each key with its default."""
    text = (Path(__file__).resolve().parents[3] / "docs/nameserver.md").read_text(encoding="utf-8")
    defaults = entries_of(NameServerSettings())

    assert [key for key in sorted(UPDATABLE) if f"| `{key}` | `{defaults[key]}` |" not in text] == []
