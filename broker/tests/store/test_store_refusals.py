"""Texts that refuse a start name remedies, and with each of them the broker starts with its messages."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from gantry_broker.app import Broker
from gantry_broker.errors import BrokerError
from gantry_broker.ports import RealDisk, SystemClock
from gantry_broker.setting_keys import broker_settings
from gantry_testing.local import dialogue, local_conf

LOG_SIZE = 128 * 1024
BODY = b"x" * 2_000
COUNT = 150
Conf = dict[str, str]


@pytest.fixture
def memory() -> Iterator[Path]:
    """A directory for write buffers, on tmpfs."""
    with TemporaryDirectory(dir="/dev/shm") as path:
        yield Path(path)


@asynccontextmanager
async def running(conf: Conf) -> AsyncIterator[Broker]:
    broker = Broker(broker_settings(conf), disk=RealDisk(), clock=SystemClock())
    await broker.start()
    try:
        yield broker
    finally:
        await broker.close()


async def reason_of(conf: Conf) -> str:
    """Return why a start is refused."""
    with pytest.raises(BrokerError) as refused:
        await Broker(broker_settings(conf), disk=RealDisk(), clock=SystemClock()).start()
    return str(refused.value)


async def count_served(conf: Conf) -> int:
    """Start a broker that is not refused. Return how many messages it serves; it also accepts one."""
    async with running(conf) as broker, dialogue(broker) as peer:
        found, offset = 0, 0
        while messages := await peer.read(offset):
            found += len(messages)
            offset = messages[-1].queue_offset + 1
        await peer.send_ok(b"after")
    return found


def store(conf: Conf) -> Path:
    return Path(conf["storePathRootDir"])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def flip_both(name: str) -> Callable[[Conf], None]:
    """Damage a file and its copy."""

    def damage(conf: Conf) -> None:
        for one in (name, f"{name}.bak"):
            flip(store(conf) / one)

    return damage


def unknown_setting(conf: Conf) -> None:
    document = b'{"settings": {"brokerName": "another"}, "dataVersion": {"counter": 1, "timestamp": 1}}'
    (store(conf) / "config/liveSettings.json").write_bytes(document)
    (store(conf) / "config/liveSettings.json.bak").write_bytes(document)


def damage_promise(conf: Conf) -> None:
    for name in ("promise.json", "promise.json.bak"):
        (store(conf) / name).write_bytes(b"00000000\n{}")


def cut_middle(conf: Conf) -> None:
    path = store(conf) / f"commitlog/{LOG_SIZE:020d}"
    path.write_bytes(path.read_bytes()[:70_000])


def strange_file(conf: Conf) -> None:
    (store(conf) / "commitlog/00000000000000000100").write_bytes(bytes(LOG_SIZE))


def with_setting(key: str, value: str) -> Callable[[Conf], None]:
    def damage(conf: Conf) -> None:
        conf[key] = value

    return damage


def pool_nowhere(conf: Conf) -> None:
    conf |= {"transientStorePoolEnable": "true", "transientStorePoolPath": str(store(conf) / "store.json")}
    conf["transientStorePoolSize"] = "2"


def replace_checkpoint_by_a_directory(conf: Conf) -> None:
    (store(conf) / "checkpoint").unlink()
    (store(conf) / "checkpoint").mkdir()


# -- remedies, from the text alone -------------------------------------------------------------------------------------


def set_named_setting(conf: Conf, text: str, backup: Path) -> None:
    settings = re.findall(r"(?:set|or) (\w+)=(\w+)", text)
    assert settings, text
    conf.update(dict(settings))


def leave_out(conf: Conf, text: str, backup: Path) -> None:
    match = re.search(r"leave out (\w+) and (\w+)", text)
    assert match is not None, text
    for key in match.groups():
        del conf[key]


def name_another(conf: Conf, text: str, directory: Path) -> None:
    assert "name another directory in transientStorePoolPath" in text, text
    conf["transientStorePoolPath"] = str(directory)


def remove_named_files(conf: Conf, text: str, backup: Path) -> None:
    pairs = re.findall(r"(?:delete|[Rr]emove|move) (/[^\s:,;]+)(?: and (/[^\s:,;]+))?", text)
    found = [Path(one) for pair in pairs for one in pair if one]
    assert found, text
    for path in found:
        assert path.is_relative_to(store(conf)), text
        path.rename(path.with_name(f"{path.name}.away")) if path.is_file() else path.rename(store(conf) / "away")


def put_back(conf: Conf, text: str, backup: Path) -> None:
    assert re.search(r"Put (back|a copy of the file back)", text), text
    names = [Path(one) for one in re.findall(r"(/[^\s:,;]+?)[:,;.]*(?=\s|$)", text)]
    name = next(path.relative_to(store(conf)) for path in names if (backup / path.relative_to(store(conf))).is_file())
    (store(conf) / name).write_bytes((backup / name).read_bytes())


def truncate_named_file(conf: Conf, text: str, backup: Path) -> None:
    match = re.search(r"'truncate -s (\d+) (\S+)'", text)
    assert match is not None, text
    path = Path(match[2])
    path.write_bytes(path.read_bytes().ljust(int(match[1]), b"\0"))


def repair_it(conf: Conf, text: str, backup: Path) -> None:
    assert "repair that and start again" in text and "checkpoint" in text, text
    (store(conf) / "checkpoint").rmdir()


CASES: dict[str, tuple[Callable[[Conf], None], list[Callable[[Conf, str, Path], None]], int]] = {
    "size of log files": (with_setting("mappedFileSizeCommitLog", str(2 * LOG_SIZE)), [set_named_setting], COUNT),
    "size of queue files": (
        with_setting("mappedFileSizeConsumeQueue", "40000"),
        [set_named_setting, remove_named_files],
        COUNT,
    ),
    "truncated log file": (cut_middle, [put_back, truncate_named_file], COUNT),
    "log file at a strange place": (strange_file, [remove_named_files], COUNT),
    "identity": (flip_both("store.json"), [put_back, remove_named_files], COUNT),
    "damaged promise": (damage_promise, [remove_named_files], COUNT),
    "settings changed at run time": (unknown_setting, [remove_named_files], COUNT),
    "table": (flip_both("config/topics.json"), [put_back], COUNT),
    "write buffers": (pool_nowhere, [leave_out, name_another], COUNT),
    "the disk": (replace_checkpoint_by_a_directory, [repair_it], COUNT),
}


@pytest.mark.parametrize(
    ("case", "remedy"), [(name, number) for name, (_, remedies, _) in CASES.items() for number in range(len(remedies))]
)
async def test_remedy_named_by_a_refused_start_works(tmp_path: Path, case: str, remedy: int, memory: Path) -> None:
    """Each remedy of each text is applied to a copy of the same damage, and works."""
    conf = local_conf(tmp_path / "store", mappedFileSizeCommitLog=str(LOG_SIZE), maxMessageSize="65536")
    async with running(conf) as broker, dialogue(broker) as peer:
        for _ in range(COUNT):
            await peer.send_ok(BODY)
    backup = tmp_path / "backup"
    for path in store(conf).rglob("*"):
        if path.is_file():
            (backup / path.relative_to(store(conf))).parent.mkdir(parents=True, exist_ok=True)
            (backup / path.relative_to(store(conf))).write_bytes(path.read_bytes())
    damage, remedies, expected = CASES[case]
    damage(conf)

    text = await reason_of(conf)
    assert await reason_of(conf) == text, "expected the same refusal at the next start"
    remedies[remedy](conf, text, memory if remedies[remedy] is name_another else backup)

    served = await count_served(conf)
    assert served == expected if remedies[remedy] is not truncate_named_file else 0 < served < expected


async def test_store_in_use_is_free_after_the_other_process_stops(tmp_path: Path, memory: Path) -> None:
    """A store and its write buffers can be used when the other process has stopped."""
    conf = local_conf(tmp_path / "store")
    async with AsyncExitStack() as first:
        await first.enter_async_context(running(conf))
        assert "stop it first" in await reason_of(local_conf(tmp_path / "store"))
    assert await count_served(conf) == 0

    pool = {"transientStorePoolEnable": "true", "transientStorePoolPath": str(memory), "transientStorePoolSize": "2"}
    conf = local_conf(tmp_path / "one") | pool
    async with AsyncExitStack() as first:
        await first.enter_async_context(running(conf))
        assert "stop it first" in await reason_of(local_conf(tmp_path / "two") | pool)
    assert await count_served(local_conf(tmp_path / "two") | pool) == 0
