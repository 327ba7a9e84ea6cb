"""The control plane: etcd, API server, controllers, scheduler, DNS and the volume provisioner, all in the hub.

Timeouts are shorter than a real cluster's, because tests wait for them. Those of the control plane are defined here,
those of kubelets in `node_files`. etcd does not fsync, because the cluster lives only as long as one test run.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from gantry_cluster.api import Api
from gantry_cluster.certificates import Authority, Pair
from gantry_cluster.commands import wait_until
from gantry_cluster.kubeconfig import API_PORT, write_kubeconfig
from gantry_cluster.machine import Machine
from gantry_cluster.network import HUB_ADDRESS, Network
from gantry_cluster.paths import CLUSTER, Folder
from gantry_cluster.programs import Programs

ETCD_URL = "http://127.0.0.1:2379"
"""The address of etcd in the hub's own loopback, which is not reachable from outside."""

NOT_READY_AFTER_S = 12
"""How long a silent node counts as ready (`--node-monitor-grace-period`; Kubernetes' own default is 50)."""

EVICT_AFTER_S = 15
"""How long a pod stays bound to a node that is not ready (Kubernetes' own default is 300)."""

READY_SECONDS_MAX = 90.0
"""The limit for a ready API server."""


@dataclass(frozen=True)
class ControlPlane:
    """The parameters of the hub's programs. Every method but one returns the command line of one program."""

    folder: Folder
    programs: Programs
    authority: Authority
    accounts: Pair
    """The key pair that signs tokens of service accounts."""

    network: Network
    """The addresses of pods and Services."""

    @property
    def _hub(self) -> list[str]:
        """The addresses of the hub: the one for machines, and the one for pods if that is another."""
        return [*dict.fromkeys((HUB_ADDRESS, self.network.hub))]

    def make_kubeconfig(self, program: str, user: str, *groups: str) -> Path:
        """Create the kubeconfig of a program."""
        pair = self.authority.issue(program, user, groups)
        return write_kubeconfig(self.folder.keys / f"{program}.kubeconfig", self.authority, pair)

    def etcd(self) -> list[str | Path]:
        """Return the command line of etcd, the control plane's store."""
        return [
            *(self.programs["etcd"], "--name=hub", f"--data-dir={self.folder.etcd}", "--unsafe-no-fsync"),
            *(f"--listen-client-urls={ETCD_URL}", f"--advertise-client-urls={ETCD_URL}"),
            *("--listen-peer-urls=http://127.0.0.1:2380", "--log-level=warn"),
        ]

    def api_server(self) -> list[str | Path]:
        """Return the command line of the API server, with the admission plugins of an ordinary cluster."""
        names = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"]
        server = self.authority.issue(
            "api-server", "kube-apiserver", (), [*self._hub, self.network.api_service, *names]
        )
        kubelet = self.authority.issue("api-server-kubelet", "kube-apiserver-kubelet-client", ["system:masters"])
        return [
            *(self.programs["kube-apiserver"], f"--etcd-servers={ETCD_URL}"),
            *("--bind-address=::", f"--advertise-address={self.network.hub}", f"--secure-port={API_PORT}"),
            *(f"--tls-cert-file={server.certificate}", f"--tls-private-key-file={server.key}"),
            f"--client-ca-file={self.authority.pair.certificate}",
            *(f"--kubelet-client-certificate={kubelet.certificate}", f"--kubelet-client-key={kubelet.key}"),
            f"--kubelet-certificate-authority={self.authority.pair.certificate}",
            "--kubelet-preferred-address-types=InternalIP",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            f"--service-account-key-file={self.accounts.certificate}",
            f"--service-account-signing-key-file={self.accounts.key}",
            *("--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction"),
            *("--allow-privileged=true", f"--service-cluster-ip-range={self.network.services}"),
            "--enable-aggregator-routing=true",
            f"--default-not-ready-toleration-seconds={EVICT_AFTER_S}",
            f"--default-unreachable-toleration-seconds={EVICT_AFTER_S}",
        ]

    def controllers(self) -> list[str | Path]:
        """Return the command line of the controller manager, with a service account for each controller."""
        kubeconfig = self.make_kubeconfig("kube-controller-manager", "system:kube-controller-manager")
        return [
            *(self.programs["kube-controller-manager"], f"--kubeconfig={kubeconfig}", "--leader-elect=false"),
            *("--bind-address=127.0.0.1", "--use-service-account-credentials=true"),
            f"--service-account-private-key-file={self.accounts.key}",
            f"--root-ca-file={self.authority.pair.certificate}",
            *("--allocate-node-cidrs=false", f"--cluster-cidr={self.network.pods}"),
            *(f"--node-monitor-grace-period={NOT_READY_AFTER_S}s", "--node-monitor-period=2s"),
        ]

    def scheduler(self) -> list[str | Path]:
        """Return the command line of the scheduler."""
        kubeconfig = self.make_kubeconfig("kube-scheduler", "system:kube-scheduler")
        return [
            *(self.programs["kube-scheduler"], f"--kubeconfig={kubeconfig}", "--leader-elect=false"),
            "--bind-address=127.0.0.1",
        ]

    def dns(self) -> list[str | Path]:
        """Return the command line of the DNS server for Services and pods; `addons.yaml` has its Service and its
        rights."""
        kubeconfig = self.make_kubeconfig("dns", "system:coredns")
        file = self.folder.root / "Corefile"
        kubernetes = f"kubernetes cluster.local in-addr.arpa ip6.arpa {{\n  kubeconfig {kubeconfig}\n  ttl 1\n }}"
        bind = f"bind {' '.join(self._hub)}"
        file.write_text(f".:53 {{\n {bind}\n errors\n ready {HUB_ADDRESS}:8181\n {kubernetes}\n}}\n")
        return [self.programs["dns"], "-conf", file]

    def volumes(self) -> list[str | Path]:
        """Return the command line of the driver of volumes and snapshots, which is part of this package."""
        # `env`, because the hub has no environment of its own and the package is not installed.
        run_it = (sys.executable, "-m", "gantry_cluster.snapshotter", str(self.folder.root))
        return ["env", f"PYTHONPATH={CLUSTER}", *run_it]


def start(plane: ControlPlane, hub: Machine) -> None:
    """Start the programs of the control plane in the order of their dependencies; return when the API server is
    ready."""
    logs = plane.folder.logs
    hub.spawn("etcd", plane.etcd(), logs / "etcd.log")
    hub.spawn("kube-apiserver", plane.api_server(), logs / "kube-apiserver.log")
    administrator = plane.authority.issue("administrator", "administrator", ["system:masters"])
    write_kubeconfig(plane.folder.kubeconfig, plane.authority, administrator)
    api = Api.of(plane.folder)
    wait_until("a ready API server", api.is_ready, READY_SECONDS_MAX, logs / "kube-apiserver.log")
    hub.spawn("kube-controller-manager", plane.controllers(), logs / "kube-controller-manager.log")
    hub.spawn("kube-scheduler", plane.scheduler(), logs / "kube-scheduler.log")


def start_addons(plane: ControlPlane, hub: Machine, kubectl: list[str | Path]) -> None:
    """Start the programs that need the API: DNS and the volume provisioner."""
    text = (CLUSTER / "addons.yaml").read_text()
    network = plane.network
    values = {"DNS_SERVICE": network.dns_service, "HUB_ADDRESS": network.hub, "FAMILY": str(network.family)}
    for name, value in values.items():
        text = text.replace(f"$({name})", value)
    text += "---\n" + (CLUSTER / "volume-snapshots.yaml").read_text()
    hub.run(*kubectl, "apply", "--server-side", "-f", "-", stdin=text)
    hub.spawn("dns", plane.dns(), plane.folder.logs / "dns.log")
    hub.spawn("volumes", plane.volumes(), plane.folder.logs / "volumes.log")
