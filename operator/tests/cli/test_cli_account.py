"""`gantry --credentials FILE`: commands use the account, and report an invalid file."""

from __future__ import annotations

import asyncio
import importlib.util
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from guarded_cluster import guarded_cluster

from gantry_cli import pipeline
from gantry_cli.main import cli
from gantry_testing.accounts import ADMIN, BILLING
from gantry_testing.local import TOPIC
from gantry_wire.signatures import Credentials


def credentials_file(folder: Path, credentials: Credentials) -> str:
    path = folder / f"{credentials.access_key}.yml"
    path.write_text(f"accessKey: {credentials.access_key}\nsecretKey: {credentials.secret_key}\n")
    return str(path)


async def gantry(*words: str, **environment: str) -> Result:
    """Run one command in a thread, since the servers run on this event loop."""
    return await asyncio.to_thread(CliRunner().invoke, cli, list(words), env=environment)


async def test_commands_use_the_account_of_the_credentials_file(tmp_path: Path) -> None:
    """The account comes from the option or the environment; without permission the error names the option."""
    async with guarded_cluster(tmp_path) as (address, _):
        admin, billing = credentials_file(tmp_path, ADMIN), credentials_file(tmp_path, BILLING)
        listing = ("topic", "list", "-n", address)

        for found in (await gantry("--credentials", admin, *listing), await gantry(*listing, GANTRY_CREDENTIALS=admin)):
            assert found.exit_code == 0 and TOPIC in found.output.split(), found.output
        for refused in (await gantry(*listing), await gantry("--credentials", billing, *listing)):
            assert refused.exit_code == 1 and "gantry --credentials FILE" in refused.output, refused.output


async def test_signature_strict_signs_strictly(tmp_path: Path) -> None:
    """A cluster with strict access control refuses other signatures."""
    async with guarded_cluster(tmp_path, "STRICT") as (address, _):
        words = ("--credentials", credentials_file(tmp_path, ADMIN), "topic", "list", "-n", address)

        assert (await gantry(*words)).exit_code == 1
        assert (await gantry("--signature", "strict", *words)).exit_code == 0


async def test_pipeline_gets_the_account_and_the_signature(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job runs in a process of its own, which reads both from its environment."""
    path = credentials_file(tmp_path, ADMIN)
    jobs: list[tuple[list[str], str | None, str | None]] = []

    def run(words: list[str]) -> int:
        jobs.append((words[3:], os.environ.get("GANTRY_CREDENTIALS"), os.environ.get("GANTRY_SIGNATURE")))
        return 0

    monkeypatch.setattr(importlib.util, "find_spec", lambda _: True)  # the packages are not needed
    monkeypatch.setattr(pipeline, "_run", run)
    for signature, inherited in (("strict", "v1"), ("v1", "strict")):
        words = ("--credentials", path, "--signature", signature, "pipeline", "archive", "--once")
        result = await gantry(*words, GANTRY_CREDENTIALS="", GANTRY_SIGNATURE=inherited, GANTRY_NAMESRV="")
        assert result.exit_code == 0, result.output

    assert jobs == [(["archive", "--once"], path, "strict"), (["archive", "--once"], path, "v1")]


@pytest.mark.parametrize(("text", "problem"), [("accessKey: x\n", "secretKey is missing"), (None, "cannot read")])
async def test_invalid_credentials_file_is_reported_in_one_line(tmp_path: Path, text: str | None, problem: str) -> None:
    """The exit code is 2, invalid usage, and the error shows the expected format."""
    path = tmp_path / "account.yml"
    if text is not None:
        path.write_text(text)

    result = await gantry("--credentials", str(path), "topic", "list", "-n", "127.0.0.1:1")

    assert result.exit_code == 2
    assert problem in result.output and "accessKey: NAME" in result.output and result.output.count("\n") == 1
