package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpulab/gpulab/internal/audit"
	"github.com/gpulab/gpulab/internal/config"
	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/embedk8s"
	"github.com/gpulab/gpulab/internal/gpu"
	"github.com/gpulab/gpulab/internal/nodeapi"
	"github.com/gpulab/gpulab/internal/nodes"
	"github.com/gpulab/gpulab/internal/notebooks"
	"github.com/gpulab/gpulab/internal/version"
)

// pool is the head's side of the machines that have joined: the door they come
// in by, what they tell, and what Kubernetes is told of them. A lab of one
// machine has none of it: the door opens with a join code, and closes when
// nobody can come any more.
type pool struct {
	lab       *appliance
	registry  *nodes.Registry
	authority *nodes.Authority
	began     time.Time
	audits    *rate.Limiter // of what strangers can bring about
	requests  *nodes.Requests
	announcer announcer // of look, whose goroutine alone uses it
	rounds    int       // of look, whose goroutine alone uses it

	offer        atomic.Pointer[imageOffer]       // of images, as last looked at; nil before that
	environments atomic.Pointer[environmentOffer] // the same of environments
	unreadable   atomic.Pointer[string]           // why none of those are handed over; nil where they are

	mu      sync.Mutex
	door    *poolDoor           // set by run
	heard   map[string]*machine // by name
	members []nodes.Node        // as last read
	// exportTrouble is why homes are not exported as they should be.
	exportTrouble error
	known         bool // members were read
}

// machine is what the head knows of one that has joined.
type machine struct {
	at       time.Time // of the latest report; zero before the first
	snapshot gpu.Snapshot
	features map[string]string
	labelled string        // what Kubernetes was told last
	ahead    time.Duration // its clock, of the head's; 0 where that does not matter
	host     *nodeapi.Host
	images   *nodeapi.ImageState
	// environments is nil where it does not tell.
	environments *nodeapi.EnvironmentState
	encryption   toldEncryption
	memoryKills  map[string]int // see nodeapi.Report
	mapsIDs      *bool          // nil until it has told
	check        poolCheck
}

// lostAfter is how long a machine may be silent. It reports every second.
const lostAfter = 10 * time.Second

// askKubernetes is after how many rounds, of a second each, it is looked at.
const askKubernetes = 3

// connectionsPerMachine bounds what one address may hold of the machines' door.
const connectionsPerMachine = 32

func newPool(ctx context.Context, l *appliance) (*pool, error) {
	authority, err := nodes.LoadAuthority(filepath.Join(tlsDir(l.cfg), "nodes"))
	if err != nil {
		return nil, err
	}
	p := &pool{
		lab: l, registry: nodes.New(l.store.DB()), authority: authority, requests: nodes.NewRequests(authority.Fingerprint()),
		began: time.Now(), heard: map[string]*machine{}, audits: rate.NewLimiter(rate.Every(time.Minute), 20),
	}
	// Before anything is decided by who is there, such as which charts there are.
	return p, p.reread(ctx)
}

// run keeps the door open for as long as somebody may come, and watches who is
// there, until ctx ends.
func (p *pool) run(ctx context.Context, g *errgroup.Group) error {
	door := &poolDoor{begin: func() (func(), error) { return p.openDoor(ctx, g) }}
	p.mu.Lock()
	p.door = door
	p.mu.Unlock()
	defer p.announcer.stop()
	failing := ""
	for {
		if err := p.look(ctx, door); err != nil && ctx.Err() == nil {
			if err.Error() != failing {
				failing = err.Error()
				slog.Warn("the other machines are not looked after; trying again", "err", err)
			}
		} else {
			failing = ""
		}
		if !sleep(ctx, time.Second) {
			return nil
		}
	}
}

// look reads who belongs to the pool, and shows machines that are silent.
func (p *pool) look(ctx context.Context, door *poolDoor) error {
	wanted, err := p.expects(ctx)
	if err != nil {
		return err
	}
	p.announcer.set(wanted && !p.lab.cfg.NodesHidden, p.announcement)
	if !wanted {
		if err := door.shutUnless(func() (bool, error) { return p.expects(ctx) }); err != nil {
			return err
		}
	}
	if !wanted && p.settled() {
		return p.exportHomes(ctx) // to nobody
	}
	var errs []error
	if wanted {
		errs = append(errs, door.open())
	}
	if err := p.reread(ctx); err != nil {
		return errors.Join(append(errs, err)...)
	}
	p.showSilent(time.Now())
	if p.rounds++; p.rounds%askKubernetes != 0 {
		return errors.Join(errs...)
	}
	errs = append(errs, p.exportHomes(ctx))
	if p.lab.attached.Load() != nil && !p.settled() {
		_, err := p.lookAtImages(ctx)
		errs = append(errs, err)
	}
	if client := p.lab.client.Load(); client != nil {
		errs = append(errs, p.tellKubernetes(ctx, client))
	}
	return errors.Join(errs...)
}

// settled tells whether there is nobody to look after.
func (p *pool) settled() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.known && len(p.members) == 0
}

// reread takes the list of machines from the database.
func (p *pool) reread(ctx context.Context) error {
	list, err := p.registry.List(ctx)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	// Notebooks may not reach where machines are now either.
	changed := !p.known || !slices.EqualFunc(list, p.members, func(a, b nodes.Node) bool {
		return a.ID == b.ID && a.Address == b.Address
	})
	p.members, p.known = list, true
	there := map[string]bool{}
	for _, n := range list {
		there[n.Name] = true
		if p.heard[n.Name] == nil {
			p.heard[n.Name], changed = &machine{}, true
		}
	}
	for name := range p.heard {
		if !there[name] {
			delete(p.heard, name)
			p.lab.fleet.Forget(name)
			changed = true
		}
	}
	if changed {
		p.lab.poolChanged()
	}
	return nil
}

// list is who belongs to the pool besides the head.
func (p *pool) list() []nodes.Node {
	if p == nil {
		return nil // before there is a database
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.members)
}

// silent tells whether a machine has not been heard lately, and when it was last.
func (p *pool) silent(n nodes.Node, now time.Time) (last time.Time, silent bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	last = n.Seen
	// One whose version does not work with the head's is seen, and not heard.
	if m := p.heard[n.Name]; m != nil && m.at.After(last) {
		last = m.at
	}
	// After its own start the head hears nobody for a moment.
	return last, now.Sub(last) > lostAfter && now.Sub(p.began) > lostAfter
}

// showSilent puts machines that say nothing among the others, with what was
// known last.
func (p *pool) showSilent(now time.Time) {
	for _, n := range p.list() {
		last, silent := p.silent(n, now)
		skew := nodeapi.Skew(n.Name, n.Version, version.Version)
		if !silent && skew == nil {
			continue
		}
		p.mu.Lock()
		var s gpu.Snapshot
		if m := p.heard[n.Name]; m != nil {
			s = m.snapshot
		}
		p.mu.Unlock()
		s.Node, s.Events, s.EventsDropped, s.Lost = n.Name, nil, 0, true
		s.Error = lostSentence(p.lab.called(n.Name), last)
		if !silent {
			s.Error = skewSentence(skew)
		}
		p.lab.fleet.Update(s)
	}
}

// skewSentence says why a machine is not heard that could be.
func skewSentence(skew error) string {
	return "It is not heard: " + skew.Error() + ". Notebooks there go on."
}

func lostSentence(name string, last time.Time) string {
	return fmt.Sprintf("%s has not been heard since %s. Notebooks there may well go on, but cannot be reached; they "+
		"are back with the machine. See that it is on and connected.",
		name, last.Local().Format("15:04:05 on Mon 2 Jan"))
}

// Hello implements nodeapi.Head.
func (p *pool) Hello() nodeapi.Hello {
	return nodeapi.Hello{Lab: p.lab.cfg.Lab, Version: version.Version, Time: time.Now()}
}

// Settings implements nodeapi.Head.
func (p *pool) Settings(context.Context) (nodeapi.Settings, error) {
	l := p.lab
	if l.attached.Load() == nil {
		return nodeapi.Settings{}, errors.New("the lab is still starting; try again in a minute")
	}
	mark, err := l.storageMark(context.Background())
	if err != nil {
		return nodeapi.Settings{}, err
	}
	return nodeapi.Settings{
		Lab: l.cfg.Lab, URL: l.url(), Head: l.id.NodeName, DataDir: l.cfg.DataDir,
		ClusterCIDR: l.id.ClusterCIDR.String(), ServiceCIDR: l.id.ServiceCIDR.String(), APIPort: kubernetesPort,
		Images: l.images.Refs(), GPUs: l.poolGPUs(), SimulatedGPUs: l.cfg.SimulatedGPUs, GPUSharing: l.cfg.GPUSharing,
		PodMaxPIDs: l.cfg.K3s.PodMaxPIDs, Shared: l.cfg.Storage.Shared, Export: l.cfg.Storage.Export, Mark: mark,
		Proxy: l.cfg.Network.Proxy, NoProxy: l.cfg.Network.NoProxy, Encrypt: l.cfg.Network.Encrypt,
	}, nil
}

// kubernetesPort is where k3s serves the Kubernetes API.
const kubernetesPort = 6443

// Joined implements nodeapi.Head: what Kubernetes has of an earlier machine of
// the name goes.
func (p *pool) Joined(ctx context.Context, n nodes.Node, replaced bool) error {
	detail := n.Address
	if replaced {
		detail += ", in place of an earlier one of the name"
	}
	p.lab.auditSystem(ctx, "node.join", n.Name, detail)
	if err := p.forgetNode(ctx, n.Name, n.Joined); err != nil {
		return err
	}
	return p.reread(ctx)
}

// Refused implements nodeapi.Head.
func (p *pool) Refused(ctx context.Context, who, remote, why string) {
	slog.Warn("a machine was refused", "machine", who, "from", remote, "why", why)
	if !p.audits.Allow() {
		return
	}
	host, _, _ := net.SplitHostPort(remote)
	err := p.lab.people.AuditLog().Record(context.WithoutCancel(ctx),
		audit.Entry{Actor: "system", Action: "node.refused", Target: who, Detail: firstSentence(why), Remote: host})
	if err != nil {
		slog.Warn("the audit log misses that", "err", err)
	}
}

// firstSentence is the reason without the next steps.
func firstSentence(text string) string {
	text, _, _ = strings.Cut(text, ";")
	return text
}

// Orders implements nodeapi.Head.
func (p *pool) Orders(nodes.Node) nodeapi.Orders {
	o := nodeapi.Orders{Places: p.places(), Encrypt: p.lab.cfg.Network.Encrypt, Starting: p.lab.client.Load() == nil}
	if parts := p.lab.attached.Load(); parts != nil {
		o.LentAnyway = parts.lending.lentAnyway()
	}
	if offer := p.offer.Load(); offer != nil {
		o.Images = offer.images.Version
	}
	// Where notebooks start on the head alone, others need none.
	if offer, err := p.lookAtEnvironments(); err == nil && p.lab.stayHome() == "" {
		o.Environments = offer.list.Version
	}
	return o
}

// Report implements nodeapi.Head. Of pods, only what the head knows itself is
// believed: who a pod's person is, and that it runs on that machine.
func (p *pool) Report(_ context.Context, n nodes.Node, r nodeapi.Report) error {
	parts := p.lab.attached.Load()
	if parts == nil {
		return nil // the head is starting
	}
	s := r.Snapshot
	if err := p.lab.fleet.Claim(n.Name, s.GPUs); err != nil {
		return err
	}
	nameOwners(&s, ownersOn(parts.kube, n.Name))
	for i := range s.GPUs {
		if s.GPUs[i].MemoryLimits == gpu.MemoryLimitsEnforced {
			s.GPUs[i].MemoryLimits = gpu.MemoryLimitsJoined // the driver could, but nobody there tells it
		}
	}
	p.mu.Lock()
	m, news := p.heard[n.Name], false
	if m != nil {
		news = !sameImages(m.images, r.Images) || !sameEnvironments(m.environments, r.Environments)
		m.at, m.snapshot, m.features, m.ahead, m.host, m.images, m.environments = time.Now(), s, r.Features, r.ClockOff,
			r.Host, r.Images, r.Environments
		m.encryption, m.memoryKills = toldEncryption{r.Encrypts, r.CannotEncrypt}, r.MemoryKills
		if r.MapsIDs != nil {
			m.mapsIDs = r.MapsIDs
		}
	}
	p.mu.Unlock()
	if m != nil {
		p.lab.fleet.Update(s)
	}
	if news {
		parts.notebooks.Wake()
	}
	return nil
}

// sameImages tells whether a machine has the images that it had.
func sameImages(a, b *nodeapi.ImageState) bool {
	return a == b || a != nil && b != nil && slices.Equal(a.Have, b.Have)
}

func sameEnvironments(a, b *nodeapi.EnvironmentState) bool {
	return a == b || a != nil && b != nil && slices.Equal(a.Have, b.Have)
}

// owners are a machine's notebooks as the head knows them.
type owners struct {
	byUID  map[string]gpu.PodRef
	byName map[string]gpu.Holder // by namespace/name; with the time it started
}

func ownersOn(kube notebookPods, node string) owners {
	o := owners{map[string]gpu.PodRef{}, map[string]gpu.Holder{}}
	for _, pod := range kube.Notebooks() {
		if pod.Node == node {
			o.byUID[pod.UID] = podRef(pod)
			o.byName[pod.Namespace+"/"+pod.Name] = gpu.Holder{PodRef: podRef(pod), Since: pod.Started}
		}
	}
	return o
}

// nameOwners fills in whose the pods of a snapshot are.
func nameOwners(s *gpu.Snapshot, o owners) {
	for i := range s.GPUs {
		g := &s.GPUs[i]
		for k := range g.Processes {
			p := &g.Processes[k].Pod
			if ref, ok := o.byUID[p.UID]; ok && p.UID != "" {
				*p = ref
			} else {
				*p = gpu.PodRef{UID: p.UID}
			}
		}
		for k := range g.Holders {
			h := &g.Holders[k]
			known, ok := o.byName[h.Namespace+"/"+h.Name]
			if !ok {
				h.PodRef = gpu.PodRef{Namespace: h.Namespace, Name: h.Name}
				continue
			}
			h.PodRef = known.PodRef
			if !known.Since.IsZero() {
				h.Since = known.Since
			}
		}
	}
}

// Left implements nodeapi.Head.
func (p *pool) Left(ctx context.Context, n nodes.Node) error {
	p.lab.auditSystem(ctx, "node.leave", n.Name, "")
	_, err := p.remove(ctx, n.Name)
	return errors.Join(err, p.registry.Told(context.WithoutCancel(ctx), n.ID))
}

// remove takes a machine out of the list, and out of Kubernetes.
func (p *pool) remove(ctx context.Context, name string) (nodes.Node, error) {
	n, err := p.registry.Remove(ctx, name)
	if err != nil {
		return nodes.Node{}, err
	}
	if err := errors.Join(p.reread(ctx), p.lab.rereadTitles(ctx)); err != nil {
		return n, err
	}
	// Later too, if the machine that went comes back; see tellKubernetes.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
	defer cancel()
	return n, p.forgetNode(ctx, name, time.Now().Add(time.Hour))
}

// invite makes a code that names this machine's addresses; with a key, it is for
// the machine that has it.
func (p *pool) invite(ctx context.Context,
	key *[sha256.Size]byte) (code nodes.Code, expires time.Time, at []string, err error) {
	p.mu.Lock()
	door := p.door
	p.mu.Unlock()
	if door == nil || p.lab.attached.Load() == nil {
		return nodes.Code{}, time.Time{}, nil, errStarting
	}
	addresses := p.places().Addresses
	var words []string
	for _, at := range addresses {
		words = append(words, at.String())
	}
	err = door.openFor(func() (err error) {
		if key != nil {
			code, expires, err = p.registry.InviteKey(ctx, p.authority.Fingerprint(), addresses, *key)
		} else {
			code, expires, err = p.registry.Invite(ctx, p.authority.Fingerprint(), addresses)
		}
		return err
	})
	return code, expires, words[:min(len(words), len(code.Addresses))], err
}

// places are where machines find this head: its addresses, and names that may
// lead here when those are others.
func (p *pool) places() nodeapi.Places {
	here := p.lab.where.Load()
	if here == nil {
		return nodeapi.Places{}
	}
	out := nodeapi.Places{URL: p.lab.url()}
	for _, a := range append([]netip.Addr{here.address}, here.all...) {
		at := netip.AddrPortFrom(a, uint16(p.lab.cfg.NodesPort))
		if a.IsValid() && !a.IsLinkLocalUnicast() && !slices.Contains(out.Addresses, at) {
			out.Addresses = append(out.Addresses, at)
		}
	}
	if host, err := os.Hostname(); err == nil && host != "localhost" {
		out.Names = append(out.Names, strings.ToLower(host))
	}
	for _, name := range p.lab.cfg.OwnNames() {
		if _, err := netip.ParseAddr(name); err != nil {
			out.Names = append(out.Names, strings.ToLower(name))
		}
	}
	return out
}

// auditSystem records what the system saw of a machine.
func (l *appliance) auditSystem(ctx context.Context, action, target, detail string) {
	if err := l.people.AuditLog().Record(context.WithoutCancel(ctx),
		audit.Entry{Actor: "system", Action: action, Target: target, Detail: detail}); err != nil {
		slog.Warn("the audit log misses an entry", "action", action, "err", err)
	}
}

// poolGPUs is what the GPUs of the pool are: the head's kind, or where it has
// none that of the first machine with some. One device plugin serves all, so
// they are of one kind.
func (l *appliance) poolGPUs() string {
	if l.cfg.GPUs != config.GPUsNone {
		return string(l.cfg.GPUs)
	}
	for _, n := range l.pool.list() {
		if n.GPUs != config.GPUsNone {
			return n.GPUs
		}
	}
	return config.GPUsNone
}

// poolChanged makes the cluster fit for the machines that are there now.
func (l *appliance) poolChanged() {
	l.mendSoon()
	if parts := l.attached.Load(); parts != nil {
		parts.notebooks.Wake()
	}
}

// stayHome names the machine that notebooks have to run on because their homes
// are on its disk; "" where they may run on any.
func (l *appliance) stayHome() string {
	if l.cfg.Storage.Everywhere() || len(l.pool.list()) == 0 {
		return ""
	}
	return l.id.NodeName
}

// stayHomeNote says so, and what would change it.
func (l *appliance) stayHomeNote() string {
	if l.stayHome() == "" {
		return ""
	}
	return fmt.Sprintf("Notebooks start on %s only, because homes are on its own disk: storage.export in the "+
		"configuration lets the other machines have them over NFS, and storage.shared names storage that every "+
		"machine mounts.",
		l.called(l.id.NodeName))
}

// nodeAddresses are where the pool's other machines are.
func (p *pool) nodeAddresses() []netip.Addr {
	var out []netip.Addr
	for _, n := range p.list() {
		if a, err := netip.ParseAddr(n.Address); err == nil {
			out = append(out, a)
		}
	}
	return out
}

// readiness is what Kubernetes says of the nodes, by name.
func readiness(list []corev1.Node) map[string]string {
	out := map[string]string{}
	for i := range list {
		out[list[i].Name] = "it has not reported yet"
		for _, c := range list[i].Status.Conditions {
			if c.Type == corev1.NodeReady {
				out[list[i].Name] = c.Message
				if c.Status == corev1.ConditionTrue {
					out[list[i].Name] = ""
				}
			}
		}
	}
	return out
}

// describe tells of the pool's other machines, for people.
func (p *pool) describe(ctx context.Context) []nodeStatus {
	members := p.list()
	if len(members) == 0 {
		return nil
	}
	var ready map[string]string
	if client := p.lab.client.Load(); client != nil {
		ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
		defer cancel()
		if list, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"}); err == nil {
			ready = readiness(list.Items)
		}
	}
	var out []nodeStatus
	for _, n := range members {
		s := nodeStatus{Node: n}
		s.last, s.lost = p.silent(n, time.Now())
		s.notReady, s.registered = ready[n.Name]
		p.mu.Lock()
		if m := p.heard[n.Name]; m != nil {
			s.snapshot, s.reported, s.host, s.ahead, s.images, s.environments = m.snapshot, !m.at.IsZero(), m.host, m.ahead,
				toldImages(m.images), toldEnvironments(m.environments)
			s.encryption = m.encryption
		}
		p.mu.Unlock()
		out = append(out, s)
	}
	return out
}

// nodeStatus is one machine as describe found it.
type nodeStatus struct {
	nodes.Node
	last       time.Time
	lost       bool
	registered bool   // Kubernetes knows it
	notReady   string // why Kubernetes does not call it ready, "" if it does
	reported   bool
	snapshot   gpu.Snapshot
	ahead      time.Duration // its clock
	host       *nodeapi.Host
	images     *ctl.NodeImages
	encryption toldEncryption
	// environments is nil where it has all, or does not tell.
	environments *ctl.NodeEnvironments
}

// labelsOf is what Kubernetes is to know of a machine's GPUs.
func (p *pool) labelsOf(n nodes.Node) (features map[string]*string, key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := p.heard[n.Name]
	if m == nil {
		return nil, ""
	}
	features = map[string]*string{}
	if n.GPUs != config.GPUsNone {
		for name, value := range m.features {
			if featureLabels.MatchString(name) {
				features[name] = &value
			}
		}
	}
	key = n.GPUs
	for _, name := range slices.Sorted(maps.Keys(features)) {
		key += " " + name + "=" + *features[name]
	}
	if key == m.labelled {
		return nil, ""
	}
	return features, key
}

// hosts is how large and how busy the joined machines are that have told.
func (p *pool) hosts() (list []nodeapi.Host) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range p.heard {
		if m.host != nil {
			list = append(list, *m.host)
		}
	}
	return list
}

// recentKills are the memory kills of this machine's pods, looked at once for all who
// ask in the same second.
type recentKills struct {
	mu sync.Mutex
	at time.Time
	by map[string]int // replaced as a whole, never changed
}

func (r *recentKills) now() map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.by == nil || time.Since(r.at) > time.Second {
		r.by, r.at = embedk8s.MemoryKills(), time.Now()
	}
	return r.by
}

// memoryKills counts the processes of a pod that were ended because its memory ran
// out; false where its machine has not told. One speaks for its own pods only.
func (l *appliance) memoryKills(p notebooks.PodInfo) (int, bool) {
	if p.Node == l.id.NodeName {
		n, known := l.kills.now()[p.UID]
		return n, known
	}
	l.pool.mu.Lock()
	defer l.pool.mu.Unlock()
	m := l.pool.heard[p.Node]
	if m == nil {
		return 0, false
	}
	n, known := m.memoryKills[p.UID]
	return n, known
}

// notebookPods tells which notebooks run.
type notebookPods interface{ Notebooks() []notebooks.PodInfo }
