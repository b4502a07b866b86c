package charts

import (
	"strings"
	"testing"
)

// The cluster's name server asks those of the machine; without any it answers for the
// cluster all the same, which it would not start for if it were told to ask nobody.
func TestCoreDNS(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		upstream []string
		want     string
	}{{[]string{"10.1.1.1", "10.1.1.2"}, "forward . 10.1.1.1 10.1.1.2 {\n        read_timeout 4500ms\n        max_connect_attempts 2\n"}, {nil, ""}} {
		in := sampleInputs()
		in.UpstreamDNS = c.upstream
		file, _ := at(t, mustRender(t, release(t, in, "coredns"))["ConfigMap coredns"], "data", "Corefile").(string)
		_, forward, there := strings.Cut(file, "forward ")
		if !strings.Contains(file, "kubernetes cluster.local") || there != (c.want != "") || !strings.HasPrefix("forward "+forward, c.want) {
			t.Errorf("with %v it is\n%s", c.upstream, file)
		}
		// The cluster's names have a block of their own, from which no way leads out.
		cluster, outside, _ := strings.Cut(file, "\n. {\n")
		if !strings.HasPrefix(cluster, "cluster.local svc 10.42.0.0/16 10.43.0.0/16 {\n") ||
			!strings.Contains(cluster, "kubernetes cluster.local 10.42.0.0/16 10.43.0.0/16 {\n") ||
			strings.Contains(cluster, "forward") || strings.Contains(outside, "kubernetes") {
			t.Errorf("with %v it is\n%s", c.upstream, file)
		}
	}
}
