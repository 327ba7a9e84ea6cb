"""Real Kubernetes nodes on one Linux machine, each in namespaces of its own, without containers around them; and access
to clusters of `kind` and of a kubeconfig (`kind`, `foreign`), on which tests of groups run too.

One `Machine` is a process 1 in new namespaces: when it dies the kernel ends every process, mount and network device in
it. The hub is such a machine and holds the bridge and the control plane; every node is one and holds a kubelet, a
kube-proxy, containerd and the pods. So little is changed on the machine itself, and those changes are kept in a journal
which `down` reads backwards.

The programs of Kubernetes come from Go modules (`go/go.mod`), built once and kept; containerd and the other programs
are those of the machine (`requirements`). Everything here is for tests: one etcd without fsync, one administrator, no
upgrade.
"""
