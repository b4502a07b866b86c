// Command coredns is CoreDNS with the plugins that a cluster's DNS needs and no
// others: the clouds' and the databases' clients of the full program are most
// of its size and of what would have to be kept patched.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"

	_ "github.com/coredns/coredns/plugin/autopath"
	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/bufsize"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/cancel"
	_ "github.com/coredns/coredns/plugin/debug"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/forward"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/hosts"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/loadbalance"
	_ "github.com/coredns/coredns/plugin/local"
	_ "github.com/coredns/coredns/plugin/log"
	_ "github.com/coredns/coredns/plugin/loop"
	_ "github.com/coredns/coredns/plugin/metrics"
	_ "github.com/coredns/coredns/plugin/minimal"
	_ "github.com/coredns/coredns/plugin/ready"
	_ "github.com/coredns/coredns/plugin/reload"
	_ "github.com/coredns/coredns/plugin/rewrite"
	_ "github.com/coredns/coredns/plugin/template"
	_ "github.com/coredns/coredns/plugin/timeouts"
	_ "github.com/coredns/coredns/plugin/whoami"
)

func main() {
	// The order in which plugins see a query is upstream's; a directive without
	// its plugin would be accepted in a Corefile and then do nothing.
	kept := map[string]bool{}
	for _, name := range []string{
		"autopath", "bind", "bufsize", "cache", "cancel", "debug", "errors", "forward",
		"health", "hosts", "kubernetes", "loadbalance", "local", "log", "loop",
		"prometheus", "minimal", "ready", "reload", "rewrite", "template", "timeouts", "whoami",
	} {
		kept[name] = true
	}
	directives := dnsserver.Directives[:0]
	for _, name := range dnsserver.Directives {
		if kept[name] {
			directives = append(directives, name)
		}
	}
	dnsserver.Directives = directives
	coremain.Run()
}
