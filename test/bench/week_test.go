//go:build e2e

package bench

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"

	"github.com/gpulab/gpulab/internal/queue"
	"github.com/gpulab/gpulab/internal/store"
	"github.com/gpulab/gpulab/test/bench/week"
)

var seeds = flag.String("seeds", "1,2,3", "weeks of labs to live through, each drawn by a number")

// gain is what gpulab is to have of useful GPU hours over owners.
const gain = 0.6

// TestWeek prints what a week brings to a lab by who decides about its GPUs: their
// owners, who comes first, or gpulab with the real Kueue.
func TestWeek(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Minute)
	defer cancel()
	kwok := kwokProgram(ctx, t)
	l := newLab(t)
	plainWatches(l)
	initialise(ctx, t, l)
	access, client := cluster(ctx, t, l)
	line := ownLine(ctx, t, l, access)
	kube, err := dynamic.NewForConfig(access)
	if err != nil {
		t.Fatal(err)
	}
	d := newDecider(ctx, t, line, kube)
	m := newMachines(ctx, t, l, access, kube, kwok)
	housed := 0
	var all [][]week.Record
	for _, one := range strings.Split(*seeds, ",") {
		seed, err := strconv.ParseUint(strings.TrimSpace(one), 10, 64)
		if err != nil {
			t.Fatalf("-seeds is numbers such as 1,2,3: %v", err)
		}
		demand := week.Generate(seed)
		for ; housed < demand.People; housed++ {
			namespace(ctx, t, client, week.Namespace(housed))
		}
		if err := m.set(demand.Machines); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		records := liveThrough(t, d, m, demand)
		if t.Failed() {
			return
		}
		all = append(all, records)
		printWeek(records, time.Since(began))
	}
	printWeeks(all)
	fmt.Printf("  Kueue let somebody in past another who had used less: %d times in %d decisions\n", d.passed, d.decisions)
	fmt.Printf("  the scheduler started %d pods, %d of them on another machine than gpulab would\n", m.started, m.second)
}

// liveThrough lives through the same week with each policy.
func liveThrough(t *testing.T, d *decider, m *machines, demand week.Demand) (records []week.Record) {
	t.Helper()
	add := func(policy string, r week.Record, err error) {
		if err != nil {
			t.Errorf("%s: %v", policy, err)
		}
		r.Policy = policy
		records = append(records, r)
	}
	owners, err := week.Owners(t.Context(), demand)
	add("a GPU for each owner", owners, err)
	groups, err := week.Groups(t.Context(), demand)
	add("a machine for each group", groups, err)
	first, err := week.FirstCome(t.Context(), demand)
	add("first come, first served", first, err)
	// The database is synced at every commit, ten thousand times in a week.
	dir, err := os.MkdirTemp("/dev/shm", "gpulab-week-")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	t.Run(fmt.Sprint(demand.Seed), func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s, err := store.Open(t.Context(), dir)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = s.Close() }()
			r, err := week.Gpulab(t.Context(), demand, s.DB(), d, m)
			add("gpulab", r, err)
		})
	})
	if _, err := d.Decide(queue.State{Stock: []queue.Stock{{Kind: "Model"}}}); err != nil {
		t.Errorf("empty the line: %v", err)
	}
	return records
}

func printWeek(records []week.Record, took time.Duration) {
	d := records[len(records)-1].Demand // owners have machines of one GPU
	fmt.Printf("\nSeed %d: %d people, %d GPUs in %d machines, %d sittings at notebooks, %d jobs (%.0f s)\n", d.Seed, d.People, d.GPUs(), len(d.Machines), len(d.Sessions), len(d.Jobs), took.Seconds())
	fmt.Printf("  GPU hours: %.0f there, %.0f asked for, %.0f at most of use with any policy\n", d.Capacity(), d.Hours(), d.Bound())
	fmt.Printf("  %-26s %7s %6s %8s %18s %18s %6s %6s %6s %6s %5s\n", "", "useful", "held", "of bound", "notebook p50, p95", "job p50, p95", "Jain", "gaveup", "taken", "broken", "lost")
	for _, r := range records {
		fmt.Printf("  %-26s %7.0f %6.0f %7.0f%% %18s %18s %6.2f %6d %6d %6d %5d\n", r.Policy, r.Useful(), r.Held, 100*r.Useful()/d.Bound(), waits(r, false), waits(r, true), r.Fairness(), r.GaveUp, r.Reclaimed, r.Interrupted, r.Preempted)
	}
}

func waits(r week.Record, jobs bool) string {
	minutes := func(of int) string { return fmt.Sprintf("%.1f h", r.Waited(jobs, of).Hours()) }
	return minutes(50) + ", " + minutes(95)
}

// printWeeks is what the weeks have in common.
func printWeeks(all [][]week.Record) {
	fmt.Printf("\nUseful GPU hours of gpulab over those of others, by %d seeds: least, middle, most\n", len(all))
	for i, r := range all[0][:len(all[0])-1] {
		var over []float64
		for _, records := range all {
			over = append(over, records[len(records)-1].Useful()/records[i].Useful()-1)
		}
		goal := ""
		if i < 2 {
			goal = fmt.Sprintf("goal +%.0f %%: missed by %d of %d", 100*gain, len(slices.DeleteFunc(slices.Clone(over), func(x float64) bool { return x >= gain })), len(over))
		}
		slices.Sort(over)
		middle := (over[(len(over)-1)/2] + over[len(over)/2]) / 2
		fmt.Printf("  %-26s %+6.0f %% %+6.0f %% %+6.0f %%   %s\n", r.Policy, 100*over[0], 100*middle, 100*over[len(over)-1], goal)
	}
}

// outside does what takes no time of the week: out of the bubble whose clock that
// is, which knows no channel and no goroutine of its own there.
type outside struct {
	ask  chan func()
	done chan struct{}
}

func newOutside(ctx context.Context) outside {
	o := outside{ask: make(chan func()), done: make(chan struct{})}
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case f := <-o.ask:
				f()
				o.done <- struct{}{}
			}
		}
	}()
	return o
}

func (o outside) do(f func()) {
	o.ask <- f
	<-o.done
}

// watched are the cluster's objects of a kind, with these labels, and a channel that
// says that one of them has changed.
func watched(ctx context.Context, t *testing.T, kube dynamic.Interface, kind schema.GroupVersionResource, labels string) (cache.Store, chan struct{}) {
	t.Helper()
	some := func(o *metav1.ListOptions) { o.LabelSelector = labels }
	informer := dynamicinformer.NewFilteredDynamicInformer(kube, kind, metav1.NamespaceAll, 0, cache.Indexers{}, some).Informer()
	stirs := make(chan struct{}, 1)
	stir := func() {
		select {
		case stirs <- struct{}{}:
		default:
		}
	}
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { stir() }, UpdateFunc: func(_, _ any) { stir() }, DeleteFunc: func(any) { stir() },
	}); err != nil {
		t.Fatal(err)
	}
	go informer.RunWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		t.Fatalf("the cluster's %s cannot be watched", kind.Resource)
	}
	return informer.GetStore(), stirs
}

// decider has gpulab's line decide.
type decider struct {
	ctx   context.Context
	line  *queue.Line
	seen  cache.Store   // Workloads
	stirs chan struct{} // one of them has changed
	outside

	in                map[int64]bool
	decisions, passed int
}

func newDecider(ctx context.Context, t *testing.T, line *queue.Line, kube dynamic.Interface) *decider {
	t.Helper()
	d := &decider{ctx: ctx, line: line, outside: newOutside(ctx), in: map[int64]bool{}}
	d.seen, d.stirs = watched(ctx, t, kube, schema.GroupVersionResource{Group: "kueue.x-k8s.io", Version: "v1beta2", Resource: "workloads"}, "")
	return d
}

// Decide is called within the week's clock.
func (d *decider) Decide(s queue.State) (in map[int64]bool, err error) {
	d.do(func() { in, err = d.decide(s) })
	return in, err
}

// patience is how long Kueue may take for a decision.
const patience = 2 * time.Minute

func (d *decider) decide(s queue.State) (map[int64]bool, error) {
	d.line.Keep(s)
	late := time.After(patience)
	for {
		in, waiting, done := d.settled(s)
		if done {
			d.note(s, in, waiting)
			return in, nil
		}
		select {
		case <-d.stirs:
		case <-d.line.Changes():
		case <-time.After(100 * time.Millisecond):
		case <-late:
			return nil, fmt.Errorf("the line does not get on: %s; waiting: %+v", cmp.Or(d.line.Trouble(), "somebody could be let in, and is not"), waiting)
		case <-d.ctx.Done():
			return nil, d.ctx.Err()
		}
	}
}

// settled tells who is let in, who waits, and whether that is all for now: the
// cluster has exactly these launches, each with the place that it is to have, and
// the first of those who wait wants more than is free.
func (d *decider) settled(s queue.State) (in map[int64]bool, waiting []queue.Claim, done bool) {
	list := d.seen.List()
	if len(list) != len(s.Claims) {
		return nil, nil, false
	}
	priority := map[string]int64{}
	for _, o := range list {
		w := o.(*unstructured.Unstructured)
		priority[w.GetName()], _, _ = unstructured.NestedInt64(w.Object, "spec", "priority")
	}
	free := s.Stock[0].GPUs
	in = map[int64]bool{}
	for _, c := range s.Claims {
		has, there := priority["launch-"+strconv.FormatInt(c.Launch, 10)]
		if !there {
			return nil, nil, false
		}
		if d.line.Standing(c.Launch).Admitted {
			in[c.Launch] = true
			free -= c.GPUs
			continue
		}
		if c.Held || has != int64(c.Priority) {
			return nil, nil, false
		}
		waiting = append(waiting, c)
	}
	slices.SortStableFunc(waiting, func(a, b queue.Claim) int {
		return cmp.Or(cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.Launch, b.Launch))
	})
	return in, waiting, len(waiting) == 0 || d.first(waiting).GPUs > free
}

// first is the next one of those who wait. Of several with the same priority it is
// who came first; Kueue knows that to the second only, in which many come here.
func (d *decider) first(waiting []queue.Claim) queue.Claim {
	for _, c := range waiting {
		if c.Priority == waiting[0].Priority && d.line.Standing(c.Launch).Position == 1 {
			return c
		}
	}
	return waiting[0]
}

// note counts whom Kueue has let in, and whether it was somebody's turn before.
func (d *decider) note(s queue.State, in map[int64]bool, waiting []queue.Claim) {
	for _, c := range s.Claims {
		if in[c.Launch] && !d.in[c.Launch] {
			d.decisions++
			if len(waiting) > 0 && waiting[0].Priority > c.Priority {
				d.passed++
			}
		}
	}
	d.in = in
}
