"""A file of accounts mounted by Kubernetes, and other files in its place."""

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from gantry_access import Credentials, OwnAccount, SignatureKind, read_credentials, signer
from gantry_access.account_file import AccountFile
from gantry_access.settings import AccessMode
from gantry_nameserver.server import NameServer
from gantry_nameserver.settings import NameServerSettings
from gantry_remoting import Channel
from gantry_testing.accounts import ACCOUNTS, ADMIN, write_accounts
from gantry_wire import Command, RequestCode, ResponseCode
from gantry_wire.signatures import ACCESS_KEY


async def answer(server: NameServer, credentials: Credentials) -> int:
    channel = await Channel.connect(f"127.0.0.1:{server.port}", sign=signer(credentials))
    try:
        return (await channel.request(Command(code=RequestCode.GET_NAMESRV_CONFIG), 30_000)).code
    finally:
        await channel.close()


async def test_name_server_reloads_mounted_account_file(tmp_path: Path) -> None:
    """After the link `..data` moves, the old secret is denied and the new one accepted."""
    changed = Credentials(ADMIN.access_key, "another-secret")
    for name, text in (("one", ACCOUNTS), ("two", ACCOUNTS.replace("admin-secret", "another-secret"))):
        (tmp_path / name).mkdir()
        write_accounts(tmp_path / name / "plain_acl.yml", text)
    (tmp_path / "..data").symlink_to("one")
    (tmp_path / "mounted.yml").symlink_to("..data/plain_acl.yml")
    settings = NameServerSettings(
        bind_address="127.0.0.1", listen_port=0, acl_enable=True, acl_file=str(tmp_path / "mounted.yml")
    )
    server = NameServer(settings, tmp_path / "ns")
    await server.start()
    assert await answer(server, ADMIN) == 0 and await answer(server, changed) == ResponseCode.NO_PERMISSION

    (tmp_path / "..data_tmp").symlink_to("two")
    (tmp_path / "..data_tmp").replace(tmp_path / "..data")

    for _ in range(600):
        if await answer(server, changed) == 0:
            break
        await asyncio.sleep(0.05)
    assert await answer(server, changed) == 0
    assert await answer(server, ADMIN) == ResponseCode.NO_PERMISSION
    await server.close()


for_each_unusable_file = pytest.mark.parametrize(
    "corrupt",
    [lambda path: path.mkdir(), os.mkfifo, lambda path: path.symlink_to("/dev/zero"), lambda path: path.touch()],
    ids=["a directory", "a pipe", "an endless device", "empty"],
)


@for_each_unusable_file
async def test_unusable_account_file_changes_nothing(tmp_path: Path, corrupt: Callable[[Path], None]) -> None:
    """Reading does not wait for a pipe or exhaust memory, and the accounts stay the same."""
    path = tmp_path / "plain_acl.yml"
    write_accounts(path, ACCOUNTS)
    file = AccountFile(str(path), AccessMode.V1)
    file.load()
    before = file.accounts
    path.unlink()
    corrupt(path)

    async with asyncio.timeout(120):
        await file.refresh()

    assert file.fault is not None and str(path) in file.fault
    assert file.accounts is before


@for_each_unusable_file
async def test_unusable_credentials_file_changes_nothing(tmp_path: Path, corrupt: Callable[[Path], None]) -> None:
    """The server keeps signing as before, and reading does not wait for a pipe or exhaust memory."""
    path = tmp_path / "account.yml"
    path.write_text(f"accessKey: {ADMIN.access_key}\nsecretKey: {ADMIN.secret_key}\n")
    account = OwnAccount(str(path))
    path.unlink()
    corrupt(path)

    async with asyncio.timeout(120):
        await account.refresh()

    assert (account.credentials, account.previous) == (ADMIN, None)


def test_command_waits_for_the_writer_of_a_pipe(tmp_path: Path) -> None:
    """`gantry --credentials <(vault read ...)`: the writer of the pipe may be slower than the reader."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    text = f"accessKey: {ADMIN.access_key}\nsecretKey: {ADMIN.secret_key}\n"
    writer = threading.Thread(daemon=True, target=path.write_text, args=(text,))
    reader = threading.Thread(daemon=True, target=lambda: found.append(read_credentials(path)))
    found: list[Credentials] = []
    reader.start()
    writer.start()
    reader.join(120)
    writer.join(120)

    assert found == [ADMIN]


@pytest.mark.parametrize("kind", list(SignatureKind))
async def test_signer_of_an_account_follows_its_file(tmp_path: Path, kind: SignatureKind) -> None:
    """A connection that is already open signs with the new account; the twin with fixed credentials does not."""
    path = tmp_path / "account.yml"
    path.write_text("accessKey: first-key\nsecretKey: first-secret\n")
    account = OwnAccount(str(path))
    following, fixed = signer(account, kind), signer(account.credentials, kind)
    assert following is not None
    assert fixed is not None
    path.write_text("accessKey: second-key\nsecretKey: second-secret\n")
    await account.refresh()
    requests = [Command(code=10, ext={"topic": "orders"}) for _ in range(2)]

    following(requests[0])
    fixed(requests[1])

    assert [request.ext[ACCESS_KEY] for request in requests] == ["second-key", "first-key"]
