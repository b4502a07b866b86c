package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestMain runs the tests in a mount namespace of their own: `ip netns` mounts
// the machine's folder of network namespaces over itself.
func TestMain(m *testing.M) {
	const inside = "FLANNEL_TEST_INSIDE"
	if os.Geteuid() != 0 || os.Getenv(inside) != "" {
		os.Exit(m.Run())
	}
	command := exec.Command("unshare", append([]string{"--mount", "--propagation", "private", os.Args[0]}, os.Args[1:]...)...)
	command.Env = append(os.Environ(), inside+"=1")
	command.Stdin, command.Stdout, command.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := command.Run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// A host is a network namespace with this plugin and its real delegates in it,
// and a second namespace to connect as a container.
type host struct {
	t                   *testing.T
	bin, dir            string
	netns, containerNet string
}

// newHost builds the plugins from this module and makes the namespaces.
func newHost(t *testing.T) *host {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("making network namespaces needs root: run this test with sudo")
	}
	h := &host{t: t, bin: t.TempDir(), dir: t.TempDir(),
		netns: fmt.Sprintf("flannel-h%d", os.Getpid()), containerNet: fmt.Sprintf("flannel-c%d", os.Getpid())}
	const plugins = "github.com/containernetworking/plugins/plugins/"
	h.mustRun("go", "build", "-o", h.bin+"/", ".", plugins+"main/bridge", plugins+"ipam/host-local")
	for _, netns := range []string{h.netns, h.containerNet} {
		h.mustRun("ip", "netns", "add", netns)
		t.Cleanup(func() { h.mustRun("ip", "netns", "delete", netns) })
	}
	return h
}

func (h *host) mustRun(name string, args ...string) string {
	h.t.Helper()
	command := exec.Command(name, args...)
	command.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := command.CombinedOutput()
	if err != nil {
		h.t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

func (h *host) conf(extra string) string {
	return fmt.Sprintf(`{"cniVersion":"1.0.0","name":"cbr0","type":"flannel","subnetFile":%q,"dataDir":%q,
		"ipam":{"dataDir":%q},"delegate":{"hairpinMode":true,"forceAddress":true,"isDefaultGateway":true}%s}`,
		h.subnetFile(), h.dir+"/delegates", h.dir+"/networks", extra)
}

func (h *host) subnetFile() string { return h.dir + "/subnet.env" }

func (h *host) lease(text string) {
	if err := os.WriteFile(h.subnetFile(), []byte(text), 0o644); err != nil {
		h.t.Fatal(err)
	}
}

// call runs the plugin the way a container runtime does.
func (h *host) call(verb, conf string, pod ...string) (stdout string, err error) {
	h.t.Helper()
	command := exec.Command("ip", "netns", "exec", h.netns, h.bin+"/flannel")
	command.Env = []string{"PATH=" + os.Getenv("PATH"), "CNI_COMMAND=" + verb, "CNI_PATH=" + h.bin,
		"CNI_CONTAINERID=c1", "CNI_IFNAME=eth0", "CNI_NETNS=/run/netns/" + h.containerNet, "CNI_ARGS=" + strings.Join(append([]string{"IgnoreUnknown=1"}, pod...), ";")}
	command.Stdin = strings.NewReader(conf)
	var out bytes.Buffer
	command.Stdout, command.Stderr = &out, &out
	err = command.Run()
	return out.String(), err
}

func (h *host) mustCall(verb, conf string, pod ...string) string {
	h.t.Helper()
	out, err := h.call(verb, conf, pod...)
	if err != nil {
		h.t.Fatalf("%s: %v\n%s", verb, err, out)
	}
	return out
}

// left lists what is kept of connected containers: records and addresses.
func (h *host) left() (left []string) {
	for _, pattern := range []string{"delegates/*", "networks/cbr0/10.*"} {
		found, err := filepath.Glob(filepath.Join(h.dir, pattern))
		if err != nil {
			h.t.Fatal(err)
		}
		left = append(left, found...)
	}
	return left
}

func TestPluginConnectsAndDisconnects(t *testing.T) {
	h := newHost(t)

	out, err := h.call("ADD", h.conf(""))
	if err == nil || !strings.Contains(out, `"code": 11`) {
		t.Fatalf("ADD without a lease: %v, %s; want error code 11, try again later", err, out)
	}
	h.mustCall("DEL", h.conf(""))

	h.lease(someLease)
	var result struct {
		IPs []struct{ Address, Gateway string }
	}
	added := h.mustCall("ADD", h.conf(""))
	if err := json.Unmarshal([]byte(added), &result); err != nil || len(result.IPs) != 1 {
		t.Fatalf("ADD printed %s (%v), want one address", added, err)
	}
	if got := result.IPs[0]; got.Address != "10.42.3.2/24" || got.Gateway != "10.42.3.1" {
		t.Errorf("address %+v, want 10.42.3.2/24 behind 10.42.3.1", got)
	}
	inside := h.mustRun("ip", "-n", h.containerNet, "route")
	for _, want := range []string{"default via 10.42.3.1", "10.42.0.0/16 via 10.42.3.1"} {
		if !strings.Contains(inside, want) {
			t.Errorf("routes in the container lack %q:\n%s", want, inside)
		}
	}
	if link := h.mustRun("ip", "-n", h.containerNet, "link", "show", "eth0"); !strings.Contains(link, "mtu 1450") {
		t.Errorf("the container's interface has another MTU than flannel's:\n%s", link)
	}
	// Nothing listens there: being refused shows that the bridge was reached.
	reach := exec.Command("ip", "netns", "exec", h.containerNet, "timeout", "3", "bash", "-c", ": >/dev/tcp/10.42.3.1/9")
	if said, _ := reach.CombinedOutput(); !strings.Contains(string(said), "refused") {
		t.Errorf("the container does not reach the bridge: %s", said)
	}

	// A second way between containers and to the node, past every rule.
	for where, interfaces := range map[string][]string{h.containerNet: {"eth0"}, h.netns: {"cni0"}} {
		for _, name := range interfaces {
			if got := h.mustRun("ip", "-n", where, "-6", "address", "show", "dev", name); got != "" {
				t.Errorf("%s has addresses of IPv6 in a cluster without:\n%s", name, got)
			}
		}
	}
	// Programs go on listening to themselves on ::1.
	h.mustRun("ip", "netns", "exec", h.containerNet, "ip", "link", "set", "lo", "up")
	if got := h.mustRun("ip", "-n", h.containerNet, "-6", "address", "show", "dev", "lo"); !strings.Contains(got, "::1/128") {
		t.Errorf("the container's loopback has the addresses\n%s", got)
	}

	prev := `,"prevResult":` + added
	h.mustCall("CHECK", h.conf(prev))
	// The subnet may change while the container runs; its own stays.
	h.lease(strings.ReplaceAll(someLease, "10.42.3.1", "10.42.9.1"))
	h.mustCall("CHECK", h.conf(prev))

	// A reboot empties /run; the container must go all the same.
	if err := os.Remove(h.subnetFile()); err != nil {
		t.Fatal(err)
	}
	h.mustCall("DEL", h.conf(prev))
	if left := h.left(); len(left) > 0 {
		t.Errorf("DEL without a lease left %v", left)
	}
	if out, err := h.call("CHECK", h.conf(prev)); err == nil {
		t.Errorf("CHECK of a container that is gone succeeded: %s", out)
	}
	h.mustCall("DEL", h.conf(prev))
}

func TestPluginDisconnectsWithDamagedRecord(t *testing.T) {
	h := newHost(t)
	h.lease(someLease)
	h.mustCall("ADD", h.conf(""))
	if err := os.WriteFile(h.dir+"/delegates/c1-eth0", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	h.mustCall("DEL", h.conf(""))
	if left := h.left(); len(left) > 0 {
		t.Errorf("DEL with an empty record left %v", left)
	}
}

func TestPluginKeepsRecordWhenDelegateFails(t *testing.T) {
	h := newHost(t)
	h.lease(someLease)
	h.mustCall("ADD", h.conf(""))
	if err := os.Remove(h.bin + "/bridge"); err != nil {
		t.Fatal(err)
	}
	if out, err := h.call("DEL", h.conf("")); err == nil {
		t.Fatalf("DEL without the delegate's program succeeded: %s", out)
	}
	if left := h.left(); len(left) != 2 {
		t.Errorf("a failed DEL left %v, want the record and the address for the next one", left)
	}
}
