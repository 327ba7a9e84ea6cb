"""The file of accounts over time: polled by content, loaded as a whole, and unaffected by a broken file."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from gantry_access import AccessFileError, AccessMode, AccountFile
from gantry_testing.accounts import ACCOUNTS, write_accounts


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_accounts(tmp_path / "plain_acl.yml")


@pytest.fixture
def account_file(path: Path) -> AccountFile:
    one = AccountFile(str(path), AccessMode.V1)
    one.load()
    return one


def test_missing_or_broken_account_file_prevents_start(tmp_path: Path) -> None:
    """At the start there are no previous accounts to fall back to."""
    with pytest.raises(AccessFileError, match=r"cannot read .*gone.yml: No such file"):
        AccountFile(str(tmp_path / "gone.yml"), AccessMode.V1).load()
    write_accounts(tmp_path / "broken.yml", "accounts: x\n")
    with pytest.raises(AccessFileError, match=r"broken.yml: accounts must be a list"):
        AccountFile(str(tmp_path / "broken.yml"), AccessMode.V1).load()


async def test_change_is_detected_by_content(account_file: AccountFile, path: Path) -> None:
    """A change with the same size, inode and times is detected, because the content is compared."""
    times = os.stat(path)
    write_accounts(path, ACCOUNTS.replace("orders-secret", "Orders-secret"))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))

    await account_file.refresh()

    assert account_file.accounts.by_key["orders-key"].secret == b"Orders-secret"


async def test_unchanged_file_is_not_reloaded(account_file: AccountFile) -> None:
    """Nothing is parsed or replaced if the content has not changed."""
    accounts = account_file.accounts

    await account_file.refresh()

    assert account_file.accounts is accounts


@pytest.mark.parametrize("text", ["accounts: x\n", "", None], ids=["broken", "empty", "gone"])
async def test_unusable_file_keeps_previous_accounts(
    account_file: AccountFile, path: Path, text: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """The previous accounts stay, one line gives the reason, and a usable file is loaded again."""
    accounts = account_file.accounts
    if text is None:
        os.unlink(path)
    else:
        write_accounts(path, text)

    with caplog.at_level(logging.ERROR):
        await account_file.refresh()
        await account_file.refresh()

    assert account_file.accounts is accounts and account_file.fault is not None
    assert len(caplog.records) == 1 and "keeping the previous accounts" in caplog.text
    write_accounts(path, ACCOUNTS.replace("orders-key", "renamed-key"))
    await account_file.refresh()
    assert str(account_file.fault) == "None"
    assert "renamed-key" in account_file.accounts.by_key


async def test_log_contains_no_secret(account_file: AccountFile, path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Neither a valid nor a broken file puts a secret into the log."""
    with caplog.at_level(logging.DEBUG):
        write_accounts(path, ACCOUNTS.replace("admin: true", "admin: orders-secret"))
        await account_file.refresh()
        write_accounts(path, ACCOUNTS + "orders-secret\n")
        await account_file.refresh()
        write_accounts(path, ACCOUNTS.replace("admin-key", "ADMIN-key"))
        await account_file.refresh()

    log_text = " ".join(f"{record.getMessage()} {record.__dict__}" for record in caplog.records)
    assert "accounts reloaded" in log_text and "-secret" not in log_text
