"""The file of accounts over time: polled by content, never half taken, and a broken one changes nothing."""

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
def file(path: Path) -> AccountFile:
    one = AccountFile(str(path), AccessMode.V1)
    one.load()
    return one


def test_a_missing_or_broken_file_refuses_the_start(tmp_path: Path) -> None:
    """There is nobody to fall back to."""
    with pytest.raises(AccessFileError, match=r"cannot read .*gone.yml: No such file"):
        AccountFile(str(tmp_path / "gone.yml"), AccessMode.V1).load()
    write_accounts(tmp_path / "broken.yml", "accounts: x\n")
    with pytest.raises(AccessFileError, match=r"broken.yml: accounts is a list"):
        AccountFile(str(tmp_path / "broken.yml"), AccessMode.V1).load()


async def test_a_change_is_taken_whatever_the_clock_of_the_file_says(file: AccountFile, path: Path) -> None:
    """Same size, same inode, same times: the content decides."""
    times = os.stat(path)
    write_accounts(path, ACCOUNTS.replace("orders-secret", "Orders-secret"))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))

    await file.refresh()

    assert file.accounts.by_key["orders-key"].secret == b"Orders-secret"


async def test_an_unchanged_file_leaves_the_very_accounts(file: AccountFile) -> None:
    """Nothing is parsed or replaced when nothing has changed."""
    accounts = file.accounts

    await file.refresh()

    assert file.accounts is accounts


@pytest.mark.parametrize("text", ["accounts: x\n", "", None], ids=["broken", "empty", "gone"])
async def test_a_file_that_cannot_be_used_changes_nothing(
    file: AccountFile, path: Path, text: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """The old accounts stay, one line says why, and a file that can be used again is taken."""
    accounts = file.accounts
    if text is None:
        os.unlink(path)
    else:
        write_accounts(path, text)

    with caplog.at_level(logging.ERROR):
        await file.refresh()
        await file.refresh()

    assert file.accounts is accounts and file.fault is not None
    assert len(caplog.records) == 1 and "those from before stay" in caplog.text
    write_accounts(path, ACCOUNTS.replace("orders-key", "renamed-key"))
    await file.refresh()
    assert str(file.fault) == "None"
    assert "renamed-key" in file.accounts.by_key


async def test_no_line_in_the_log_holds_a_secret(
    file: AccountFile, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither a good nor a broken file puts a secret into the log."""
    with caplog.at_level(logging.DEBUG):
        write_accounts(path, ACCOUNTS.replace("admin: true", "admin: orders-secret"))
        await file.refresh()
        write_accounts(path, ACCOUNTS + "orders-secret\n")
        await file.refresh()
        write_accounts(path, ACCOUNTS.replace("admin-key", "ADMIN-key"))
        await file.refresh()

    said = " ".join(f"{record.getMessage()} {record.__dict__}" for record in caplog.records)
    assert "accounts changed" in said and "-secret" not in said
