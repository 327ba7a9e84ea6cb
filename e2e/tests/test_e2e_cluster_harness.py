"""The harness of the test cluster, as far as it can be seen without making one."""

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
from gantry_cluster.places import MODULE, Folder
from gantry_cluster.processes import Process, child_of, start_apart

ENDLESS = "import signal; signal.pause()"


def test_all_of_kubernetes_is_of_one_version() -> None:
    """Every published part has the minor and patch of the whole: v1.34.4 stands beside v0.34.4 only."""
    text = (MODULE / "go.mod").read_text()
    replaced = dict(re.findall(r"^\t(k8s\.io/\S+) => \1 (v\S+)$", text, re.MULTILINE))

    assert set(replaced.values()) == {programs.kubernetes_version().replace("v1.", "v0.", 1)}
    assert len(replaced) > 25
    assert set(programs.PACKAGES.values()) >= set(re.findall(r"^\t(k8s\.io/kubernetes/cmd/\S+)$", text, re.MULTILINE))


def test_another_compiler_is_another_set_of_programs() -> None:
    """Programs are kept under a name of everything that decides what they are."""
    assert programs.set_name("go1.26.0") != programs.set_name("go1.26.1")
    assert programs.set_name("go1.26.0").startswith(f"{programs.kubernetes_version()}-")


@pytest.mark.parametrize("hidden", ["/run/x", "/var/lib/x", "/var/log/x", "/proc/x", "/sys/x"])
def test_a_folder_that_nodes_cannot_see_is_refused(hidden: str) -> None:
    """A node has its own mounts there, so a cluster in such a place would not find its files."""
    with pytest.raises(ClusterError, match="every node has"):
        Folder.at(Path(hidden))


def test_an_administrators_certificate_names_user_group_and_issuer(tmp_path: Path) -> None:
    """Kubernetes reads who somebody is from the certificate, and nobody else can read the key."""
    authority = Authority(tmp_path / "keys")
    pair = authority.issue("someone", "jane", ["system:masters"], ["10.0.0.1", "name.test"])
    certificate = x509.load_pem_x509_certificate(pair.certificate.read_bytes())
    issuer = x509.load_pem_x509_certificate(authority.pair.certificate.read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value

    certificate.verify_directly_issued_by(issuer)
    assert certificate.subject.rfc4514_string() == "CN=jane,O=system:masters"
    assert names.get_values_for_type(x509.DNSName) == ["name.test"]
    assert pair.key.stat().st_mode & 0o077 == 0


def test_an_image_of_one_file_is_whole(tmp_path: Path) -> None:
    """The archive's list leads to the configuration and the layer, and the layer holds the program, executable."""
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
    """A claim that waits for a volume on node2."""
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


def test_a_claim_gets_a_volume_on_its_pods_node_and_only_there(tmp_path: Path) -> None:
    """A volume is bound to the node that was chosen and to the claim that asked; foreign claims are left alone."""
    volume = provisioner.volume_for(claim(), tmp_path / "pvc-u")["spec"]
    [term] = volume["nodeAffinity"]["required"]["nodeSelectorTerms"]

    assert provisioner.is_wanted(claim())
    assert not provisioner.is_wanted(claim(storageClassName="other"))
    assert not provisioner.is_wanted(claim(volumeName="pvc-u"))
    assert term["matchExpressions"][0]["values"] == ["node2"]
    assert (volume["claimRef"]["uid"], volume["local"]["path"]) == ("u", str(tmp_path / "pvc-u"))


@pytest.mark.parametrize(
    ("policy", "by", "phase"),
    [("Retain", "", "Released"), ("Delete", "somebody", "Released"), ("Delete", "", "Bound")],
    ids=["kept", "foreign", "used"],
)
def test_a_volume_that_is_used_foreign_or_to_be_kept_stays(policy: str, by: str, phase: str) -> None:
    """Only a released volume of ours whose policy says so is taken away."""

    def volume(policy: str, by: str, phase: str) -> Object:
        annotations = {provisioner.MADE_BY: by or provisioner.PROVISIONER}
        spec: Object = {"persistentVolumeReclaimPolicy": policy}
        return {"metadata": {"annotations": annotations}, "spec": spec, "status": {"phase": phase}}

    assert not provisioner.is_spent(volume(policy, by, phase))
    assert provisioner.is_spent(volume("Delete", "", "Released"))


def test_a_number_that_belongs_to_another_process_now_is_left_alone(tmp_path: Path) -> None:
    """A process is its number and its beginning; `undo` kills the one that was written down and no other."""
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


def test_undo_goes_backwards_and_may_run_twice(tmp_path: Path) -> None:
    """What was made last goes first; what is gone already is no error; then the journal is empty."""
    journal = Journal(tmp_path)
    journal.folder(tmp_path / "outer")
    journal.folder(tmp_path / "outer" / "inner")

    assert Journal(tmp_path).undo() == []
    assert not (tmp_path / "outer").exists()
    assert Journal(tmp_path).undo() == []


def test_what_cannot_be_undone_is_said_and_kept(tmp_path: Path) -> None:
    """A change that resists stays in the journal, so that `down` can be tried again."""
    journal = Journal(tmp_path)
    journal.folder(tmp_path / "full")
    (tmp_path / "full" / "foreign").touch()

    [failure] = journal.undo()
    assert "full" in failure
    (tmp_path / "full" / "foreign").unlink()

    assert journal.undo() == []
    assert not (tmp_path / "full").exists()


def test_a_journal_of_another_boot_means_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a restart of the machine numbers and settings are others', so nothing is undone."""
    Journal(tmp_path).folder(tmp_path / "made")
    boot = tmp_path / "boot"
    boot.write_text("another\n")
    monkeypatch.setattr(journals, "BOOT", boot)

    assert Journal(tmp_path).undo() == []
    assert (tmp_path / "made").exists()


def test_a_program_started_apart_writes_a_log_and_has_its_own_session(tmp_path: Path) -> None:
    """What is to outlive us does not end with our terminal, and what it said can be read."""
    program = f"import os, subprocess, sys; print(os.getsid(0) == os.getpid(), flush=True); {ENDLESS}"
    pid = start_apart([sys.executable, "-c", program], tmp_path / "log")
    process = Process.of(pid)
    assert process is not None
    journal = Journal(tmp_path)
    journal.process(process)

    wait_until("its words", lambda: (tmp_path / "log").read_text() == "True\n", 120)
    assert child_of(pid) is None
    assert journal.undo() == []
    os.waitpid(pid, 0)


def test_a_failing_command_is_told_with_its_words() -> None:
    """An error names the command and what it said; one that hangs is given up."""
    with pytest.raises(CommandFailed, match="no such thing"):
        run(sys.executable, "-c", "import sys; sys.exit('no such thing')")
    with pytest.raises(DeadlineExceeded):
        run(sys.executable, "-c", ENDLESS, seconds_max=0.2)
