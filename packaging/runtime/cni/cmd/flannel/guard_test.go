package main

import (
	"fmt"
	"net"
	"os/exec"
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
	if err := ns.WithNetNSPath("/run/netns/"+h.netns, func(ns.NetNS) error { return setGuard(another, true, nil) }); err != nil {
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
	if n := strings.Count(rules, "drop"); n != 2 {
		t.Errorf("the table has %d rules that drop, want one in each chain:\n%s", n, rules)
	}

	h.mustCall("DEL", h.conf(""), notebook)
	onHost("rm", "-rf", h.dir+"/networks") // so that the next one gets the same address
	h.mustCall("ADD", h.conf(""), other)
	if !h.reaches(9) {
		t.Error("a pod that is no notebook is guarded in the place of one that was")
	}
	h.mustCall("DEL", h.conf(""), other)
}
