"""Programs of Kubernetes are built one by one, once, and are whole or absent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from gantry_cluster.errors import CommandFailed
from gantry_cluster.programs import ALONE, BUILD_ATTEMPTS, PACKAGES, programs

from gantry_testing.programs import kubernetes_program

GO = """#!/bin/sh
# go -C MODULE env GOVERSION, or go -C MODULE build -ldflags FLAGS -o TARGET PACKAGE
[ "$3" = build ] || { echo "$PRETENDED_GO"; exit; }
echo "$8" >>"$PRETENDED_LOG"
echo half >"$7"
[ "$8" != "$PRETENDED_FAILURE" ] || exit 1
echo whole >"$7"
"""


class Pretended:
    """A compiler that compiles nothing, and remembers what it was asked for."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.cache, self.patch, self._log = folder / "cache", patch, folder / "log"
        (folder / "bin").mkdir()
        (folder / "bin" / "go").write_text(GO)
        (folder / "bin" / "go").chmod(0o755)
        patch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")
        patch.setenv("GANTRY_CLUSTER_CACHE", str(self.cache))
        patch.setenv("PRETENDED_LOG", str(self._log))
        patch.setenv("PRETENDED_FAILURE", "nothing")
        self.version("go1.99.0")

    def version(self, name: str) -> None:
        """Of the compiler from now on."""
        self.patch.setenv("PRETENDED_GO", name)

    def built(self) -> list[str]:
        """What it was asked for since it was asked last."""
        found = self._log.read_text().split() if self._log.exists() else []
        self._log.unlink(missing_ok=True)
        return found


@pytest.fixture
def pretended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pretended:
    """In place of the real one, with an empty cache."""
    return Pretended(tmp_path, monkeypatch)


def say(_text: str) -> None:
    """To nobody."""


def test_whoever_needs_a_few_builds_no_others(pretended: Pretended) -> None:
    """The rest is built beside them when it is wanted, and nothing twice."""
    few = programs(say, ALONE)
    assert pretended.built() == [PACKAGES[name] for name in ALONE]
    assert kubernetes_program("etcd") == few["etcd"] and kubernetes_program("kubelet") is None

    programs(say, ALONE)
    assert pretended.built() == []
    every = programs(say)

    assert every.folder == few.folder
    assert sorted(pretended.built()) == sorted(set(PACKAGES.values()) - {PACKAGES[name] for name in ALONE})
    assert {path.name for path in every.folder.iterdir()} == set(PACKAGES)
    assert os.access(every["kubelet"], os.X_OK)


def test_a_program_that_was_not_finished_is_not_there(pretended: Pretended) -> None:
    """A build is tried a few times; what it leaves is no program, and those before it stay."""
    pretended.patch.setenv("PRETENDED_FAILURE", PACKAGES["kube-apiserver"])

    with pytest.raises(CommandFailed):
        programs(say, ALONE)

    assert pretended.built() == [PACKAGES["etcd"], *[PACKAGES["kube-apiserver"]] * BUILD_ATTEMPTS]
    assert kubernetes_program("kube-apiserver") is None
    found = kubernetes_program("etcd")
    assert found is not None and found.read_text() == "whole\n"
    pretended.patch.setenv("PRETENDED_FAILURE", "nothing")
    programs(say, ALONE)
    assert pretended.built() == [PACKAGES["kube-apiserver"], PACKAGES["helm"]]


def test_another_compiler_makes_another_set(pretended: Pretended) -> None:
    """Nothing is replaced under a cluster that runs; tests take what was built last."""
    first = programs(say, ["etcd"])
    pretended.version("go2.0.0")
    second = programs(say, ["etcd"])
    os.utime(first["etcd"], (1, 1))

    assert first.folder != second.folder and first["etcd"].exists()
    assert kubernetes_program("etcd") == second["etcd"]
