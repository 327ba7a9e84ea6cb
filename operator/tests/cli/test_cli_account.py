"""`gantry --credentials FILE`: every command speaks as that account, and says what is wrong with the file."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from guarded_cluster import guarded_cluster

from gantry_cli.main import cli
from gantry_testing.accounts import ADMIN, BILLING
from gantry_testing.local import TOPIC
from gantry_wire.signatures import Credentials


def credentials_file(folder: Path, credentials: Credentials) -> str:
    path = folder / f"{credentials.access_key}.yml"
    path.write_text(f"accessKey: {credentials.access_key}\nsecretKey: {credentials.secret_key}\n")
    return str(path)


async def gantry(*words: str, **environment: str) -> Result:
    """One command, beside the loop on which the servers run."""
    return await asyncio.to_thread(CliRunner().invoke, cli, list(words), env=environment)


async def test_commands_speak_as_the_account_of_the_file(tmp_path: Path) -> None:
    """As an option or from the environment; without it, or as somebody who may not, the remedy is named."""
    async with guarded_cluster(tmp_path) as (address, _):
        admin, billing = credentials_file(tmp_path, ADMIN), credentials_file(tmp_path, BILLING)
        listing = ("topic", "list", "-n", address)

        for found in (await gantry("--credentials", admin, *listing), await gantry(*listing, GANTRY_CREDENTIALS=admin)):
            assert found.exit_code == 0 and TOPIC in found.output.split(), found.output
        for refused in (await gantry(*listing), await gantry("--credentials", billing, *listing)):
            assert refused.exit_code == 1 and "gantry --credentials FILE" in refused.output, refused.output


async def test_commands_sign_strictly_when_told_to(tmp_path: Path) -> None:
    """A strict cluster takes nothing else."""
    async with guarded_cluster(tmp_path, "STRICT") as (address, _):
        words = ("--credentials", credentials_file(tmp_path, ADMIN), "topic", "list", "-n", address)

        assert (await gantry(*words)).exit_code == 1
        assert (await gantry("--signature", "strict", *words)).exit_code == 0


@pytest.mark.parametrize(("text", "says"), [("accessKey: x\n", "secretKey is missing"), (None, "cannot read")])
async def test_a_wrong_file_is_one_line_with_its_form(tmp_path: Path, text: str | None, says: str) -> None:
    """Exit code 2: the command was typed wrongly."""
    path = tmp_path / "account.yml"
    if text is not None:
        path.write_text(text)

    result = await gantry("--credentials", str(path), "topic", "list", "-n", "127.0.0.1:1")

    assert result.exit_code == 2
    assert says in result.output and "accessKey: NAME" in result.output and result.output.count("\n") == 1
