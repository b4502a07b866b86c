package notebooks

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpulab/gpulab/internal/queue"
	"github.com/gpulab/gpulab/internal/store"
	"github.com/gpulab/gpulab/internal/users"
)

// smallLab is a cluster that behaves: nodes with resources, pods that hold
// them until they are gone.
type smallLab struct {
	mu       sync.Mutex
	nodes    []NodeRoom
	closed   int // nodes that are not ready
	pods     map[string]*PodInfo
	unsynced bool
	warnings []string
	deleted  []string // UIDs that gpulab deleted itself
	noDelete bool     // the API is away
	created  []*corev1.Pod
	broken   bool // images cannot be had
	linger   time.Duration
	slow     bool   // pods get their place later
	between  func() // runs after each look at the room, under mu
	changes  chan struct{}
	count    int
	gone     map[int64]PodInfo // how pods were seen last
	onDelete func(p *PodInfo)  // how a pod ends that is deleted, under mu
}

func newSmallLab(gpus ...int) *smallLab {
	c := &smallLab{gone: map[int64]PodInfo{}, pods: map[string]*PodInfo{}, changes: make(chan struct{}, 1)}
	for i, n := range gpus {
		total := Amount{GPUs: n, MilliCPU: 8000, Memory: 32 << 30}
		c.nodes = append(c.nodes, NodeRoom{Name: fmt.Sprintf("node%d", i+1), Total: total, HasGPUs: n > 0})
	}
	return c
}

func (c *smallLab) Synced() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.unsynced
}

func (c *smallLab) Changes() <-chan struct{} { return c.changes }

func (c *smallLab) changed() {
	select {
	case c.changes <- struct{}{}:
	default:
	}
}

// edit changes the cluster and wakes whoever watches.
func (c *smallLab) edit(f func()) {
	c.mu.Lock()
	f()
	c.mu.Unlock()
	c.changed()
}

func (c *smallLab) Room() Room {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.between != nil {
		defer c.between()
	}
	room := Room{Away: slices.Repeat([]NodeRoom{{Name: "away", Total: Amount{GPUs: 9, MilliCPU: 8000, Memory: 1 << 40}}}, c.closed)}
	for _, n := range c.nodes {
		n.Free = n.Total
		for _, p := range c.pods {
			if p.Node == n.Name && !p.Finished {
				n.Free = n.Free.minus(Amount{GPUs: p.GPUs, MilliCPU: 100, Memory: 512 << 20})
			}
		}
		room.Nodes = append(room.Nodes, n)
	}
	for _, p := range c.pods {
		if p.GPUs > 0 && !p.Finished {
			room.Holders = append(room.Holders, Holder{Handle: p.Handle, Notebook: p.Server, Pod: p.Name, GPUs: p.GPUs, Since: p.Created})
		}
	}
	slices.SortFunc(room.Holders, func(a, b Holder) int { return a.Since.Compare(b.Since) })
	return room
}

func (c *smallLab) Notebooks() []PodInfo {
	c.mu.Lock()
	defer c.mu.Unlock()
	var list []PodInfo
	for _, p := range c.pods {
		list = append(list, *p)
	}
	return list
}

func (c *smallLab) Warnings(context.Context, PodInfo) ([]string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.warnings, nil
}

func (c *smallLab) DeletePod(_ context.Context, p PodInfo, _ time.Duration) error {
	c.mu.Lock()
	if c.noDelete {
		c.mu.Unlock()
		return errors.New("connection refused")
	}
	c.deleted = append(c.deleted, p.UID)
	c.mu.Unlock()
	c.remove(p.UID)
	return nil
}

func (c *smallLab) Gone(launch int64) (PodInfo, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p, ok := c.gone[launch]
	return p, ok
}

// CreatePod makes a job's pod, which gets a place as others do.
func (c *smallLab) CreatePod(_ context.Context, p *corev1.Pod) error {
	c.mu.Lock()
	if c.noDelete {
		c.mu.Unlock()
		return errors.New("connection refused")
	}
	c.created = append(c.created, p)
	for _, had := range c.pods {
		if had.Namespace == p.Namespace && had.Name == p.Name {
			c.mu.Unlock()
			return nil
		}
	}
	c.mu.Unlock()
	launch, _ := strconv.ParseInt(p.Labels[labelLaunch], 10, 64)
	gpus := p.Spec.Containers[0].Resources.Limits[gpuResource]
	uid := c.add(p.Labels[labelUser], p.Labels[labelNotebook], launch, int(gpus.Value()))
	c.pod(uid, func(info *PodInfo) {
		info.Name, info.Job = p.Name, true
		if ports := p.Spec.Containers[0].Ports; len(ports) > 0 {
			info.Port = int(ports[0].ContainerPort)
		}
	})
	if c.broken {
		c.pod(uid, func(p *PodInfo) {
			p.WaitingReason, p.WaitingMessage = "ErrImagePull", "gpulab.local/notebook:1: not found"
		})
		return nil
	}
	c.ready(uid)
	return nil
}

// remove ends a pod as Kubernetes does: terminating first, gone a little later.
func (c *smallLab) remove(uid string) {
	c.edit(func() {
		if p := c.pods[uid]; p != nil {
			p.Terminating = true
			if c.onDelete != nil && !p.Finished {
				c.onDelete(p)
			}
		}
	})
	time.AfterFunc(c.linger, func() {
		c.edit(func() {
			if p := c.pods[uid]; p != nil {
				c.gone[p.LaunchID] = *p
			}
			delete(c.pods, uid)
		})
	})
}

// add places a pod on the first node with enough free GPUs, or leaves it pending.
func (c *smallLab) add(handle, server string, launch int64, gpus int, only ...any) string {
	room := c.Room()
	c.mu.Lock()
	defer func() { c.mu.Unlock(); c.changed() }()
	c.count++
	p := &PodInfo{
		UID: fmt.Sprintf("uid-%d", c.count), Namespace: "user-" + handle, Name: fmt.Sprintf("jupyter-%s-%s-%d", handle, server, c.count),
		Handle: handle, Server: server, LaunchID: launch, GPUs: gpus, Created: time.Now(),
		Unschedulable: "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.",
	}
	for _, n := range room.Nodes {
		if !c.slow && n.Free.GPUs >= gpus && (len(only) == 0 || slices.Contains(only, any(n.Name))) {
			p.Node, p.Scheduled, p.Unschedulable = n.Name, true, ""
			break
		}
	}
	c.pods[p.UID] = p
	return p.UID
}

func (c *smallLab) pod(uid string, change func(*PodInfo)) {
	c.edit(func() {
		if p := c.pods[uid]; p != nil {
			change(p)
		}
	})
}

func (c *smallLab) ready(uid string) {
	c.pod(uid, func(p *PodInfo) {
		p.ImageReady, p.Started, p.IP, p.Ready = true, time.Now(), "10.42.0.9", p.Scheduled
	})
}

// smallHub is a hub that behaves: it makes pods and tells the proxy's REST API.
type smallHub struct {
	t       *testing.T
	lab     *smallLab
	routes  http.Handler
	server  *httptest.Server
	gpus    map[string]int // by profile
	mu      sync.Mutex
	users   map[string]bool
	servers map[podKey]*hubEntry
	calls   []string
	down    bool
	// outcome decides how the next starts go, "" = well.
	outcome string
	refuse  func(w http.ResponseWriter) bool // answers a start itself
}

type hubEntry struct {
	pending, uid, failure string
	ready                 bool
	options               map[string]any
}

func newSmallHub(t *testing.T, lab *smallLab, routes http.Handler) *smallHub {
	h := &smallHub{t: t, lab: lab, routes: routes, users: map[string]bool{}, servers: map[podKey]*hubEntry{}, gpus: map[string]int{"gpu": 1, "gpu2": 2, "gpu9": 9}}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /hub/api/users/{user}", h.addUser)
	mux.HandleFunc("POST /hub/api/users/{user}/servers/{name}", h.start)
	mux.HandleFunc("GET /hub/api/users/{user}/servers/{name}", h.show)
	mux.HandleFunc("GET /hub/api/users/{user}/servers/{name}/progress", h.progress)
	mux.HandleFunc("DELETE /hub/api/users/{user}/servers/{name}", h.stop)
	mux.HandleFunc("POST /hub/api/proxy", h.checkProxy)
	h.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.mu.Lock()
		h.calls = append(h.calls, r.Method+" "+strings.TrimPrefix(r.URL.Path, "/hub/api"))
		down := h.down
		h.mu.Unlock()
		switch {
		case down:
			w.WriteHeader(http.StatusServiceUnavailable)
		case r.Header.Get("Authorization") != "token service-token":
			w.WriteHeader(http.StatusForbidden)
		default:
			mux.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(h.server.Close)
	return h
}

func (h *smallHub) set(change func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change()
}

func (h *smallHub) called(prefix string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := 0
	for _, c := range h.calls {
		if strings.HasPrefix(c, prefix) {
			n++
		}
	}
	return n
}

func keyOf(r *http.Request) podKey { return podKey{r.PathValue("user"), r.PathValue("name")} }

func (h *smallHub) addUser(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.users[r.PathValue("user")] {
		hubFault(w, http.StatusConflict, "User already exists")
		return
	}
	h.users[r.PathValue("user")] = true
	w.WriteHeader(http.StatusCreated)
}

func hubFault(w http.ResponseWriter, status int, message string) {
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"status": status, "message": message})
}

func (h *smallHub) start(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	k := keyOf(r)
	if !h.users[k.handle] {
		hubFault(w, http.StatusNotFound, "No such user")
		return
	}
	if h.refuse != nil && h.refuse(w) {
		return
	}
	if e := h.servers[k]; e != nil {
		switch {
		case e.pending == "spawn":
			w.WriteHeader(http.StatusAccepted)
			return
		case e.pending != "":
			hubFault(w, http.StatusBadRequest, k.handle+":"+k.server+" is pending stop")
			return
		case e.ready:
			hubFault(w, http.StatusBadRequest, k.handle+":"+k.server+" is already running")
			return
		}
	}
	var body struct {
		Options map[string]any `json:"user_options"`
	}
	_ = json.NewDecoder(r.Body).Decode(&body)
	e := &hubEntry{pending: "spawn", options: body.Options}
	h.servers[k] = e
	go h.spawn(k, e, h.outcome)
	w.WriteHeader(http.StatusAccepted)
}

// optionsOf is what gpulab sent with the start of a launch.
func (h *smallHub) optionsOf(l Launch) (options map[string]any) {
	h.set(func() { options = h.servers[podKey{l.Handle, l.Name}].options })
	return options
}

// spawn is what happens between asking for a server and its being ready.
func (h *smallHub) spawn(k podKey, e *hubEntry, outcome string) {
	if outcome == "refused" {
		h.fail(e, "The pod could not be created")
		return
	}
	var launch int64
	_, _ = fmt.Sscan(fmt.Sprint(e.options["launch"]), &launch)
	only, _ := e.options["machines"].([]any)
	uid := h.lab.add(k.handle, k.server, launch, h.gpus[fmt.Sprint(e.options["profile"])], only...)
	h.set(func() { e.uid = uid })
	switch outcome {
	case "image":
		h.lab.pod(uid, func(p *PodInfo) {
			p.WaitingReason, p.WaitingMessage = "ErrImagePull", "gpulab.local/notebook:abc: not found"
		})
		return
	case "crash":
		h.lab.pod(uid, func(p *PodInfo) { p.Exited, p.ExitCode, p.Finished, p.ExitReason = true, 1, true, "Error" })
		return
	case "slow":
		return
	case "unready":
		h.lab.pod(uid, func(p *PodInfo) { p.ImageReady, p.Started, p.IP, p.Ready = true, time.Now(), "10.42.0.9", true })
		return
	}
	h.lab.ready(uid)
	h.mu.Lock()
	alive := h.servers[k] == e && e.pending == "spawn"
	h.mu.Unlock()
	if alive {
		h.addRoute(k)
		h.set(func() { e.pending, e.ready = "", true })
	}
}

func (h *smallHub) fail(e *hubEntry, message string) {
	h.set(func() { e.pending, e.failure = "", message })
}

func (h *smallHub) addRoute(k podKey) {
	rec := apiCall(h.routes, http.MethodPost, "/hub-proxy/api/routes/user/"+k.handle+"/"+k.server, testToken, `{"target":"http://10.42.0.9:8888","jupyterhub":true}`)
	if rec.Code != http.StatusCreated {
		h.t.Errorf("the hub could not add a route: %d", rec.Code)
	}
}

func (h *smallHub) show(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	e := h.servers[keyOf(r)]
	if e == nil {
		hubFault(w, http.StatusNotFound, "")
		return
	}
	var pending any
	if e.pending != "" {
		pending = e.pending
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"name": r.PathValue("name"), "pending": pending, "ready": e.ready, "stopped": !e.ready && e.pending == "", "user_options": e.options})
}

func (h *smallHub) progress(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	e := h.servers[keyOf(r)]
	if e == nil || e.failure == "" {
		hubFault(w, http.StatusBadRequest, "not starting")
		return
	}
	_, _ = fmt.Fprintf(w, "\n\ndata: {\"progress\": 100, \"failed\": true, \"message\": \"Spawn failed: %s\"}\n\n", e.failure)
}

func (h *smallHub) stop(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	k := keyOf(r)
	e := h.servers[k]
	switch {
	case e == nil:
		hubFault(w, http.StatusNotFound, "no such server")
	case e.pending == "stop":
		w.WriteHeader(http.StatusAccepted)
	case !e.ready && e.pending == "":
		w.WriteHeader(http.StatusNoContent)
	default:
		e.pending, e.ready = "stop", false
		go h.finishStop(k, e)
		w.WriteHeader(http.StatusAccepted)
	}
}

func (h *smallHub) finishStop(k podKey, e *hubEntry) {
	apiCall(h.routes, http.MethodDelete, "/hub-proxy/api/routes/user/"+k.handle+"/"+k.server, testToken, "")
	var uid string
	h.set(func() { uid = e.uid })
	h.lab.remove(uid)
	h.set(func() { e.pending = "" })
}

func (h *smallHub) checkProxy(http.ResponseWriter, *http.Request) {
	h.mu.Lock()
	var ready []podKey
	for k, e := range h.servers {
		if e.ready {
			ready = append(ready, k)
		}
	}
	h.mu.Unlock()
	for _, k := range ready {
		h.addRoute(k)
	}
}

// smallLine is a line that behaves: strict order among those whom the same
// kinds will do, and as many GPUs as there are.
type smallLine struct {
	mu       sync.Mutex
	state    queue.State
	admitted map[int64]string // the kind by launch
	turns    map[int64]int
	last     int64 // who goes behind all others
	trouble  string
	changes  chan struct{}
}

func newSmallLine() *smallLine {
	return &smallLine{admitted: map[int64]string{}, turns: map[int64]int{}, changes: make(chan struct{}, 1)}
}

func (l *smallLine) Keep(s queue.State) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state = s
	l.decide()
}

// decide lets in whoever is next and fits.
func (l *smallLine) decide() {
	left, there := map[string]int{}, map[int64]bool{}
	for _, c := range l.state.Claims {
		if !c.Held && (l.turns[c.Launch] != c.Turn || c.Aside) {
			delete(l.admitted, c.Launch) // that was another turn
		}
		l.turns[c.Launch] = c.Turn
	}
	for _, s := range l.state.Stock {
		left[s.Kind] = s.GPUs
	}
	for _, c := range l.state.Claims {
		there[c.Launch] = true
		if _, in := l.admitted[c.Launch]; c.Held && !in {
			l.admitted[c.Launch] = c.On
		}
		if kind, in := l.admitted[c.Launch]; in {
			left[kind] -= c.GPUs
		}
	}
	for id := range l.admitted {
		if !there[id] {
			delete(l.admitted, id)
		}
	}
	changed, blocked := false, map[string]bool{}
	for _, c := range l.claims() {
		if _, in := l.admitted[c.Launch]; in || c.Unready || c.Aside || l.trouble != "" {
			continue
		}
		line := fmt.Sprint(c.Kinds)
		for _, s := range l.state.Stock {
			if !blocked[line] && (c.Kinds == nil || slices.Contains(c.Kinds, s.Kind)) && left[s.Kind] >= c.GPUs {
				l.admitted[c.Launch], changed = s.Kind, true
				left[s.Kind] -= c.GPUs
				break
			}
		}
		if _, in := l.admitted[c.Launch]; !in {
			blocked[line] = true
		}
	}
	if changed {
		select {
		case l.changes <- struct{}{}:
		default:
		}
	}
}

// claims are all in their order.
func (l *smallLine) claims() []queue.Claim {
	list := slices.Clone(l.state.Claims)
	slices.SortStableFunc(list, func(a, b queue.Claim) int {
		half := func(c queue.Claim) int32 { return c.Priority >> 29 } // of a band
		switch {
		case half(a) != half(b):
			return cmp.Compare(half(b), half(a))
		case a.Launch == l.last:
			return 1
		case b.Launch == l.last:
			return -1
		}
		return 0
	})
	return list
}

func (l *smallLine) setLast(launch int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last = launch
}

func (l *smallLine) Standing(launch int64) queue.Standing {
	l.mu.Lock()
	defer l.mu.Unlock()
	if kind, in := l.admitted[launch]; in {
		return queue.Standing{Admitted: true, Kind: kind}
	}
	before := map[string]int{}
	for _, c := range l.claims() {
		if _, in := l.admitted[c.Launch]; in || c.Unready || c.Aside {
			continue
		}
		line := fmt.Sprint(c.Kinds)
		before[line]++
		if c.Launch == launch {
			return queue.Standing{Position: before[line]}
		}
	}
	return queue.Standing{}
}

func (l *smallLine) Trouble() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.trouble
}

func (l *smallLine) setTrouble(words string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.trouble = words
	l.decide()
}

func (l *smallLine) Changes() <-chan struct{} { return l.changes }

// house is gpulab's launch service in a small lab.
type house struct {
	doors   []int // ports that services may have
	line    *smallLine
	t       *testing.T
	db      *sql.DB
	people  *users.Service
	lab     *smallLab
	hub     *smallHub
	proxy   *Proxy
	service *Service
	tenants *tenants
	hold    atomic.Pointer[string] // why no launch may start now
	closed  atomic.Pointer[string] // why the lab takes none
	alice   users.User
	bob     users.User
	end     func()

	obstacles atomic.Pointer[map[string]string]   // why profiles cannot work
	unfit     atomic.Pointer[map[string][]string] // machines whose GPUs a profile's image cannot use
	placing   atomic.Pointer[Placing]
	barred    atomic.Pointer[map[int64][]string]

	booted    time.Time // when the machine was started
	simulated bool      // the lab's GPUs are
	homes     string
	preempt   Preemption
	shares    map[string]int
	minimum   time.Duration // that a job runs before it gives way
	kills     atomic.Int64  // of programs that ran into a memory limit
}

type tenants struct {
	mu     sync.Mutex
	err    error
	ensure []string
}

func (t *tenants) Ensure(_ context.Context, u users.User) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ensure = append(t.ensure, u.Handle)
	return t.err
}

func (t *tenants) set(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.err = err
}

var testProfiles = []Profile{
	{Slug: "cpu", Title: "CPU notebook", CPUs: 1, Memory: "1Gi"},
	{Slug: "gpu", Title: "GPU notebook", CPUs: 1, Memory: "1Gi", GPUs: 1},
	{Slug: "gpu2", Title: "Two GPUs", CPUs: 1, Memory: "1Gi", GPUs: 2},
	{Slug: "gpu9", Title: "Nine GPUs", CPUs: 1, Memory: "1Gi", GPUs: 9},
}

// newHouse runs the service over nodes with so many GPUs each.
func newHouse(t *testing.T, gpus ...int) *house {
	t.Helper()
	s, err := store.Open(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	h := &house{t: t, db: s.DB(), people: users.New(s.DB()), lab: newSmallLab(gpus...), line: newSmallLine(), tenants: &tenants{}, homes: t.TempDir(), doors: []int{8500, 8501, 8502}}
	h.alice, h.bob = h.person("alice"), h.person("bob")
	h.proxy, err = NewProxy(ProxyConfig{Sessions: &sessionsByCookie{}, Pods: &podsByHand{}, AuthToken: testToken, Origins: portsByID{}})
	if err != nil {
		t.Fatal(err)
	}
	h.hub = newSmallHub(t, h.lab, h.proxy.RoutesAPI())
	h.open(nil)
	t.Cleanup(func() { h.end() })
	return h
}

func (h *house) person(handle string) users.User {
	h.t.Helper()
	u, err := h.people.Create(h.t.Context(), users.NewUser{Handle: handle, Name: handle, Role: "member"})
	if err != nil {
		h.t.Fatal(err)
	}
	return u
}

// reopen restarts the service, as a restart of gpulab does; tune may change how long it waits.
func (h *house) reopen(tune func(*patience)) {
	h.end()
	h.open(tune)
}

// open starts the service, as gpulab's start does.
func (h *house) open(tune func(*patience)) {
	h.t.Helper()
	client := NewHub(HubConfig{Address: func() (string, bool) { return h.hub.server.Listener.Addr().String(), true }, Token: "service-token", Timeout: 2 * time.Second})
	service, err := New(Config{
		DB: h.db, People: h.people, Tenancy: h.tenants, Servers: client, Cluster: h.lab, Routes: h.proxy, Line: h.line, Profiles: testProfiles, Preemption: h.preempt, MinimumRun: h.minimum, Shares: h.shares,
		Devices: func(uid string) []string { return []string{"GPU-of-" + uid} }, Simulated: h.simulated,
		Head: "node1", Booted: h.booted, Doors: h.doors, Origins: portsByID{},
		Home: func(id int64) string { return filepath.Join(h.homes, fmt.Sprint(id)) }, JobImage: func() string { return "gpulab.local/notebook:1" },
		JobEnv:      map[string]string{"https_proxy": "http://proxy.example:3128"},
		TimeZone:    func() string { return "Asia/Tokyo" },
		MemoryKills: func(PodInfo) (int, bool) { return int(h.kills.Load()), true },
		Hold: func() string {
			if why := h.hold.Load(); why != nil {
				return *why
			}
			return ""
		},
		Closed: func() string {
			if why := h.closed.Load(); why != nil {
				return *why
			}
			return ""
		},
		Barred: func(userID int64) []string {
			if all := h.barred.Load(); all != nil {
				return (*all)[userID]
			}
			return nil
		},
		ForWhom: func(string) string { return "guests" },
		Limited: func() (list []string) {
			if all := h.barred.Load(); all != nil {
				for _, machines := range *all {
					list = append(list, machines...)
				}
			}
			return list
		},
		Placing: func() Placing {
			if rules := h.placing.Load(); rules != nil {
				return *rules
			}
			return Placing{}
		},
		Unfit: func(p Profile) map[string]string {
			found := map[string]string{}
			if all := h.obstacles.Load(); all != nil && (*all)[p.Slug] != "" {
				for _, n := range h.lab.Room().machines() {
					found[n.Name] = (*all)[p.Slug]
				}
			}
			if all := h.unfit.Load(); all != nil {
				for _, machine := range (*all)[p.Slug] {
					found[machine] = "The image Y does not run on " + machine + "."
				}
			}
			return found
		},
		Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	if err != nil {
		h.t.Fatal(err)
	}
	service.patience = patience{
		busy: 20 * time.Millisecond, waiting: 20 * time.Millisecond, idle: 50 * time.Millisecond,
		answer: 400 * time.Millisecond, start: 2 * time.Second, missing: 100 * time.Millisecond, orphan: 150 * time.Millisecond,
		hubStop: 150 * time.Millisecond, look: 40 * time.Millisecond, slow: 50 * time.Millisecond, noRoute: 60 * time.Millisecond,
		unscheduled: 150 * time.Millisecond, retry: 10 * time.Millisecond, stuckPod: 200 * time.Millisecond, restoreRoute: 10 * time.Millisecond,
		again: 100 * time.Millisecond, memory: time.Second, obstacle: 20 * time.Millisecond,
	}
	if tune != nil {
		tune(&service.patience)
	}
	h.service = service
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = service.Run(ctx)
	}()
	h.end = func() { cancel(); <-done }
}

func (h *house) launch(u users.User, profile, title string) Launch {
	h.t.Helper()
	l, err := h.service.Launch(h.t.Context(), u, Request{Profile: profile, Title: title})
	if err != nil {
		h.t.Fatal(err)
	}
	return l
}

func (h *house) get(id int64) Launch {
	h.t.Helper()
	l, err := h.service.Get(h.t.Context(), id)
	if err != nil {
		h.t.Fatal(err)
	}
	return l
}

// until waits for a launch to be as wanted and returns it.
func (h *house) until(id int64, what string, want func(Launch) bool) Launch {
	h.t.Helper()
	var l Launch
	if !eventually(func() bool { l = h.get(id); return want(l) }) {
		h.t.Fatalf("launch %d never was %s: state %s, reason %q, end %q, steps %+v", id, what, l.State, l.Reason, l.EndCode, l.Detail)
	}
	return l
}

func (h *house) is(id int64, s State) Launch {
	h.t.Helper()
	return h.until(id, string(s), func(l Launch) bool { return l.State == s })
}

func (h *house) running(u users.User, profile, title string) Launch {
	h.t.Helper()
	return h.is(h.launch(u, profile, title).ID, Running)
}

func (h *house) podOf(l Launch) string {
	h.t.Helper()
	for _, p := range h.lab.Notebooks() {
		if p.LaunchID == l.ID && !p.Terminating {
			return p.UID
		}
	}
	h.t.Fatalf("launch %d has no pod", l.ID)
	return ""
}
