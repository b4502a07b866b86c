package notebooks

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// Labels on notebook pods, set by the hub's configuration, and the label that
// finds the hub's own pod.
const (
	labelUser      = "gpulab.dev/user"
	labelNotebook  = "gpulab.dev/notebook"
	labelLaunch    = "gpulab.dev/launch"
	labelComponent = "app.kubernetes.io/component"

	componentNotebook = "notebook"
	componentJob      = "job"
	componentService  = "service"
	componentHub      = "hub"
)

// Ports inside pods.
const (
	notebookPort = 8888
	hubPort      = 8081
)

// Cluster is what the service needs to know of Kubernetes. All reads answer
// from a watch and never block.
type Cluster interface {
	// Synced reports whether the watch has seen the whole cluster once.
	Synced() bool
	// Room is what the ready nodes have and what is left of it.
	Room() Room
	// Notebooks are all pods of launches, terminating ones too: notebooks and jobs.
	Notebooks() []PodInfo
	// Gone is how a job's pod was seen last that is gone since a while ago; false if
	// that is not known.
	Gone(launch int64) (PodInfo, bool)
	// CreatePod makes a job's pod; one of this name that is there is no error.
	CreatePod(ctx context.Context, p *corev1.Pod) error
	// Warnings are the cluster's latest complaints about a pod, newest first.
	Warnings(ctx context.Context, p PodInfo) ([]string, error)
	// DeletePod deletes this very pod (by UID); one that is gone is no error.
	DeletePod(ctx context.Context, p PodInfo, grace time.Duration) error
	// Changes delivers a token after something changed.
	Changes() <-chan struct{}
}

// PodInfo is a notebook's or a job's pod as the watch last saw it.
type PodInfo struct {
	UID, Namespace, Name string
	Job                  bool // or a service
	Port                 int  // of a service
	Handle, Server       string
	LaunchID             int64 // 0 when the pod does not say which launch it belongs to
	Node, IP             string
	Image                string // as the pod asks for it
	GPUs                 int
	MemoryLimit          int64 // bytes, 0 = none
	Created, Started     time.Time
	Ended                time.Time // of the container, once it has exited
	Scheduled            bool
	Unschedulable        string // the scheduler's words
	ImageReady           bool
	Ready                bool
	Terminating          bool
	Finished             bool   // phase Succeeded or Failed: holds nothing any more
	WaitingReason        string // of the container, such as ErrImagePull
	WaitingMessage       string
	ExitReason           string // of the container's last end, such as OOMKilled
	ExitMessage          string
	ExitCode             int
	Exited               bool
	StatusReason         string // of the pod, such as Evicted
	StatusMessage        string
}

// Need is what one notebook asks of a machine.
type Need struct {
	Amount
	GPUKind
	Only string // the machine it has to run on, "" = any
	// NoGPUs keeps it off machines with GPUs.
	NoGPUs bool
	// Barred are machines that it may not run on, because they are for others.
	Barred []string
	// Lacking are machines that do not have its image yet, Unfit those whose GPUs
	// its image cannot use. Thing is what that is besides the image, or instead.
	Lacking, Unfit []string
	Thing          string
	// Granted is the kind of GPU, as in NodeRoom.Kind, that the line has given it,
	// "" for any.
	Granted string
}

// GPUKind says which GPUs will do; the zero value takes any.
type GPUKind struct {
	Model     string // as NVIDIA's label nvidia.com/gpu.product has it, "" = any
	MinMemory int64  // bytes of each GPU at least, as its maker counts; 0 = any
}

// Fits reports whether a machine's GPUs will do.
func (k GPUKind) Fits(n NodeRoom) bool {
	return (k.Model == "" || k.Model == n.GPUModel) && n.GPUMemory >= k.leastMemory()
}

// leastMemory is the smallest size that drivers report for a card that is sold
// with this much: what its ECC and the driver take is missing, up to 7 percent
// (an A10 of 24 GiB reports 23,028 MiB).
func (k GPUKind) leastMemory() int64 { return k.MinMemory / 100 * 93 }

// Amount is a quantity of each resource that admission counts.
type Amount struct {
	GPUs     int
	MilliCPU int64
	Memory   int64 // bytes
}

func (a Amount) minus(b Amount) Amount {
	return Amount{a.GPUs - b.GPUs, a.MilliCPU - b.MilliCPU, a.Memory - b.Memory}
}

func (a Amount) plus(b Amount) Amount {
	return Amount{a.GPUs + b.GPUs, a.MilliCPU + b.MilliCPU, a.Memory + b.Memory}
}

func (a Amount) covers(b Amount) bool {
	return a.GPUs >= b.GPUs && a.MilliCPU >= b.MilliCPU && a.Memory >= b.Memory
}

// NodeRoom is one ready node's allocatable resources and what no pod has asked for.
type NodeRoom struct {
	Name        string
	Total, Free Amount
	// HasGPUs says that it is a machine with GPUs, even while it offers none.
	HasGPUs bool
	// Withheld is how many of the GPUs in Total are given to no new pod now:
	// they are sick, in use outside gpulab, or their device plugin starts anew.
	Withheld int
	// Kept is how many of the GPUs in Free are kept for launches that need several.
	Kept int
	// GPUModel and GPUMemory (bytes of each) are what its GPUs are; a machine's
	// GPUs are of one kind.
	GPUModel  string
	GPUMemory int64
	// Kind is what the line takes its GPUs for, "" without any.
	Kind string
	// Title is what it is shown as, "" for its name.
	Title string
	// Why says of one in Room.Cordoned why it takes no new work, "" for no reason.
	Why string
}

// open is what it has for those for whom nothing is kept.
func (n NodeRoom) open() Amount {
	n.Free.GPUs -= n.Kept
	return n.Free
}

// fits reports whether the machine, empty, could hold it.
func (n NodeRoom) fits(need Need) bool {
	switch {
	case need.Only != "" && need.Only != n.Name, need.NoGPUs &&
		n.HasGPUs, slices.Contains(need.Barred, n.Name), slices.Contains(need.Lacking, n.Name),
		slices.Contains(need.Unfit, n.Name),
		need.Granted != "" && need.Granted != n.Kind:
		return false
	}
	return need.GPUs == 0 || n.Total.GPUs >= need.GPUs && need.Fits(n)
}

// Room is the pool as admission sees it.
type Room struct {
	Nodes []NodeRoom // ready and open for new pods
	Away  []NodeRoom // not ready or closed to new pods
	// Cordoned are nodes that are ready, and take no new work because somebody
	// wants it so.
	Cordoned []NodeRoom
	Holders  []Holder // pods with GPUs, longest holder first
	Shared   bool     // GPUs are counted in shares that notebooks take turns on
}

// GPUs is the number of GPUs that are free, and of all on ready nodes.
func (r Room) GPUs() (free, total int) {
	for _, n := range r.Nodes {
		free += n.Free.GPUs
		total += n.Total.GPUs
	}
	return free, total
}

// KubeCluster watches pods and nodes of a Kubernetes cluster. It is a [Cluster]
// for the service and knows for the proxy where each notebook is.
type KubeCluster struct {
	client    kubernetes.Interface
	namespace string // of the hub
	log       *slog.Logger
	factory   informers.SharedInformerFactory
	pods      cache.SharedIndexInformer
	nodes     cache.SharedIndexInformer
	folded    cache.ResourceEventHandlerRegistration // pods into index
	changes   chan struct{}
	synced    chan struct{} // closed when the first picture is whole

	mu    sync.Mutex               // guards the writing of index
	index atomic.Pointer[podIndex] // read on every proxied request
	gone  map[int64]gonePod        // by launch; guarded by mu
}

// gonePod is a job's pod as it was seen last.
type gonePod struct {
	PodInfo
	at time.Time
}

// goneFor is how long it is known how a job's pod ended.
const goneFor = 10 * time.Minute

// podIndex is an immutable picture of the pods the proxy may forward to.
type podIndex struct {
	notebooks map[string]PodInfo   // by UID
	current   map[podKey]PodInfo   // the one to use per user and server
	services  map[int64]PodInfo    // the same of services, by launch
	hub       string               // host:port, "" while none is ready
	hubs      map[types.UID]string // addresses of ready hub pods
}

type podKey struct{ handle, server string }

// NewKubeCluster prepares the watch; nothing is asked of the API before Run.
// systemNamespace is where the hub runs.
func NewKubeCluster(client kubernetes.Interface, systemNamespace string, log *slog.Logger) (*KubeCluster, error) {
	factory := informers.NewSharedInformerFactory(client, 0)
	c := &KubeCluster{
		client: client, namespace: systemNamespace, log: log, factory: factory,
		pods:    factory.Core().V1().Pods().Informer(),
		nodes:   factory.Core().V1().Nodes().Informer(),
		changes: make(chan struct{}, 1),
		synced:  make(chan struct{}),
		gone:    map[int64]gonePod{},
	}
	c.index.Store(&podIndex{})
	for _, inf := range []cache.SharedIndexInformer{c.pods, c.nodes} {
		if err := inf.SetTransform(slim); err != nil {
			return nil, fmt.Errorf("prepare the watch: %w", err)
		}
	}
	var err error
	if c.folded, err = c.pods.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { c.podChanged(o, false) },
		UpdateFunc: func(_, o any) { c.podChanged(o, false) },
		DeleteFunc: func(o any) { c.podChanged(o, true) },
	}); err != nil {
		return nil, fmt.Errorf("watch pods: %w", err)
	}
	if _, err := c.nodes.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { c.wake() },
		UpdateFunc: func(_, _ any) { c.wake() },
		DeleteFunc: func(any) { c.wake() },
	}); err != nil {
		return nil, fmt.Errorf("watch nodes: %w", err)
	}
	return c, nil
}

// Run watches until ctx ends. While the API is away the last picture stays:
// notebooks keep being reachable when k3s restarts.
func (c *KubeCluster) Run(ctx context.Context) error {
	c.factory.Start(ctx.Done())
	if cache.WaitForCacheSync(ctx.Done(), c.Synced) {
		close(c.synced)
	}
	c.wake()
	<-ctx.Done()
	c.factory.Shutdown()
	return nil
}

// Synced implements [Cluster].
func (c *KubeCluster) Synced() bool { return c.folded.HasSynced() && c.nodes.HasSynced() }

// WaitSynced waits for the first whole picture; false means that ctx ended first.
func (c *KubeCluster) WaitSynced(ctx context.Context) bool {
	select {
	case <-c.synced:
		return true
	case <-ctx.Done():
		return false
	}
}

// Changes implements [Cluster].
func (c *KubeCluster) Changes() <-chan struct{} { return c.changes }

// PodFor is the pod that is a user's server now, ready or not.
func (c *KubeCluster) PodFor(handle, server string) (PodInfo, bool) {
	p, ok := c.index.Load().current[podKey{handle, server}]
	return c.placed(p), ok
}

// placed is the pod without its address where that is none of its machine's. The machine itself says which address
// a pod has: one gone bad could name that of somebody else's notebook or service, and lead its own visitors there.
func (c *KubeCluster) placed(p PodInfo) PodInfo {
	o, known, err := c.nodes.GetStore().GetByKey(p.Node)
	if n, ok := o.(*corev1.Node); err != nil || !known || !ok || !hasPod(n, p.IP) {
		p.IP = ""
	}
	return p
}

// hasPod tells whether an address is one of those that Kubernetes has set aside for the pods of a node.
func hasPod(n *corev1.Node, address string) bool {
	network, err := netip.ParsePrefix(n.Spec.PodCIDR)
	at, wrong := netip.ParseAddr(address)
	return err == nil && wrong == nil && network.Contains(at)
}

// ServicePod is the pod of a service now, ready or not.
func (c *KubeCluster) ServicePod(launch int64) (PodInfo, bool) {
	p, ok := c.index.Load().services[launch]
	return c.placed(p), ok
}

// PodAddress is where the pod with this UID listens, if it is ready to be
// talked to. It is asked at every new connection, so that a connection never
// goes to an address that has passed to another pod.
func (c *KubeCluster) PodAddress(uid string) (string, bool) {
	p, ok := c.index.Load().notebooks[uid]
	port := notebookPort
	if p.Job {
		port = p.Port
	}
	if p = c.placed(p); !ok || port == 0 || !p.Reachable() {
		return "", false
	}
	return net.JoinHostPort(p.IP, strconv.Itoa(port)), true
}

// HubAddress is where the hub listens, if its pod is ready.
func (c *KubeCluster) HubAddress() (string, bool) {
	a := c.index.Load().hub
	return a, a != ""
}

// Reachable reports whether requests may be sent to the pod.
func (p PodInfo) Reachable() bool {
	return p.Ready && !p.Terminating && !p.Finished && p.IP != ""
}

// Notebooks implements [Cluster].
func (c *KubeCluster) Notebooks() []PodInfo {
	idx := c.index.Load()
	list := make([]PodInfo, 0, len(idx.notebooks))
	for _, p := range idx.notebooks {
		list = append(list, p)
	}
	return list
}

// GPULabels are a machine's labels about its GPUs, each as "name=value", sorted;
// pods may ask for them.
func (c *KubeCluster) GPULabels(node string) []string {
	var labels []string
	for _, o := range c.nodes.GetStore().List() {
		n, ok := o.(*corev1.Node)
		if !ok || n.Name != node {
			continue
		}
		for name, value := range n.Labels {
			if strings.HasPrefix(name, "nvidia.com/") {
				labels = append(labels, name+"="+value)
			}
		}
	}
	slices.Sort(labels)
	return labels
}

// Room implements [Cluster].
func (c *KubeCluster) Room() Room {
	room := Room{}
	at := map[string]int{}
	for _, o := range c.nodes.GetStore().List() {
		n, ok := o.(*corev1.Node)
		if !ok {
			continue
		}
		open, closed := openForPods(n), cordoned(n)
		total := amountOf(n.Status.Allocatable)
		node := NodeRoom{Name: n.Name, Total: total, Free: total}
		node.Total.GPUs = max(total.GPUs, amountOf(n.Status.Capacity).GPUs)
		node.HasGPUs = node.Total.GPUs > 0 || n.Labels[labelGPUPresent] == "true"
		node.Withheld = node.Total.GPUs - total.GPUs
		node.GPUModel = strings.TrimSuffix(n.Labels[labelGPUModel], sharedSuffix)
		if mebibytes, err := strconv.ParseInt(n.Labels[labelGPUMemory], 10, 64); err == nil {
			node.GPUMemory = mebibytes << 20
		}
		if !open {
			room.Away = append(room.Away, node)
			continue
		}
		if closed {
			room.Cordoned = append(room.Cordoned, node)
			continue
		}
		at[n.Name] = len(room.Nodes)
		room.Nodes = append(room.Nodes, node)
	}
	for _, o := range c.pods.GetStore().List() {
		p, ok := o.(*corev1.Pod)
		if !ok || finished(p) {
			continue
		}
		asked := podRequests(p)
		if asked.GPUs > 0 && p.Spec.NodeName != "" {
			room.Holders = append(room.Holders, holderOf(p, asked.GPUs))
		}
		if i, ok := at[p.Spec.NodeName]; ok {
			room.Nodes[i].Free = room.Nodes[i].Free.minus(asked)
		}
	}
	sort.Slice(room.Nodes, func(i, j int) bool { return room.Nodes[i].Name < room.Nodes[j].Name })
	sort.Slice(room.Away, func(i, j int) bool { return room.Away[i].Name < room.Away[j].Name })
	sort.Slice(room.Cordoned, func(i, j int) bool { return room.Cordoned[i].Name < room.Cordoned[j].Name })
	sort.Slice(room.Holders, func(i, j int) bool { return room.Holders[i].Since.Before(room.Holders[j].Since) })
	return room
}

// Warnings implements [Cluster].
func (c *KubeCluster) Warnings(ctx context.Context, p PodInfo) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	list, err := c.client.CoreV1().Events(p.Namespace).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("involvedObject.uid", p.UID).String(),
		Limit:         50,
	})
	if err != nil {
		return nil, fmt.Errorf("read the events of pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	items := list.Items
	sort.SliceStable(items, func(i, j int) bool { return eventTime(items[i]).After(eventTime(items[j])) })
	var words []string
	for _, e := range items {
		if e.Type == corev1.EventTypeWarning {
			words = append(words, e.Reason+": "+e.Message)
		}
	}
	return words, nil
}

func eventTime(e corev1.Event) time.Time {
	if !e.LastTimestamp.IsZero() {
		return e.LastTimestamp.Time
	}
	return e.EventTime.Time
}

// DeletePod implements [Cluster].
func (c *KubeCluster) DeletePod(ctx context.Context, p PodInfo, grace time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	seconds := int64(grace / time.Second)
	uid := types.UID(p.UID)
	err := c.client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{
		GracePeriodSeconds: &seconds,
		Preconditions:      &metav1.Preconditions{UID: &uid},
	})
	// A conflict means that another pod has taken the name: this one is gone.
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("delete pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	return nil
}

// CreatePod implements [Cluster].
func (c *KubeCluster) CreatePod(ctx context.Context, p *corev1.Pod) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	_, err := c.client.CoreV1().Pods(p.Namespace).Create(ctx, p, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	return nil
}

func (c *KubeCluster) wake() {
	select {
	case c.changes <- struct{}{}:
	default:
	}
}

// podChanged folds one event into the index.
func (c *KubeCluster) podChanged(o any, deleted bool) {
	if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
		o = gone.Obj
	}
	p, ok := o.(*corev1.Pod)
	if !ok {
		return
	}
	switch {
	case slices.Contains([]string{componentNotebook, componentJob, componentService}, p.Labels[labelComponent]) &&
		p.Labels[labelUser] != "":
		c.notebookChanged(p, deleted)
	case p.Labels[labelComponent] == componentHub && p.Namespace == c.namespace:
		c.hubChanged(p, deleted)
	}
	c.wake()
}

func (c *KubeCluster) notebookChanged(p *corev1.Pod, deleted bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	old := c.index.Load()
	next := &podIndex{hub: old.hub, hubs: old.hubs, notebooks: make(map[string]PodInfo, len(old.notebooks)+1)}
	for uid, info := range old.notebooks {
		next.notebooks[uid] = info
	}
	if deleted {
		delete(next.notebooks, string(p.UID))
		c.remember(podInfo(p), time.Now())
	} else {
		next.notebooks[string(p.UID)] = podInfo(p)
	}
	next.current, next.services = currentPods(next.notebooks), servicePods(next.notebooks)
	c.index.Store(next)
}

// remember keeps how a job's pod ended; the watch may show its end and that it is
// gone in the same moment.
func (c *KubeCluster) remember(p PodInfo, now time.Time) {
	maps.DeleteFunc(c.gone, func(_ int64, had gonePod) bool { return now.Sub(had.at) > goneFor })
	if p.Job {
		c.gone[p.LaunchID] = gonePod{p, now}
	}
}

// Gone implements [Cluster].
func (c *KubeCluster) Gone(launch int64) (PodInfo, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p, ok := c.gone[launch]
	return p.PodInfo, ok
}

// currentPods picks the pod of each server: while an old one goes away and its
// successor is there already, the successor.
func currentPods(all map[string]PodInfo) map[podKey]PodInfo {
	current := make(map[podKey]PodInfo, len(all))
	for _, p := range all {
		if p.Job {
			continue // nobody is led there
		}
		k := podKey{p.Handle, p.Server}
		if had, ok := current[k]; !ok || p.supersedes(had) {
			current[k] = p
		}
	}
	return current
}

// servicePods picks the pod of each service.
func servicePods(all map[string]PodInfo) map[int64]PodInfo {
	services := map[int64]PodInfo{}
	for _, p := range all {
		if had, ok := services[p.LaunchID]; p.Port != 0 && (!ok || p.supersedes(had)) {
			services[p.LaunchID] = p
		}
	}
	return services
}

func (p PodInfo) supersedes(q PodInfo) bool {
	pGoing, qGoing := p.Terminating || p.Finished, q.Terminating || q.Finished
	if pGoing != qGoing {
		return qGoing
	}
	return p.Created.After(q.Created)
}

func (c *KubeCluster) hubChanged(p *corev1.Pod, deleted bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	old := c.index.Load()
	next := &podIndex{notebooks: old.notebooks, current: old.current, services: old.services, hubs: map[types.UID]string{}}
	for uid, a := range old.hubs {
		next.hubs[uid] = a
	}
	delete(next.hubs, p.UID)
	if !deleted && p.DeletionTimestamp == nil && isReady(p) && p.Status.PodIP != "" {
		next.hubs[p.UID] = net.JoinHostPort(p.Status.PodIP, strconv.Itoa(hubPort))
	}
	for _, a := range next.hubs {
		next.hub = a
	}
	c.index.Store(next)
}

// podInfo reads what gpulab needs out of a pod.
func podInfo(p *corev1.Pod) PodInfo {
	info := PodInfo{
		UID: string(p.UID), Namespace: p.Namespace, Name: p.Name,
		Handle: p.Labels[labelUser], Server: p.Labels[labelNotebook], Job: p.Labels[labelComponent] != componentNotebook,
		Node: p.Spec.NodeName, IP: p.Status.PodIP,
		GPUs:          podRequests(p).GPUs,
		Created:       p.CreationTimestamp.Time,
		Scheduled:     p.Spec.NodeName != "",
		Ready:         isReady(p),
		Terminating:   p.DeletionTimestamp != nil,
		Finished:      finished(p),
		StatusReason:  p.Status.Reason,
		StatusMessage: p.Status.Message,
	}
	info.LaunchID, _ = strconv.ParseInt(p.Labels[labelLaunch], 10, 64)
	for _, cond := range p.Status.Conditions {
		if cond.Type == corev1.PodScheduled && cond.Status == corev1.ConditionFalse {
			info.Unschedulable = cond.Message
		}
	}
	if len(p.Spec.Containers) > 0 {
		info.Image = p.Spec.Containers[0].Image
		if ports := p.Spec.Containers[0].Ports; len(ports) > 0 && p.Labels[labelComponent] == componentService {
			info.Port = int(ports[0].ContainerPort)
		}
		info.MemoryLimit = p.Spec.Containers[0].Resources.Limits.Memory().Value()
	}
	if len(p.Status.ContainerStatuses) > 0 {
		info.containerState(p.Status.ContainerStatuses[0])
	}
	return info
}

// containerState reads the notebook's container: a notebook's pod has one.
func (p *PodInfo) containerState(s corev1.ContainerStatus) {
	p.ImageReady = s.ImageID != ""
	ended := s.State.Terminated
	switch {
	case s.State.Running != nil:
		p.Started = s.State.Running.StartedAt.Time
	case s.State.Waiting != nil:
		p.WaitingReason, p.WaitingMessage = s.State.Waiting.Reason, s.State.Waiting.Message
		ended = s.LastTerminationState.Terminated
	}
	if ended != nil {
		p.Exited, p.ExitCode = true, int(ended.ExitCode)
		p.Ended = ended.FinishedAt.Time
		if p.Job && p.Started.IsZero() && ended.StartedAt.Unix() > 0 {
			p.Started = ended.StartedAt.Time
		}
		p.ExitReason, p.ExitMessage = ended.Reason, ended.Message
	}
}

func isReady(p *corev1.Pod) bool {
	for _, cond := range p.Status.Conditions {
		if cond.Type == corev1.PodReady {
			return cond.Status == corev1.ConditionTrue
		}
	}
	return false
}

func finished(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// CordonTaint is on nodes that take no new notebooks. It is gpulab's own rather
// than Kubernetes' "unschedulable", because what runs the lab has to start on
// the head all the same.
const CordonTaint = "gpulab.dev/cordoned"

func cordoned(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == CordonTaint })
}

// Marks says of each node what keeps new pods off it.
func (c *KubeCluster) Marks() map[string]NodeMarks {
	marks := map[string]NodeMarks{}
	for _, o := range c.nodes.GetStore().List() {
		if n, ok := o.(*corev1.Node); ok {
			marks[n.Name] = NodeMarks{Cordoned: cordoned(n), Unschedulable: n.Spec.Unschedulable}
		}
	}
	return marks
}

// NodeMarks is what keeps new pods off a node: gpulab's taint, and Kubernetes'
// own cordon, which gpulab never sets.
type NodeMarks struct{ Cordoned, Unschedulable bool }

// openForPods reports whether the scheduler would place a notebook there. A
// taint that Kubernetes itself sets means trouble; others are the lab's own and
// notebooks may tolerate them.
func openForPods(n *corev1.Node) bool {
	if n.Spec.Unschedulable {
		return false
	}
	for _, t := range n.Spec.Taints {
		if t.Effect != corev1.TaintEffectPreferNoSchedule && len(t.Key) > 19 && t.Key[:19] == "node.kubernetes.io/" {
			return false
		}
	}
	for _, cond := range n.Status.Conditions {
		if cond.Type == corev1.NodeReady {
			return cond.Status == corev1.ConditionTrue
		}
	}
	return false
}

func holderOf(p *corev1.Pod, gpus int) Holder {
	since := p.CreationTimestamp.Time
	if p.Status.StartTime != nil {
		since = p.Status.StartTime.Time
	}
	return Holder{
		Handle: p.Labels[labelUser], Notebook: p.Labels[labelNotebook],
		Pod: p.Namespace + "/" + p.Name, Node: p.Spec.NodeName, GPUs: gpus, Since: since,
	}
}

// podRequests is what the scheduler counts for a pod: containers together, or
// the largest init container where that is more, sidecars with both, and the
// overhead of its runtime class.
func podRequests(p *corev1.Pod) Amount {
	var main, sidecars, initMax Amount
	for i := range p.Spec.Containers {
		main = main.plus(amountOf(p.Spec.Containers[i].Resources.Requests))
	}
	for i := range p.Spec.InitContainers {
		c := &p.Spec.InitContainers[i]
		asked := amountOf(c.Resources.Requests)
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			sidecars = sidecars.plus(asked)
			asked = Amount{}
		}
		initMax = larger(initMax, asked.plus(sidecars))
	}
	return larger(main.plus(sidecars), initMax).plus(amountOf(p.Spec.Overhead))
}

func larger(a, b Amount) Amount {
	return Amount{max(a.GPUs, b.GPUs), max(a.MilliCPU, b.MilliCPU), max(a.Memory, b.Memory)}
}

func amountOf(list corev1.ResourceList) Amount {
	gpus := list[gpuResource]
	return Amount{GPUs: int(gpus.Value()), MilliCPU: list.Cpu().MilliValue(), Memory: list.Memory().Value()}
}

// slim drops what nobody here reads from objects before they are kept.
func slim(o any) (any, error) {
	if m, ok := o.(metav1.Object); ok {
		m.SetManagedFields(nil)
		m.SetAnnotations(nil)
	}
	switch v := o.(type) {
	case *corev1.Pod:
		v.Spec.Volumes = nil
		for i := range v.Spec.Containers {
			c := &v.Spec.Containers[i]
			c.Env, c.VolumeMounts, c.Command, c.Args = nil, nil, nil, nil
		}
	case *corev1.Node:
		v.Status.Images = nil
	}
	return o, nil
}
