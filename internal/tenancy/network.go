package tenancy

import (
	"context"
	"fmt"
	"math"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	networkingv1ac "k8s.io/client-go/applyconfigurations/networking/v1"
)

// lowestServicePort is the first port on which a program without rights can listen.
const lowestServicePort = 1024

// Destination is a private address, or network of them, that pods may reach.
type Destination struct {
	Name string
	To   netip.Prefix
	// Ports of TCP and UDP; none means all.
	Ports []uint16
	// Groups whose members may reach it; none means everybody.
	Groups []string
}

// Closed returns the networks that pods do not reach as a part of the
// internet: those that are private, or lead to the machine or its neighbours.
func Closed() []netip.Prefix {
	var out []netip.Prefix
	for _, p := range []string{
		"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16",
		"172.16.0.0/12", "192.168.0.0/16", "224.0.0.0/4", "240.0.0.0/4",
	} {
		out = append(out, netip.MustParsePrefix(p))
	}
	return out
}

// Without returns what of to is left without the forbidden networks: the
// networks to except, in order, and whether anything is left.
func Without(to netip.Prefix, forbidden []netip.Prefix) (except []netip.Prefix, any bool) {
	for _, f := range forbidden {
		switch {
		case !f.Overlaps(to):
		case f.Bits() <= to.Bits():
			return nil, false
		default:
			except = append(except, f)
		}
	}
	return outermost(except), true
}

// outermost sorts networks, and leaves out those that lie within others.
func outermost(list []netip.Prefix) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range slices.SortedFunc(slices.Values(list), netip.Prefix.Compare) {
		if len(out) == 0 || !out[len(out)-1].Overlaps(p) {
			out = append(out, p)
		}
	}
	return out
}

// surroundings are what everybody's policies depend on.
type surroundings struct {
	forbidden []netip.Prefix
	entrances []netip.Addr
	proxy     []netip.AddrPort
	members   map[string][]string // handles by group
}

func (t *Tenancy) lookAround(ctx context.Context) (s surroundings, err error) {
	if t.cfg.Forbidden != nil {
		if s.forbidden, err = t.cfg.Forbidden(); err != nil {
			return s, fmt.Errorf("what notebooks may not reach is not known: %w", err)
		}
	}
	if t.cfg.Entrances != nil {
		if s.entrances, err = t.cfg.Entrances(); err != nil {
			return s, fmt.Errorf("from where gpulab reaches notebooks is not known: %w", err)
		}
	}
	if t.cfg.Proxy != nil {
		s.proxy = slices.SortedFunc(slices.Values(t.cfg.Proxy()), netip.AddrPort.Compare)
	}
	s.members = map[string][]string{}
	for i := range t.cfg.Allow {
		for _, group := range t.cfg.Allow[i].Groups {
			if _, asked := s.members[group]; asked || t.cfg.Members == nil {
				continue
			}
			if s.members[group], err = t.cfg.Members(ctx, group); err != nil {
				return s, fmt.Errorf("who is in the group %s is not known: %w", group, err)
			}
		}
	}
	return s, nil
}

// mayReach tells whether the user is among those for whom d is.
func (s *surroundings) mayReach(handle string, d *Destination) bool {
	return len(d.Groups) == 0 || slices.ContainsFunc(d.Groups, func(group string) bool {
		return slices.Contains(s.members[group], handle)
	})
}

// Ports are made the same way everywhere.
func portOf(protocol corev1.Protocol, n uint16) *networkingv1ac.NetworkPolicyPortApplyConfiguration {
	return networkingv1ac.NetworkPolicyPort().WithProtocol(protocol).WithPort(intstr.FromInt32(int32(n)))
}

func blockOf(to netip.Prefix, except []netip.Prefix) *networkingv1ac.NetworkPolicyPeerApplyConfiguration {
	block := networkingv1ac.IPBlock().WithCIDR(to.String())
	for _, e := range except {
		block.WithExcept(e.String())
	}
	return networkingv1ac.NetworkPolicyPeer().WithIPBlock(block)
}

func podsOf(namespace string, labels map[string]string) *networkingv1ac.NetworkPolicyPeerApplyConfiguration {
	return networkingv1ac.NetworkPolicyPeer().
		WithNamespaceSelector(metav1ac.LabelSelector().WithMatchLabels(
			map[string]string{"kubernetes.io/metadata.name": namespace})).
		WithPodSelector(metav1ac.LabelSelector().WithMatchLabels(labels))
}

// policies are the rules of a user's namespace: nothing in or out but what is
// listed.
func (t *Tenancy) policies(handle string, s *surroundings) []*networkingv1ac.NetworkPolicyApplyConfiguration {
	both := []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress}
	ns, labels, everything := Namespace(handle), placeLabels(handle), metav1ac.LabelSelector()
	list := []*networkingv1ac.NetworkPolicyApplyConfiguration{
		networkingv1ac.NetworkPolicy("default-deny", ns).WithLabels(labels).WithSpec(networkingv1ac.NetworkPolicySpec().
			WithPodSelector(everything).WithPolicyTypes(both...)),
		networkingv1ac.NetworkPolicy("notebook", ns).WithLabels(labels).WithSpec(networkingv1ac.NetworkPolicySpec().
			WithPodSelector(everything).WithPolicyTypes(both...).
			WithIngress(networkingv1ac.NetworkPolicyIngressRule().WithFrom(t.visitors(s)...).WithPorts(portOf(corev1.ProtocolTCP,
				NotebookPort))).
			WithEgress(t.waysOut(handle, s)...)),
	}
	// Without entrances there is nobody to let in, and an empty list is everybody.
	if from := t.entrances(s); len(from) > 0 {
		first := portOf(corev1.ProtocolTCP, lowestServicePort).WithEndPort(math.MaxUint16)
		list = append(list, networkingv1ac.NetworkPolicy("service",
			ns).WithLabels(labels).WithSpec(networkingv1ac.NetworkPolicySpec().
			WithPodSelector(metav1ac.LabelSelector().WithMatchLabels(
				map[string]string{"app.kubernetes.io/component": "service"})).
			WithPolicyTypes(networkingv1.PolicyTypeIngress).
			WithIngress(networkingv1ac.NetworkPolicyIngressRule().WithFrom(from...).WithPorts(first))))
	}
	return list
}

func (t *Tenancy) hub() *networkingv1ac.NetworkPolicyPeerApplyConfiguration {
	return podsOf(t.cfg.SystemNamespace, map[string]string{
		"app.kubernetes.io/name": "jupyterhub", "app.kubernetes.io/component": "hub",
	})
}

// visitors are the hub and the head. Every machine reaches its own pods anyway.
func (t *Tenancy) visitors(s *surroundings) []*networkingv1ac.NetworkPolicyPeerApplyConfiguration {
	return append([]*networkingv1ac.NetworkPolicyPeerApplyConfiguration{t.hub()}, t.entrances(s)...)
}

// entrances are the head.
func (t *Tenancy) entrances(s *surroundings) []*networkingv1ac.NetworkPolicyPeerApplyConfiguration {
	var list []*networkingv1ac.NetworkPolicyPeerApplyConfiguration
	for _, a := range slices.SortedFunc(slices.Values(s.entrances), netip.Addr.Compare) {
		list = append(list, blockOf(netip.PrefixFrom(a, a.BitLen()), nil))
	}
	return list
}

func (t *Tenancy) waysOut(handle string, s *surroundings) []*networkingv1ac.NetworkPolicyEgressRuleApplyConfiguration {
	tcp, udp := corev1.ProtocolTCP, corev1.ProtocolUDP
	packages := podsOf(t.cfg.SystemNamespace, map[string]string{"app.kubernetes.io/name": "packages"})
	names := podsOf("kube-system", map[string]string{"k8s-app": "kube-dns"})
	world := blockOf(netip.MustParsePrefix("0.0.0.0/0"), outermost(append(Closed(), s.forbidden...)))
	rules := []*networkingv1ac.NetworkPolicyEgressRuleApplyConfiguration{
		networkingv1ac.NetworkPolicyEgressRule().WithTo(t.hub()).WithPorts(portOf(tcp, HubPort)),
		networkingv1ac.NetworkPolicyEgressRule().WithTo(packages).WithPorts(portOf(tcp, packagesPort),
			portOf(tcp, modelsPort)),
		networkingv1ac.NetworkPolicyEgressRule().WithTo(names).WithPorts(portOf(udp, 53), portOf(tcp, 53)),
		networkingv1ac.NetworkPolicyEgressRule().WithTo(world),
	}
	for _, p := range s.proxy {
		to := netip.PrefixFrom(p.Addr(), p.Addr().BitLen())
		if _, open := Without(to, s.forbidden); open {
			rules = append(rules, networkingv1ac.NetworkPolicyEgressRule().WithTo(blockOf(to, nil)).WithPorts(portOf(tcp,
				p.Port())))
		}
	}
	for i := range t.cfg.Allow {
		d := &t.cfg.Allow[i]
		except, open := Without(d.To, s.forbidden)
		if !open || !s.mayReach(handle, d) {
			continue
		}
		rule := networkingv1ac.NetworkPolicyEgressRule().WithTo(blockOf(d.To, except))
		for _, p := range d.Ports {
			rule.WithPorts(portOf(tcp, p), portOf(udp, p))
		}
		rules = append(rules, rule)
	}
	return rules
}
