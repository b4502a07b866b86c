package main

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Network policies become rules of the kernel a moment after a container has
// its address, longer where many start at once, and they are gone when somebody
// empties the tables. The guard closes that gap for notebooks from before their
// first process: what they begin passes only when a policy has let it through.
const (
	guardTable       = "gpulab"
	guardSet         = "notebooks"
	guardConnections = "connections"
	// mostConnections is how many connections a notebook may have at a time, lookups
	// of names included: those that are open, and datagrams of the last half minute.
	// The kernel keeps track of all the machine's in one table, of 131072 or more.
	mostConnections = 8192
	// guardPriority is after iptables' filter table, where the policies are.
	// Accepted there, a packet still comes by here.
	guardPriority = 10
	// let is the mark by which kube-router's policies say that they have let a
	// packet through (pkg/controllers/netpol/pod.go).
	let = 0x20000
	// notebookNamespaces is how the namespaces of gpulab's users begin.
	notebookNamespaces = "user-"
	first              = 1 // the register everything passes through
)

// podArgs is what the runtime says of the pod, in CNI_ARGS.
type podArgs struct {
	types.CommonArgs
	K8S_POD_NAMESPACE types.UnmarshallableString //nolint:revive // the runtime's name for it
}

// guard puts the container's address among those that are guarded, or takes it
// out where the one who had it before was and this one is not. Nothing needs
// doing for a container that ends: nobody sends from its address.
func guard(cniArgs string, result types.Result, cluster []netip.Prefix) error {
	pod := podArgs{CommonArgs: types.CommonArgs{IgnoreUnknown: true}}
	if err := types.LoadArgs(cniArgs, &pod); err != nil {
		return fmt.Errorf("read what the runtime says of the pod: %w", err)
	}
	r, err := types100.NewResultFromResult(result)
	if err != nil {
		return fmt.Errorf("read the container's addresses: %w", err)
	}
	var elements []nftables.SetElement
	for _, ip := range r.IPs {
		if a := ip.Address.IP.To4(); a != nil {
			elements = append(elements, nftables.SetElement{Key: a})
		}
	}
	guarded := strings.HasPrefix(string(pod.K8S_POD_NAMESPACE), notebookNamespaces)
	err = setGuard(elements, guarded, cluster, mostConnections)
	if err != nil { // an own kernel may lack nft_connlimit; the walls hold without it
		err = setGuard(elements, guarded, cluster, 0)
	}
	if err != nil {
		return fmt.Errorf("guard the container's address (the kernel needs nf_tables): %w", err)
	}
	return nil
}

// setGuard makes the table as it should be, whatever it was, in one step. most is
// how many connections each notebook may have, 0 for no limit.
func setGuard(elements []nftables.SetElement, guarded bool, cluster []netip.Prefix, most uint32) error {
	kernel, err := nftables.New()
	if err != nil {
		return err
	}
	table := kernel.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: guardTable})
	set := &nftables.Set{Table: table, Name: guardSet, KeyType: nftables.TypeIPAddr}
	if err := kernel.AddSet(set, nil); err != nil {
		return err
	}
	rules := guardRules(set, cluster)
	if most > 0 {
		// The kernel forgets an address once it has no connection.
		counted := &nftables.Set{Table: table, Name: guardConnections, KeyType: nftables.TypeIPAddr, Dynamic: true, Size: 65536}
		if err := kernel.AddSet(counted, nil); err != nil {
			return err
		}
		rules = slices.Insert(rules, 1, tooMany(set, counted, most))
	}
	accept := nftables.ChainPolicyAccept
	for name, hook := range map[string]*nftables.ChainHook{"forward": nftables.ChainHookForward, "input": nftables.ChainHookInput} {
		chain := kernel.AddChain(&nftables.Chain{Table: table, Name: name, Type: nftables.ChainTypeFilter,
			Hooknum: hook, Priority: nftables.ChainPriorityRef(guardPriority), Policy: &accept})
		kernel.FlushChain(chain)
		for _, rule := range rules {
			kernel.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: rule})
		}
	}
	// An element that is there may be added again, one that is not cannot be removed.
	if err := kernel.SetAddElements(set, elements); err != nil {
		return err
	}
	if !guarded {
		if err := kernel.SetDeleteElements(set, elements); err != nil {
			return err
		}
	}
	return kernel.Flush()
}

// fromNotebook loads the sender's address and matches those of notebooks.
func fromNotebook(set *nftables.Set) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: first, Base: expr.PayloadBaseNetworkHeader, Offset: 12, Len: 4}, // source address
		&expr.Lookup{SourceRegister: first, SetName: set.Name, SetID: set.ID},
	}
}

// tooMany drops what a notebook begins beyond so many connections. Those that have
// been closed do not count: the kernel makes room by forgetting them.
func tooMany(set, counted *nftables.Set, most uint32) []expr.Any {
	return append(fromNotebook(set),
		&expr.Dynset{SrcRegKey: first, SetName: counted.Name, SetID: counted.ID, Operation: unix.NFT_DYNSET_OP_ADD,
			Exprs: []expr.Any{&expr.Connlimit{Count: most, Flags: expr.NFT_CONNLIMIT_F_INV}}},
		&expr.Counter{},
		&expr.Verdict{Kind: expr.VerdictDrop})
}

// guardRules drop what notebooks begin and no policy has let through. They may
// ask the cluster's name servers at any time: a lookup that is lost in the first
// moment costs a program five seconds.
func guardRules(set *nftables.Set, cluster []netip.Prefix) [][]expr.Any {
	equal := func(data []byte) expr.Any { return &expr.Cmp{Op: expr.CmpOpEq, Register: first, Data: data} }
	without := func(mask uint32) expr.Any {
		return &expr.Bitwise{SourceRegister: first, DestRegister: first, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(mask), Xor: make([]byte, 4)}
	}
	rules := [][]expr.Any{{
		&expr.Ct{Register: first, Key: expr.CtKeySTATE},
		without(expr.CtStateBitESTABLISHED | expr.CtStateBitRELATED),
		&expr.Cmp{Op: expr.CmpOpNeq, Register: first, Data: make([]byte, 4)},
		&expr.Verdict{Kind: expr.VerdictAccept},
	}}
	for _, network := range cluster {
		if !network.Addr().Is4() {
			continue
		}
		address, mask := network.Masked().Addr().As4(), make([]byte, 4)
		binary.BigEndian.PutUint32(mask, ^uint32(0)<<(32-network.Bits()))
		rules = append(rules, append(fromNotebook(set),
			&expr.Payload{DestRegister: first, Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 4}, // destination address
			&expr.Bitwise{SourceRegister: first, DestRegister: first, Len: 4, Mask: mask, Xor: make([]byte, 4)},
			equal(address[:]),
			&expr.Meta{Register: first, Key: expr.MetaKeyL4PROTO},
			equal([]byte{unix.IPPROTO_UDP}),
			&expr.Payload{DestRegister: first, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2}, // destination port
			equal(binaryutil.BigEndian.PutUint16(53)),
			&expr.Verdict{Kind: expr.VerdictAccept}))
	}
	return append(rules, append(fromNotebook(set),
		&expr.Meta{Register: first, Key: expr.MetaKeyMARK},
		without(let),
		equal(make([]byte, 4)),
		&expr.Counter{},
		&expr.Verdict{Kind: expr.VerdictDrop}))
}
