// Command dns is CoreDNS with the few plugins that a cluster of tests needs.
//
// The full program links seventy plugins, among them the clients of several clouds. These answer for Services and Pods;
// on nodes of kind, whose configuration of DNS comes from kubeadm, they also forward other names to the machine.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"

	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/forward"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/loadbalance"
	_ "github.com/coredns/coredns/plugin/log"
	_ "github.com/coredns/coredns/plugin/loop"
	_ "github.com/coredns/coredns/plugin/metrics"
	_ "github.com/coredns/coredns/plugin/ready"
	_ "github.com/coredns/coredns/plugin/reload"
)

func main() {
	// The order in which a query passes through them.
	dnsserver.Directives = []string{
		"reload", "bind", "health", "ready", "prometheus", "errors", "log", "cache", "loadbalance", "kubernetes", "loop",
		"forward",
	}
	coremain.Run()
}
