package tenancy

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/gpulab/gpulab/internal/users"
)

// ways are the rules of somebody's policies as lines, "out 10.1.2.3/32 tcp/80".
func ways(t *testing.T, client *fake.Clientset, handle string) (lines []string) {
	t.Helper()
	list, err := client.NetworkingV1().NetworkPolicies(Namespace(handle)).List(context.Background(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	line := func(way string, peers []networkingv1.NetworkPolicyPeer, ports []networkingv1.NetworkPolicyPort) {
		if len(peers) == 0 {
			t.Error("a rule without peers lets everybody in or out")
		}
		suffix := ""
		for _, p := range ports {
			suffix += " " + strings.ToLower(string(*p.Protocol)) + "/" + p.Port.String()
		}
		for _, p := range peers {
			var where string
			switch {
			case p.IPBlock != nil:
				where = p.IPBlock.CIDR
				if len(p.IPBlock.Except) > 0 {
					where += " but " + strings.Join(p.IPBlock.Except, ",")
				}
			default:
				where = fmt.Sprint(p.NamespaceSelector.MatchLabels["kubernetes.io/metadata.name"], p.PodSelector.MatchLabels)
			}
			lines = append(lines, way+" "+where+suffix)
		}
	}
	for _, p := range list.Items {
		if p.Name == "service" { // see TestServicesAreReachedFromTheHead
			continue
		}
		if len(p.Spec.PodSelector.MatchLabels) > 0 || !slices.Contains(p.Spec.PolicyTypes, networkingv1.PolicyTypeEgress) || !slices.Contains(p.Spec.PolicyTypes, networkingv1.PolicyTypeIngress) {
			t.Errorf("policy %s does not cover every pod both ways", p.Name)
		}
		for _, rule := range p.Spec.Ingress {
			line("in", rule.From, rule.Ports)
		}
		for _, rule := range p.Spec.Egress {
			line("out", rule.To, rule.Ports)
		}
	}
	return lines
}

const (
	fromHub  = "in gpulab-systemmap[app.kubernetes.io/component:hub app.kubernetes.io/name:jupyterhub] tcp/8888"
	toHub    = "out gpulab-systemmap[app.kubernetes.io/component:hub app.kubernetes.io/name:jupyterhub] tcp/8081"
	toCache  = "out gpulab-systemmap[app.kubernetes.io/name:packages] tcp/8080 tcp/8082"
	toNames  = "out kube-systemmap[k8s-app:kube-dns] udp/53 tcp/53"
	toWorld  = "out 0.0.0.0/0 but 0.0.0.0/8,10.0.0.0/8,100.64.0.0/10,127.0.0.0/8,169.254.0.0/16,172.16.0.0/12,192.168.0.0/16,224.0.0.0/4,240.0.0.0/4"
	toWorld2 = "out 0.0.0.0/0 but 0.0.0.0/8,10.0.0.0/8,100.64.0.0/10,127.0.0.0/8,169.254.0.0/16,172.16.0.0/12,192.168.0.0/16,203.0.113.9/32,224.0.0.0/4,240.0.0.0/4"
)

func checkWays(t *testing.T, client *fake.Clientset, handle string, want ...string) {
	t.Helper()
	if got := ways(t, client, handle); !slices.Equal(got, want) {
		t.Errorf("the ways of %s are\n%s\nwant\n%s", handle, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestNetworkIsClosedButForTheHubNamesAndTheWorld(t *testing.T) {
	tn, client := newTenancy(t)
	if err := tn.Ensure(context.Background(), ada); err != nil {
		t.Fatal(err)
	}
	checkWays(t, client, "ada", fromHub, toHub, toCache, toNames, toWorld)
}

func TestNotebooksOfOtherMachinesAreReachedFromTheHead(t *testing.T) {
	tn, client := newTenancy(t)
	tn.cfg.Entrances = func() ([]netip.Addr, error) {
		return []netip.Addr{netip.MustParseAddr("10.42.0.1"), netip.MustParseAddr("10.42.0.0")}, nil
	}
	if err := tn.Ensure(context.Background(), ada); err != nil {
		t.Fatal(err)
	}
	checkWays(t, client, "ada", fromHub, "in 10.42.0.0/32 tcp/8888", "in 10.42.0.1/32 tcp/8888", toHub, toCache, toNames, toWorld)
}

// What is allowed never opens the machines themselves, pods and services.
func TestAllowedDestinations(t *testing.T) {
	tn, client := newTenancy(t)
	prefix := netip.MustParsePrefix
	tn.cfg.Allow = []Destination{
		{Name: "nas", To: prefix("192.168.1.10/32"), Ports: []uint16{2049, 445}, Groups: []string{"vision", "audio"}},
		{Name: "campus", To: prefix("10.0.0.0/8")},
		{Name: "a pod", To: prefix("10.42.7.0/24")},
		{Name: "this machine", To: prefix("10.99.0.1/32")},
	}
	tn.cfg.Members = func(_ context.Context, group string) ([]string, error) {
		return map[string][]string{"audio": {"ada"}}[group], nil
	}
	tn.cfg.Proxy = func() []netip.AddrPort {
		return []netip.AddrPort{netip.MustParseAddrPort("10.1.1.1:3128"), netip.MustParseAddrPort("10.99.0.1:6443"), netip.MustParseAddrPort("10.42.0.7:80")}
	}
	ben := users.User{ID: 8, Handle: "ben", UID: 20008}
	for _, u := range []users.User{ada, ben} {
		if err := tn.Ensure(context.Background(), u); err != nil {
			t.Fatal(err)
		}
	}
	proxy, campus := "out 10.1.1.1/32 tcp/3128", "out 10.0.0.0/8 but 10.42.0.0/16,10.99.0.1/32"
	nas := "out 192.168.1.10/32 tcp/2049 udp/2049 tcp/445 udp/445"
	checkWays(t, client, "ada", fromHub, toHub, toCache, toNames, toWorld, proxy, nas, campus)
	checkWays(t, client, "ben", fromHub, toHub, toCache, toNames, toWorld, proxy, campus)
}

func TestWithout(t *testing.T) {
	prefix := netip.MustParsePrefix
	own := []netip.Prefix{prefix("10.42.0.0/16"), prefix("10.1.0.5/32"), prefix("192.168.1.0/24"), prefix("192.168.1.7/32")}
	for to, want := range map[string]string{
		"172.16.0.0/12":  "true []",
		"10.0.0.0/8":     "true [10.1.0.5/32 10.42.0.0/16]",
		"10.42.0.0/16":   "false []",
		"10.42.3.0/24":   "false []",
		"10.1.0.5/32":    "false []",
		"10.1.0.4/31":    "true [10.1.0.5/32]",
		"192.168.0.0/16": "true [192.168.1.0/24]",
	} {
		except, open := Without(prefix(to), own)
		if got := fmt.Sprint(open, except); got != want {
			t.Errorf("%s: %s, want %s", to, got, want)
		}
	}
}

// eventually waits for what Run does at its next look.
func eventually(t *testing.T, what string, so func() bool) {
	t.Helper()
	for deadline := time.Now().Add(3 * lookEvery); !so(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it is not so: %s", what)
		}
	}
}

func runTenancy(t *testing.T, tn *Tenancy) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- tn.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// A machine gets addresses while it runs: a cable, a VPN, a bridge of Docker's.
func TestNetworkFollowsTheMachinesAddresses(t *testing.T) {
	tn, client := newTenancy(t)
	if err := tn.Ensure(context.Background(), ada); err != nil {
		t.Fatal(err)
	}
	var answer atomic.Pointer[[]netip.Prefix]
	tn.cfg.Forbidden = func() ([]netip.Prefix, error) {
		if list := answer.Load(); list != nil {
			return *list, nil
		}
		return nil, errors.New("no answer")
	}
	runTenancy(t, tn)
	time.Sleep(50 * time.Millisecond)
	checkWays(t, client, "ada", fromHub, toHub, toCache, toNames, toWorld)
	for _, step := range []struct{ address, way string }{{"203.0.113.9/32", toWorld2}, {"172.17.0.1/32", toWorld}} {
		answer.Store(&[]netip.Prefix{netip.MustParsePrefix(step.address)})
		eventually(t, "the world is without "+step.address, func() bool { return slices.Contains(ways(t, client, "ada"), step.way) })
	}
}

// Groups are followed, and nothing is written where nothing has changed.
func TestNetworkFollowsGroups(t *testing.T) {
	tn, client := newTenancy(t)
	tn.cfg.Allow = []Destination{{Name: "nas", To: netip.MustParsePrefix("192.168.1.10/32"), Groups: []string{"vision"}}}
	var inGroup, failing atomic.Bool
	tn.cfg.Members = func(context.Context, string) ([]string, error) {
		switch {
		case failing.Load():
			return nil, errors.New("no answer")
		case inGroup.Load():
			return []string{"ada"}, nil
		}
		return nil, nil
	}
	ben := users.User{ID: 8, Handle: "ben", UID: 20008}
	for _, u := range []users.User{ada, ben} {
		if err := tn.Ensure(context.Background(), u); err != nil {
			t.Fatal(err)
		}
	}
	runTenancy(t, tn)
	const nas = "out 192.168.1.10/32"
	for _, member := range []bool{true, false, true} {
		inGroup.Store(member)
		eventually(t, fmt.Sprintf("a member reaches it: %t", member), func() bool { return slices.Contains(ways(t, client, "ada"), nas) == member })
	}
	failing.Store(true)
	time.Sleep(lookEvery / 2) // the rest of what belongs to the last change
	client.ClearActions()
	time.Sleep(2*lookEvery + lookEvery/2)
	for _, a := range client.Actions() {
		if a.GetVerb() == "patch" {
			t.Errorf("%s in %s was written although nothing is known to have changed", a.GetResource().Resource, a.GetNamespace())
		}
	}
	checkWays(t, client, "ben", fromHub, toHub, toCache, toNames, toWorld)
	if !slices.Contains(ways(t, client, "ada"), nas) {
		t.Error("while groups cannot be read, a member lost what is theirs")
	}
}

// Who is gone gets no namespace again when something changes.
func TestNetworkOfSomebodyGone(t *testing.T) {
	tn, client := newTenancy(t)
	ctx := context.Background()
	if err := tn.Ensure(ctx, ada); err != nil {
		t.Fatal(err)
	}
	if err := tn.Remove(ctx, ada); err != nil {
		t.Fatal(err)
	}
	tn.cfg.Forbidden = func() ([]netip.Prefix, error) { return []netip.Prefix{netip.MustParsePrefix("203.0.113.9/32")}, nil }
	if err := tn.follow(ctx, false); err != nil {
		t.Fatal(err)
	}
	if list, err := client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{}); err != nil || len(list.Items) != 0 {
		t.Errorf("namespaces: %v %v", list.Items, err)
	}
}

// Services listen on ports of their own, for the head alone.
func TestServicesAreReachedFromTheHead(t *testing.T) {
	tn, client := newTenancy(t)
	if err := tn.Ensure(context.Background(), ada); err != nil {
		t.Fatal(err)
	}
	policies := client.NetworkingV1().NetworkPolicies(Namespace("ada"))
	if p, err := policies.Get(context.Background(), "service", metav1.GetOptions{}); err == nil {
		t.Errorf("nobody is to be let in, but there is %+v", p.Spec)
	}
	tn.cfg.Entrances = func() ([]netip.Addr, error) { return []netip.Addr{netip.MustParseAddr("10.42.0.1")}, nil }
	if err := tn.Ensure(context.Background(), ada); err != nil {
		t.Fatal(err)
	}
	p, err := policies.Get(context.Background(), "service", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	rule := p.Spec.Ingress[0]
	if len(p.Spec.Ingress) != 1 || len(rule.From) != 1 || rule.From[0].IPBlock.CIDR != "10.42.0.1/32" || rule.Ports[0].Port.IntValue() != 1024 || *rule.Ports[0].EndPort != 65535 ||
		p.Spec.PodSelector.MatchLabels["app.kubernetes.io/component"] != "service" || len(p.Spec.Egress) != 0 {
		t.Errorf("the policy is %+v", p.Spec)
	}
}
