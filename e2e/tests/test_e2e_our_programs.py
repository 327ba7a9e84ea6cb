"""Programs of Kubernetes are built one by one, once, and are complete or absent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from gantry_cluster.errors import CommandFailed
from gantry_cluster.programs import ALONE, BUILD_ATTEMPTS, NODES, PACKAGES, programs

from gantry_testing.programs import kubernetes_program

GO = """#!/bin/sh
# go -C MODULE env GOVERSION, or go -C MODULE build -ldflags FLAGS -o TARGET PACKAGE
[ "$3" = build ] || { echo "$FAKE_GO"; exit; }
echo "$8" >>"$FAKE_LOG"
echo half >"$7"
[ "$8" != "$FAKE_FAILURE" ] || exit 1
echo whole >"$7"
"""


class FakeCompiler:
    """A compiler that compiles nothing, and records its calls."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.cache, self.patch, self._log = folder / "cache", patch, folder / "log"
        (folder / "bin").mkdir()
        (folder / "bin" / "go").write_text(GO)
        (folder / "bin" / "go").chmod(0o755)
        patch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")
        patch.setenv("GANTRY_CLUSTER_CACHE", str(self.cache))
        patch.setenv("FAKE_LOG", str(self._log))
        patch.setenv("FAKE_FAILURE", "nothing")
        self.version("go1.99.0")

    def version(self, name: str) -> None:
        """Change the version of the compiler."""
        self.patch.setenv("FAKE_GO", name)

    def built(self) -> list[str]:
        """Return the builds since the last call."""
        found = self._log.read_text().split() if self._log.exists() else []
        self._log.unlink(missing_ok=True)
        return found


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeCompiler:
    """The fake compiler in place of the real one, with an empty cache."""
    return FakeCompiler(tmp_path, monkeypatch)


def discard_report(_text: str) -> None:
    """Discard a progress message of a build."""


def test_only_requested_programs_are_built(compiler: FakeCompiler) -> None:
    """The others are built later when they are requested, and none is built twice."""
    few = programs(discard_report, ALONE)
    assert compiler.built() == [PACKAGES[name] for name in ALONE]
    assert kubernetes_program("etcd") == few["etcd"] and kubernetes_program("kubelet") is None

    programs(discard_report, ALONE)
    assert compiler.built() == []
    every = programs(discard_report)

    assert every.folder == few.folder
    assert sorted(compiler.built()) == sorted(PACKAGES[name] for name in set(NODES) - set(ALONE))
    assert {path.name for path in every.folder.iterdir()} == set(NODES)
    assert os.access(every["kubelet"], os.X_OK)


def test_failed_build_leaves_no_program(compiler: FakeCompiler) -> None:
    """A build is retried a few times; its remains are no program, and earlier programs stay."""
    compiler.patch.setenv("FAKE_FAILURE", PACKAGES["kube-apiserver"])

    with pytest.raises(CommandFailed):
        programs(discard_report, ALONE)

    assert compiler.built() == [PACKAGES["etcd"], *[PACKAGES["kube-apiserver"]] * BUILD_ATTEMPTS]
    assert kubernetes_program("kube-apiserver") is None
    found = kubernetes_program("etcd")
    assert found is not None and found.read_text() == "whole\n"
    compiler.patch.setenv("FAKE_FAILURE", "nothing")
    programs(discard_report, ALONE)
    assert compiler.built() == [PACKAGES[name] for name in ALONE[1:]]


def test_another_compiler_builds_another_set(compiler: FakeCompiler) -> None:
    """No program of a running cluster is replaced; tests use the set that was built last."""
    first = programs(discard_report, ["etcd"])
    compiler.version("go2.0.0")
    second = programs(discard_report, ["etcd"])
    os.utime(first["etcd"], (1, 1))

    assert first.folder != second.folder and first["etcd"].exists()
    assert kubernetes_program("etcd") == second["etcd"]
