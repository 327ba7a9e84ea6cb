"""Real Kubernetes nodes on one Linux machine, each in namespaces of its own, without containers around them.

One `Machine` is a process 1 in new namespaces: when it dies the kernel ends every process, mount and network device in
it. The hub is such a machine and holds the bridge and the control plane; every node is one and holds a kubelet, a
kube-proxy, containerd and the pods. So little is changed on the machine itself, and those changes are kept in a journal
which `down` reads backwards.

The programs come from Go modules (`go/go.mod`), built once and kept. Everything here is for tests: one etcd without
fsync, one administrator, no upgrade.
"""
