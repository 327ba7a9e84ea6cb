"""The configuration files of a node: for containerd, the kubelet, kube-proxy and the pods' network.

Some settings are needed on machines whose root is restricted, as in many virtual machines. No process may lower an
`oom_score_adj` or raise a limit of open files: `restrict_oom_score_adj`, `oomScoreAdj`, `maxOpenFiles`. AppArmor may be
absent: `disable_apparmor`. Connection tracking belongs to the whole machine and is not changed: `conntrack`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from gantry_cluster.api import Object
from gantry_cluster.certificates import Authority, Pair
from gantry_cluster.network import Network, node_name, pod_network

PAUSE_IMAGE = "gantry.dev/pause:1"
"""The image of the container that holds the namespaces of a pod."""

SOCKET = "/run/containerd/containerd.sock"
"""The socket of containerd, in each node's own `/run`."""

LEASE_S = 10
"""A kubelet renews its Lease four times in this time (Kubernetes' own default is 40)."""

PLUGINS_FOLDER = Path("/usr/lib/cni")
"""The folder of the network plugins of Debian."""

OPEN_FILES = 20_000
"""The limit of open files of a kubelet."""

CONTAINERD = """\
version = 2
disabled_plugins = ["io.containerd.internal.v1.tracing", "io.containerd.tracing.processor.v1.otlp"]
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  restrict_oom_score_adj = true
  disable_apparmor = true
  disable_hugetlb_controller = false
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{plugins}"
    conf_dir = "{networks}"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    discard_unpacked_layers = true
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = {is_systemd}
"""
"""The configuration of containerd."""


def containerd_text(pause: str, networks: str, *, is_systemd: bool = False) -> str:
    """Return the configuration of containerd with this pause image and folder of networks; with ``is_systemd``, control
    groups are made by systemd."""
    return CONTAINERD.format(pause=pause, plugins=PLUGINS_FOLDER, networks=networks, is_systemd=str(is_systemd).lower())


@dataclass(frozen=True)
class NodeFiles:
    """Writes the configuration files of one node into its folder."""

    number: int
    folder: Path
    network: Network

    @property
    def name(self) -> str:
        """The name of the node."""
        return node_name(self.number)

    @property
    def address(self) -> str:
        """The address of the node, of the family that its pods have."""
        return self.network.address(self.number)

    @property
    def group(self) -> str:
        """The node's control group, below every controller."""
        return f"gantry-{self.name}"

    def containerd(self) -> Path:
        """Write the configuration of containerd."""
        return self._text("containerd.toml", containerd_text(PAUSE_IMAGE, f"{self.folder}/cni"))

    def pod_network(self) -> Path:
        """Write the pods' network: a bridge per node, addresses from its own range, and host ports on request."""
        (self.folder / "cni").mkdir(exist_ok=True)
        return self._json(
            "cni/10-pods.conflist", pod_network(self.network.pods_of(self.number), self.network.default_route)
        )

    def kubelet(self, authority: Authority) -> Path:
        """Write the kubelet's configuration: its control group, its certificate and short status intervals."""
        server = authority.issue(f"{self.name}-server", self.name, (), [self.name, self.address])
        return self._json("kubelet.json", self._kubelet_settings(authority.pair, server))

    def _kubelet_settings(self, authority: Pair, server: Pair) -> Object:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "containerRuntimeEndpoint": f"unix://{SOCKET}",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.group}",
            "oomScoreAdj": 0,
            "maxOpenFiles": OPEN_FILES,
            "failSwapOn": False,
            "clusterDNS": [self.network.dns_service],
            "clusterDomain": "cluster.local",
            "resolvConf": str(self.folder / "resolv.conf"),
            "nodeLeaseDurationSeconds": LEASE_S,
            "nodeStatusUpdateFrequency": "2s",
            "syncFrequency": "10s",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(authority.certificate)},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": str(server.certificate),
            "tlsPrivateKeyFile": str(server.key),
            "evictionHard": {"memory.available": "200Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            # A collected image could not be pulled again, because there is no registry.
            "imageGCHighThresholdPercent": 100,
            "serializeImagePulls": True,
        }

    def proxy(self, kubeconfig: Path) -> Path:
        """Write the configuration of kube-proxy: Services by iptables rules in the node's own network."""
        return self._json(
            "kube-proxy.json",
            {
                "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
                "kind": "KubeProxyConfiguration",
                "mode": "iptables",
                "hostnameOverride": self.name,
                "clientConnection": {"kubeconfig": str(kubeconfig)},
                "clusterCIDR": self.network.pods,
                "bindAddress": self.address,
                "oomScoreAdj": 0,
                "conntrack": {
                    "maxPerCore": 0,
                    "min": 0,
                    "tcpEstablishedTimeout": "0s",
                    "tcpCloseWaitTimeout": "0s",
                    "udpTimeout": "0s",
                    "udpStreamTimeout": "0s",
                },
                "iptables": {"minSyncPeriod": "200ms", "syncPeriod": "30s"},
            },
        )

    def _text(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text)
        return path

    def _json(self, name: str, content: Object) -> Path:
        return self._text(name, json.dumps(content, indent=1))
