package main

import (
	"fmt"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/google/nftables"
)

// reaches tells whether the container reaches the node over TCP. Nothing listens
// there: being refused is an answer.
func (h *host) reaches(port int) bool {
	h.t.Helper()
	said, _ := exec.Command("ip", "netns", "exec", h.containerNet, "timeout", "1", "bash", "-c", fmt.Sprintf(": >/dev/tcp/10.42.3.1/%d", port)).CombinedOutput()
	return strings.Contains(string(said), "refused")
}

// asks tells whether a datagram to the node gets through.
func (h *host) asks(t *testing.T, port int) bool {
	t.Helper()
	server := exec.Command("ip", "netns", "exec", h.netns, "timeout", "3", "python3", "-c", fmt.Sprintf(`import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(("10.42.3.1", %d)); print("ready", flush=True); s.settimeout(1); print(s.recv(9))`, port))
	out, err := server.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	ready := make([]byte, 6)
	if _, err := out.Read(ready); err != nil {
		t.Fatal(err)
	}
	h.mustRun("ip", "netns", "exec", h.containerNet, "bash", "-c", fmt.Sprintf("echo >/dev/udp/10.42.3.1/%d", port))
	return server.Wait() == nil
}

func TestGuard(t *testing.T) {
	h := newHost(t)
	h.lease(someLease)
	const notebook, other = "K8S_POD_NAMESPACE=user-ada", "K8S_POD_NAMESPACE=gpulab-system"
	onHost := func(args ...string) string {
		return h.mustRun("ip", append([]string{"netns", "exec", h.netns}, args...)...)
	}
	h.mustRun("ip", "-n", h.containerNet, "link", "set", "lo", "up")

	h.mustCall("ADD", h.conf(""), notebook, "K8S_POD_NAME=play")
	if h.reaches(9) {
		t.Error("a notebook without policies reaches the node")
	}
	if !h.asks(t, 53) || h.asks(t, 54) {
		t.Error("a notebook without policies should reach name servers, and nothing else")
	}
	// Another one that starts changes nothing.
	another := []nftables.SetElement{{Key: net.IPv4(10, 42, 3, 99).To4()}}
	if err := ns.WithNetNSPath("/run/netns/"+h.netns, func(ns.NetNS) error { return setGuard(another, true, nil, mostConnections) }); err != nil {
		t.Fatal(err)
	}
	if h.reaches(9) {
		t.Error("after another notebook has started, this one reaches the node")
	}
	// What a policy lets through, it marks.
	onHost("iptables", "-A", "INPUT", "-p", "tcp", "-j", "MARK", "--set-mark", "0x20000/0x20000")
	if !h.reaches(9) {
		t.Error("a notebook does not reach what its policies allow")
	}
	onHost("iptables", "-F")
	if h.reaches(9) {
		t.Error("once its policies are emptied, a notebook reaches the node")
	}
	rules := onHost("nft", "list", "table", "ip", "gpulab")
	if n := strings.Count(rules, "drop"); n != 4 {
		t.Errorf("the table has %d rules that drop, want two in each chain:\n%s", n, rules)
	}

	h.mustCall("DEL", h.conf(""), notebook)
	onHost("rm", "-rf", h.dir+"/networks") // so that the next one gets the same address
	h.mustCall("ADD", h.conf(""), other)
	if !h.reaches(9) {
		t.Error("a pod that is no notebook is guarded in the place of one that was")
	}
	h.mustCall("DEL", h.conf(""), other)
}

// flows sends datagrams from the container to that many ports of the node, each of
// which the kernel has to remember.
func (h *host) flows(n int) {
	h.t.Helper()
	h.mustRun("ip", "netns", "exec", h.containerNet, "python3", "-c", fmt.Sprintf(`import socket
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
    for port in range(10000, 10000 + %d):
        try: s.sendto(b"x", ("10.42.3.1", port))
        except OSError: pass`, n))
}

// remembered is how many connections the node keeps track of.
func (h *host) remembered() int {
	h.t.Helper()
	text := h.mustRun("ip", "netns", "exec", h.netns, "cat", "/proc/sys/net/netfilter/nf_conntrack_count")
	n, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil {
		h.t.Fatal(err)
	}
	return n
}

// TestConnections: one notebook does not fill the table in which the kernel keeps
// track of all the machine's connections.
func TestConnections(t *testing.T) {
	h := newHost(t)
	h.lease(someLease)
	const notebook, other = "K8S_POD_NAMESPACE=user-ada", "K8S_POD_NAMESPACE=gpulab-system"
	h.mustRun("ip", "-n", h.containerNet, "link", "set", "lo", "up")
	h.mustCall("ADD", h.conf(""), notebook, "K8S_POD_NAME=play")
	h.mustRun("ip", "netns", "exec", h.netns, "iptables", "-A", "INPUT", "-j", "MARK", "--set-mark", "0x20000/0x20000")
	h.flows(mostConnections / 2)
	if !h.reaches(9) {
		t.Error("a notebook with half of the connections it may have gets no further one")
	}
	h.flows(3 * mostConnections)
	if got := h.remembered(); got < mostConnections*9/10 || got > mostConnections+100 {
		t.Errorf("the kernel keeps track of %d connections, want about %d", got, mostConnections)
	}
	if h.reaches(9) {
		t.Error("a notebook with all the connections it may have gets another one")
	}
	h.mustCall("DEL", h.conf(""), notebook)
	h.mustRun("rm", "-rf", h.dir+"/networks") // so that the next one gets the same address
	h.mustCall("ADD", h.conf(""), other)
	if !h.reaches(9) {
		t.Error("a pod that is no notebook is limited in the place of one that was")
	}
	h.mustCall("DEL", h.conf(""), other)
}
