"""The harness of the test cluster, as far as it can be tested without making one."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from cryptography import x509
from gantry_cluster import journal as journals
from gantry_cluster import programs, provisioner
from gantry_cluster.api import Object
from gantry_cluster.certificates import Authority
from gantry_cluster.commands import run, wait_until
from gantry_cluster.errors import ClusterError, CommandFailed, DeadlineExceeded
from gantry_cluster.images import write_archive
from gantry_cluster.journal import Journal
from gantry_cluster.paths import MODULE, Folder
from gantry_cluster.processes import Process, child_of, start_detached

ENDLESS = "import signal; signal.pause()"


def test_all_parts_of_kubernetes_have_one_version() -> None:
    """Every published part has the minor and patch version of the whole: v1.34.4 goes only with v0.34.4."""
    text = (MODULE / "go.mod").read_text()
    replaced = dict(re.findall(r"^\t(k8s\.io/\S+) => \1 (v\S+)$", text, re.MULTILINE))

    assert set(replaced.values()) == {programs.kubernetes_version().replace("v1.", "v0.", 1)}
    assert len(replaced) > 25
    assert set(programs.PACKAGES.values()) >= set(re.findall(r"^\t(k8s\.io/kubernetes/cmd/\S+)$", text, re.MULTILINE))


def test_another_compiler_gives_another_set_of_programs() -> None:
    """Programs are kept under a name of everything that determines them."""
    assert programs.set_name("go1.26.0") != programs.set_name("go1.26.1")
    assert programs.set_name("go1.26.0").startswith(f"{programs.kubernetes_version()}-")


@pytest.mark.parametrize("hidden", ["/run/x", "/var/lib/x", "/var/log/x", "/proc/x", "/sys/x"])
def test_folder_that_nodes_cannot_see_is_refused(hidden: str) -> None:
    """A node has its own mounts there, so a cluster in such a folder would not find its files."""
    with pytest.raises(ClusterError, match="every node has"):
        Folder.at(Path(hidden))


def test_an_administrators_certificate_names_user_group_and_issuer(tmp_path: Path) -> None:
    """Kubernetes reads the user from the certificate, and only the owner can read the key."""
    authority = Authority(tmp_path / "keys")
    pair = authority.issue("someone", "jane", ["system:masters"], ["10.0.0.1", "name.test"])
    certificate = x509.load_pem_x509_certificate(pair.certificate.read_bytes())
    issuer = x509.load_pem_x509_certificate(authority.pair.certificate.read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value

    certificate.verify_directly_issued_by(issuer)
    assert certificate.subject.rfc4514_string() == "CN=jane,O=system:masters"
    assert names.get_values_for_type(x509.DNSName) == ["name.test"]
    assert pair.key.stat().st_mode & 0o077 == 0


def test_image_of_one_file_is_complete(tmp_path: Path) -> None:
    """The archive's list refers to the configuration and the layer, and the layer holds the executable program."""
    program = tmp_path / "program"
    program.write_bytes(b"\x7fELF")
    write_archive(tmp_path / "image.tar", "name:1", {"/program": program}, ["/program"], "x86_64")

    with tarfile.open(tmp_path / "image.tar") as archive:
        listed = archive.extractfile("manifest.json")
        assert listed is not None
        [image] = json.load(listed)
        configuration, layer = archive.extractfile(image["Config"]), archive.extractfile(image["Layers"][0])
        assert configuration is not None and layer is not None
        assert json.load(configuration)["architecture"] == "amd64"
        with tarfile.open(fileobj=layer) as files:
            assert [(file.name, file.mode) for file in files] == [("program", 0o755)]
    assert image["RepoTags"] == ["name:1"]


def claim(**fields: object) -> Object:
    """Return a claim that waits for a volume on node2."""
    return {
        "metadata": {"name": "c", "namespace": "n", "uid": "u", "annotations": {provisioner.SELECTED_NODE: "node2"}},
        "spec": {
            "storageClassName": provisioner.CLASS,
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
            **fields,
        },
        "status": {"phase": "Pending"},
    }


def test_claim_gets_a_volume_only_on_the_node_of_its_pod(tmp_path: Path) -> None:
    """A volume is bound to the node that was chosen and to its claim; claims of other classes are ignored."""
    volume = provisioner.volume_for(claim(), tmp_path / "pvc-u")["spec"]
    [term] = volume["nodeAffinity"]["required"]["nodeSelectorTerms"]

    assert provisioner.is_wanted(claim())
    assert not provisioner.is_wanted(claim(storageClassName="other"))
    assert not provisioner.is_wanted(claim(volumeName="pvc-u"))
    assert term["matchExpressions"][0]["values"] == ["node2"]
    assert (volume["claimRef"]["uid"], volume["local"]["path"]) == ("u", str(tmp_path / "pvc-u"))


@pytest.mark.parametrize(
    ("policy", "by", "phase"),
    [("Retain", "", "Released"), ("Delete", "another provisioner", "Released"), ("Delete", "", "Bound")],
    ids=["kept", "foreign", "used"],
)
def test_volume_that_is_used_foreign_or_retained_stays(policy: str, by: str, phase: str) -> None:
    """Only a released volume of ours with the policy Delete is deleted."""

    def volume(policy: str, by: str, phase: str) -> Object:
        annotations = {provisioner.MADE_BY: by or provisioner.PROVISIONER}
        spec: Object = {"persistentVolumeReclaimPolicy": policy}
        return {"metadata": {"annotations": annotations}, "spec": spec, "status": {"phase": phase}}

    assert not provisioner.is_spent(volume(policy, by, phase))
    assert provisioner.is_spent(volume("Delete", "", "Released"))


def test_reused_process_id_is_not_killed(tmp_path: Path) -> None:
    """A process is its id and its start time; `undo` kills the recorded process and no other."""
    with subprocess.Popen([sys.executable, "-c", ENDLESS]) as child:
        real = Process.of(child.pid)
        assert real is not None
        journal = Journal(tmp_path)

        journal.process(Process(real.pid, real.started - 1))
        assert journal.undo() == []
        assert real.is_alive()

        journal.process(real)
        assert journal.undo() == []
        assert not real.is_alive()


def test_undo_runs_backwards_and_may_run_twice(tmp_path: Path) -> None:
    """The last change is undone first; a change that is gone already is no error; then the journal is empty."""
    journal = Journal(tmp_path)
    journal.folder(tmp_path / "outer")
    journal.folder(tmp_path / "outer" / "inner")

    assert Journal(tmp_path).undo() == []
    assert not (tmp_path / "outer").exists()
    assert Journal(tmp_path).undo() == []


def test_change_that_cannot_be_undone_is_reported_and_kept(tmp_path: Path) -> None:
    """A change that cannot be undone stays in the journal, so that `down` can be tried again."""
    journal = Journal(tmp_path)
    journal.folder(tmp_path / "full")
    (tmp_path / "full" / "foreign").touch()

    [failure] = journal.undo()
    assert "full" in failure
    (tmp_path / "full" / "foreign").unlink()

    assert journal.undo() == []
    assert not (tmp_path / "full").exists()


def test_journal_of_another_boot_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a restart of the machine, process ids and settings have other meanings, so nothing is undone."""
    Journal(tmp_path).folder(tmp_path / "made")
    boot = tmp_path / "boot"
    boot.write_text("another\n")
    monkeypatch.setattr(journals, "BOOT", boot)

    assert Journal(tmp_path).undo() == []
    assert (tmp_path / "made").exists()


def test_detached_program_has_its_own_session_and_log(tmp_path: Path) -> None:
    """A program that must outlive us does not end with our terminal, and its output can be read."""
    program = f"import os, subprocess, sys; print(os.getsid(0) == os.getpid(), flush=True); {ENDLESS}"
    pid = start_detached([sys.executable, "-c", program], tmp_path / "log")
    process = Process.of(pid)
    assert process is not None
    journal = Journal(tmp_path)
    journal.process(process)

    wait_until("its words", lambda: (tmp_path / "log").read_text() == "True\n", 120)
    assert child_of(pid) is None
    assert journal.undo() == []
    os.waitpid(pid, 0)


def test_failing_command_is_reported_with_its_output() -> None:
    """An error names the command and its output; a hanging command is killed."""
    with pytest.raises(CommandFailed, match=r"sys\.exit.* ended with 1: no such thing"):
        run(sys.executable, "-c", "import sys; sys.exit('no such ' 'thing')")
    with pytest.raises(DeadlineExceeded):
        run(sys.executable, "-c", ENDLESS, seconds_max=0.2)
