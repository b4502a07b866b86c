package queue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// Stock is what the pool lends out of one kind of GPU. A kind is a name for
// GPUs that do for the same launches, such as those of one model.
type Stock struct {
	Kind string
	GPUs int // or shares of them
}

// Claim is a launch that wants GPUs, or has them.
type Claim struct {
	Launch    int64
	Namespace string // its owner's
	// Unready says that the namespace may not be there yet, or not for long: it joins no line now, but
	// keeps the place that it has.
	Unready bool
	// Aside says that no open machine could take it, as while the only one is away: it is
	// not let in, holds up nobody, and later has the place that it would have had.
	Aside    bool
	Priority int32 // among those who wait in its line; more goes first, then who is in it longer
	GPUs     int
	// Kinds are those that will do, nil for any of the pool.
	Kinds []string
	// Held says that it has its GPUs: it has been started.
	Held bool
	// Turn counts how often it has stood in line before: what it was let in for then
	// is over, and lets it in no more.
	Turn int
	// On is the kind that it holds, "" while that is not known.
	On string
}

// State is what the line is derived from.
type State struct {
	Stock  []Stock // what is given away first, of what will do, comes first
	Claims []Claim // oldest first
}

// Standing is where a launch stands in the line.
type Standing struct {
	// Admitted says that it may start, on GPUs of this kind.
	Admitted bool
	Kind     string
	// Position counts from 1; 0 while it is not known.
	Position int
}

// Config wires a Line. Everything but Log is required.
type Config struct {
	REST      *rest.Config
	Namespace string // Kueue's
	Log       *slog.Logger
}

// Intervals of the loop.
const (
	waitingInterval = 2 * time.Second  // while somebody waits: places change without a sign
	idleInterval    = 30 * time.Second // what somebody changed by hand is written again
	retryInterval   = 2 * time.Second
	answerTime      = 5 * time.Second // for one call
	settlingTime    = time.Minute     // at most, for Kueue to have everybody who waits in their place
	orderInterval   = time.Second     // at least, between two questions for the order of a line
)

// When many come at once, such as a class, or all after the line was lost: so
// many are seen to before it is looked who is let in, and so many at a time.
const (
	atOnce  = 100
	callers = 8
	// oneByOne is how many of those who wait are put in line one after another: Kueue
	// lets in whom it sees first. There is no more room than that at once.
	oneByOne = 32
)

// Line keeps Kueue's objects as gpulab's state wants them. Keep, Standing and
// Trouble never block.
type Line struct {
	cfg     Config
	client  dynamic.Interface
	changes chan struct{}
	wake    chan struct{}

	workloads cache.SharedIndexInformer

	mu        sync.Mutex
	state     *State // nil before the first Keep
	standings map[int64]Standing
	trouble   string

	// unsettled is since when some who wait have no place: Kueue was away, or has
	// not seen them yet. What is given free then might go to the wrong one.
	unsettled time.Time

	orders map[string]order // by line, as Kueue has said last
	rest   time.Duration    // between two questions for one
	lent   []Stock          // as written last; nil before

	writing sync.Mutex         // guards written
	written map[string]writing // what the loop has applied, by object
}

// order is a line's launches, the next one first.
type order struct {
	at       time.Time
	launches []int64
}

type writing struct {
	object map[string]any
	at     time.Time
}

// New prepares a line; nothing is asked of the cluster before Run.
func New(cfg Config) (*Line, error) {
	access := rest.CopyConfig(cfg.REST)
	access.QPS, access.Burst = 200, 400
	client, err := dynamic.NewForConfig(access)
	if err != nil {
		return nil, fmt.Errorf("connect to the cluster: %w", err)
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	return &Line{
		cfg: cfg, client: client, changes: make(chan struct{}, 1), wake: make(chan struct{}, 1),
		standings: map[int64]Standing{}, orders: map[string]order{}, written: map[string]writing{},
		rest: orderInterval, trouble: Preparing, unsettled: time.Now(),
	}, nil
}

// Preparing is the trouble before the line was reached for the first time.
const Preparing = "The line for GPUs is being prepared."

// Keep tells the line what the pool has and who wants or holds it. Every launch
// with GPUs that has not ended has to be among the claims: a Workload without
// one is deleted.
func (l *Line) Keep(s State) {
	l.mu.Lock()
	same := l.state != nil && reflect.DeepEqual(*l.state, s)
	l.state = &s
	l.mu.Unlock()
	if !same {
		signal(l.wake)
	}
}

// Standing is where a launch stands as far as the line has said.
func (l *Line) Standing(launch int64) Standing {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.standings[launch]
}

// Trouble says in a sentence or two why nobody is let in now, "" when the line
// works.
func (l *Line) Trouble() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.trouble
}

// Changes delivers a token after a standing or the trouble has changed.
func (l *Line) Changes() <-chan struct{} { return l.changes }

func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// Run keeps the line until ctx ends. What waits goes on waiting without it.
func (l *Line) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-l.wake:
		case <-timer.C:
		}
		timer.Reset(l.pass(ctx))
	}
}

// pass brings the cluster to the state and says when to look again.
func (l *Line) pass(ctx context.Context) time.Duration {
	l.mu.Lock()
	state := l.state
	l.mu.Unlock()
	if state == nil || len(state.Stock) == 0 && !slices.ContainsFunc(state.Claims, func(c Claim) bool { return c.Held }) {
		return idleInterval // a lab without GPUs has no Kueue, and one that has none just now gives none away
	}
	next, trouble := idleInterval, ""
	var standings map[int64]Standing
	more, err := l.keep(ctx, *state)
	if err == nil {
		standings, err = l.standing(ctx, *state)
	}
	if ctx.Err() != nil {
		return idleInterval
	}
	settled := l.settle(*state, standings, err)
	if err != nil {
		next, trouble = retryInterval, troubleWords(err)
		l.nudge(ctx, uncertified(err))
	} else if more || settled {
		next = 0
	} else if slices.ContainsFunc(state.Claims, func(c Claim) bool { return !c.Held && !c.Aside }) {
		next = waitingInterval
		if placeless(*state, standings) {
			next = orderInterval / 2 // it is to know its place
		}
	}
	l.mu.Lock()
	if err != nil {
		// What was admitted stays so; places may have changed meanwhile.
		standings = maps.Clone(l.standings)
		maps.DeleteFunc(standings, func(launch int64, s Standing) bool {
			return !s.Admitted || !slices.ContainsFunc(state.Claims, func(c Claim) bool { return c.Launch == launch })
		})
	}
	changed := trouble != l.trouble || !maps.Equal(standings, l.standings)
	if trouble != l.trouble {
		l.cfg.Log.Info("the line for GPUs", "part", "queue", "trouble", trouble, "error", err)
	}
	l.trouble, l.standings = trouble, standings
	l.mu.Unlock()
	if changed {
		signal(l.changes)
	}
	return next
}

// placeless tells whether somebody who waits has no place yet.
func placeless(s State, standings map[int64]Standing) bool {
	return slices.ContainsFunc(s.Claims, func(c Claim) bool {
		return !c.Held && !c.Unready && !c.Aside && standings[c.Launch] == Standing{}
	})
}

// settle notes whether Kueue has everybody who waits in their place, and tells
// whether it has them again just now.
func (l *Line) settle(s State, standings map[int64]Standing, err error) (again bool) {
	waits := !l.unsettled.IsZero()
	switch {
	case err != nil && (!waits || !refused(err)):
		l.unsettled = time.Now()
	case err != nil:
	case !placeless(s, standings):
		l.unsettled = time.Time{}
		return waits
	case !waits:
		l.unsettled = time.Now()
	}
	return false
}

// refused tells an error of one launch, such as that its owner's namespace is
// about to go, from those of a Kueue that is not there.
func refused(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsNotFound(err) || apierrors.IsInvalid(err) ||
		apierrors.IsBadRequest(err) || apierrors.IsConflict(err)
}

// mayFree tells whether room may be given free now.
func (l *Line) mayFree() bool {
	return l.unsettled.IsZero() || time.Since(l.unsettled) > settlingTime
}

// nudge makes the machine look at Kueue's pod again while that is not ready: the
// certificates that it makes for itself at its first start would else reach it
// with the next of the looks that the machine takes once a minute; so would those
// that it makes when the ones that it has are not valid any more.
func (l *Line) nudge(ctx context.Context, all bool) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	pods := l.client.Resource(podKind).Namespace(l.cfg.Namespace)
	list, err := pods.List(ctx,
		metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=kueue,control-plane=controller-manager"})
	if err != nil {
		return // it gets ready all the same
	}
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"gpulab.dev/looked":%q}}}`,
		time.Now().UTC().Format(time.RFC3339))
	for i := range list.Items {
		if all || !podReady(&list.Items[i]) {
			_, _ = pods.Patch(ctx, list.Items[i].GetName(), mergePatch, patch, patched)
		}
	}
}

var errUnsynced = errors.New("the line's launches are not known yet")

// uncertified tells whether Kueue could not be asked because of its certificate. The
// API server passes on only in words why it has not reached a webhook.
func uncertified(err error) bool {
	return strings.Contains(err.Error(), "x509: ") || strings.Contains(err.Error(), "failed to verify certificate")
}

// troubleWords say to people why nobody is let in.
func troubleWords(err error) string {
	if errors.Is(err, errUnsynced) || apierrors.IsNotFound(err) {
		return Preparing
	}
	if uncertified(err) {
		return "The certificate of Kueue, which decides who gets a GPU next, is not valid; it makes another by itself. " +
			"What runs goes on; nobody is let in before, and nobody loses their place."
	}
	return "Kueue, which decides who gets a GPU next, does not answer. What runs goes on; nobody is let in before it " +
		"answers, and nobody loses their place."
}

// watch starts the watch of Workloads once: before Kueue is there, the cluster
// knows no such kind.
func (l *Line) watch(ctx context.Context) error {
	if l.workloads == nil {
		ask, cancel := context.WithTimeout(ctx, answerTime)
		defer cancel()
		if _, err := l.client.Resource(workloadKind).List(ask, ours(1)); err != nil {
			return fmt.Errorf("list the line's launches: %w", err)
		}
		informer := dynamicinformer.NewFilteredDynamicInformer(l.client, workloadKind, "", 0, cache.Indexers{},
			selectOurs).Informer()
		_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { signal(l.wake) },
			UpdateFunc: func(_, _ any) { signal(l.wake) },
			DeleteFunc: func(any) { signal(l.wake) },
		})
		if err != nil {
			return fmt.Errorf("watch the line's launches: %w", err)
		}
		l.workloads = informer
		go informer.RunWithContext(ctx)
	}
	wait, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	if !cache.WaitForCacheSync(wait.Done(), l.workloads.HasSynced) {
		return errUnsynced
	}
	return nil
}

// known are the Workloads of the watch by launch.
func (l *Line) known() map[int64]workload {
	list := map[int64]workload{}
	for _, o := range l.workloads.GetStore().List() {
		if u, ok := o.(*unstructured.Unstructured); ok {
			w := readWorkload(u)
			list[w.launch] = w
		}
	}
	return list
}

// keep makes, changes and deletes what differs from the state, or the most urgent
// part of it: then there is more to do.
func (l *Line) keep(ctx context.Context, s State) (more bool, err error) {
	if err := l.watch(ctx); err != nil {
		return false, err
	}
	before := l.atMost(s.Stock)
	if err := l.lend(ctx, s, before); err != nil {
		return false, err
	}
	have := l.known()
	var todo, inTurn []func(context.Context) error
	// Who has a GPU is booked first, and who comes first joins first: so nobody is
	// let in past somebody who has not joined yet.
	claims := slices.Clone(s.Claims)
	slices.SortStableFunc(claims, func(a, b Claim) int {
		switch {
		case a.Held != b.Held && a.Held:
			return -1
		case a.Held != b.Held:
			return 1
		}
		if order := cmp.Compare(b.Priority, a.Priority); order != 0 {
			return order
		}
		v, one := have[a.Launch]
		w, other := have[b.Launch]
		switch {
		case one && other:
			return v.made.Compare(w.made)
		case one:
			return -1
		case other:
			return 1
		}
		return 0
	})
	for _, c := range claims {
		line := lineOf(c, s.Stock)
		w, there := have[c.Launch]
		delete(have, c.Launch)
		switch do := l.keepClaim(c, line, w, there); {
		case do == nil:
		case c.Held, there && w.line == line:
			todo = append(todo, do)
		default:
			inTurn = append(inTurn, do)
		}
	}
	for _, w := range have {
		if w.reserved && !l.mayFree() {
			continue
		}
		todo = slices.Insert(todo, 0, func(ctx context.Context) error { return l.remove(ctx, w) })
	}
	if more = len(todo)+len(inTurn) > atOnce; more {
		todo = todo[:min(len(todo), atOnce)]
		inTurn = inTurn[:min(len(inTurn), atOnce-len(todo))]
	}
	first := min(len(inTurn), oneByOne)
	var ofOne error // the first that is about one launch alone
	var once sync.Once
	for _, steps := range []struct {
		do      []func(context.Context) error
		callers int
	}{{todo, callers}, {inTurn[:first], 1}, {inTurn[first:], callers}} {
		g, ctx := errgroup.WithContext(ctx)
		g.SetLimit(steps.callers)
		for _, do := range steps.do {
			g.Go(func() error {
				err := do(ctx)
				if err != nil && refused(err) {
					once.Do(func() { ofOne = err })
					return nil // the others go on
				}
				return err
			})
		}
		if err := g.Wait(); err != nil {
			return more, err
		}
	}
	if more || slices.Equal(before, s.Stock) {
		return more, ofOne
	}
	// What there is more of is lent once everybody is where they could get it.
	if err := l.lend(ctx, s, s.Stock); err != nil {
		return false, err
	}
	return false, ofOne
}

// lend writes what belongs to nobody in particular, the stock among it.
func (l *Line) lend(ctx context.Context, s State, stock []Stock) error {
	for _, o := range wanted(stock, linesOf(s)) {
		if err := l.write(ctx, o, time.Minute); err != nil {
			return err
		}
	}
	l.lent = append([]Stock{}, stock...)
	return nil
}

// atMost is the stock as far as it was lent before, all of it at the first time.
func (l *Line) atMost(stock []Stock) []Stock {
	if l.lent == nil {
		return stock
	}
	list := slices.Clone(stock)
	for i := range list {
		before := 0
		if at := slices.IndexFunc(l.lent, func(s Stock) bool { return s.Kind == list[i].Kind }); at >= 0 {
			before = l.lent[at].GPUs
		}
		list[i].GPUs = min(list[i].GPUs, before)
	}
	return list
}

// keepClaim is what brings one launch's Workload to what its claim says, nil for
// nothing.
func (l *Line) keepClaim(c Claim, line string, w workload, there bool) func(context.Context) error {
	switch {
	case !there && c.Unready:
		return nil
	case !there:
		return func(ctx context.Context) error { return l.join(ctx, c, line) }
	case !c.Held && w.reserved && (w.turn != c.Turn || c.Aside) && !l.mayFree():
		return nil // what it had becomes free once everybody is in their place
	case !c.Held && w.reserved && (w.turn != c.Turn || c.Aside),
		// it runs on another kind
		c.Held && w.reserved && c.On != "" && w.flavor != flavorName(c.On),
		// the pool has changed meanwhile
		!c.Held && w.reserved && c.Kinds != nil && !slices.ContainsFunc(c.Kinds, func(k string) bool {
			return flavorName(k) == w.flavor
		}),
		w.gpus != c.GPUs, w.finished:
		// The watch tells when it is gone, and then it joins anew.
		return func(ctx context.Context) error { return l.remove(ctx, w) }
	case c.Held && !w.reserved && c.On == "":
		return nil // its pod is not placed yet
	case c.Held && !w.reserved:
		return func(ctx context.Context) error { return l.grant(ctx, c, line, w) }
	case !w.reserved && (w.priority != c.Priority || w.line != line):
		return func(ctx context.Context) error { return l.move(ctx, c, line, w) }
	case !c.Held && !w.reserved && !c.Aside:
		if l.due(localQueue(c.Namespace, line), time.Minute) {
			return func(ctx context.Context) error { return l.open(ctx, c, line, time.Minute) }
		}
	}
	return nil
}

// join puts a launch into its line.
func (l *Line) join(ctx context.Context, c Claim, line string) error {
	if err := l.open(ctx, c, line, 0); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	made, err := l.client.Resource(workloadKind).Namespace(c.Namespace).Create(ctx, newWorkload(c, line), created)
	if apierrors.IsAlreadyExists(err) {
		return nil // the watch has not told yet
	}
	if err != nil {
		return fmt.Errorf("put launch %d in line: %w", c.Launch, err)
	}
	if c.Held && c.On != "" {
		return l.grant(ctx, c, line, readWorkload(made))
	}
	return nil
}

// open makes sure that people of a claim's namespace can be in a line.
func (l *Line) open(ctx context.Context, c Claim, line string, again time.Duration) error {
	if line == asideLine {
		return nil
	}
	return l.write(ctx, localQueue(c.Namespace, line), again)
}

// move tells of a launch that waits in which line it does, and how it comes there
// among the others. Who has waited longer than those goes on doing so.
func (l *Line) move(ctx context.Context, c Claim, line string, w workload) error {
	if err := l.open(ctx, c, line, time.Minute); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	patch := fmt.Appendf(nil, `{"metadata":{"uid":%q},"spec":{"priority":%d,"queueName":%q}}`, w.uid, c.Priority, line)
	_, err := l.client.Resource(workloadKind).Namespace(w.namespace).Patch(ctx, w.name, mergePatch, patch, patched)
	// Invalid: it was let in meanwhile, as the watch will tell.
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) && !apierrors.IsInvalid(err) {
		return fmt.Errorf("say how launch %d comes in line: %w", c.Launch, err)
	}
	return nil
}

// grant books what a launch holds already: that is no question to Kueue.
func (l *Line) grant(ctx context.Context, c Claim, line string, w workload) error {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	_, err := l.client.Resource(workloadKind).Namespace(w.namespace).Patch(ctx, w.name, mergePatch,
		granted(c, line, time.Now()), patched, "status")
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("book the GPUs of launch %d: %w", c.Launch, err)
	}
	return nil
}

// remove takes a Workload out of the line; what it had is free at once.
func (l *Line) remove(ctx context.Context, w workload) error {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	err := l.client.Resource(workloadKind).Namespace(w.namespace).Delete(ctx, w.name, thisVery(w.uid))
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("take launch %d out of the line: %w", w.launch, err)
	}
	return nil
}

// write applies an object unless it was written in the same words a moment ago.
func (l *Line) write(ctx context.Context, o object, again time.Duration) error {
	if !l.due(o, again) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	var client dynamic.ResourceInterface = l.client.Resource(o.kind)
	if o.namespace != "" {
		client = l.client.Resource(o.kind).Namespace(o.namespace)
	}
	if _, err := client.Apply(ctx, o.name, &unstructured.Unstructured{Object: o.content}, applied); err != nil {
		return fmt.Errorf("write %s %s: %w", o.kind.Resource, o.name, err)
	}
	l.writing.Lock()
	defer l.writing.Unlock()
	l.written[o.key()] = writing{o.content, time.Now()}
	return nil
}

// due tells whether an object has to be applied.
func (l *Line) due(o object, again time.Duration) bool {
	l.writing.Lock()
	defer l.writing.Unlock()
	old, ok := l.written[o.key()]
	return !ok || time.Since(old.at) >= again || !reflect.DeepEqual(old.object, o.content)
}

// standing asks who is where in the lines.
func (l *Line) standing(ctx context.Context, s State) (map[int64]Standing, error) {
	kinds := map[string]string{}
	for _, stock := range s.Stock {
		kinds[flavorName(stock.Kind)] = stock.Kind
	}
	list, pending := map[int64]Standing{}, map[string]map[int64]bool{}
	have := l.known()
	for _, c := range s.Claims {
		w, there := have[c.Launch]
		switch {
		case there && w.admitted && !c.Held && (w.turn != c.Turn || c.Aside): // what it had is about to be free
		case there && w.admitted:
			list[c.Launch] = Standing{Admitted: true, Kind: kinds[w.flavor]}
		case there && !c.Held && !c.Aside && w.line != asideLine: // what was moved back a moment ago may still read so
			if pending[w.line] == nil {
				pending[w.line] = map[int64]bool{}
			}
			pending[w.line][c.Launch] = true
		}
	}
	maps.DeleteFunc(l.orders, func(line string, _ order) bool { return pending[line] == nil })
	for line, waiting := range pending {
		launches, err := l.orderOf(ctx, line, waiting)
		if err != nil {
			return nil, err
		}
		position := 0
		for _, launch := range launches {
			if waiting[launch] {
				position++
				list[launch] = Standing{Position: position}
			}
		}
	}
	return list, nil
}

// orderOf is the order of a line in which these wait, not much older than they are.
func (l *Line) orderOf(ctx context.Context, line string, waiting map[int64]bool) ([]int64, error) {
	last := l.orders[line]
	asked := 0
	for _, launch := range last.launches {
		if waiting[launch] {
			asked++
		}
	}
	since := time.Since(last.at)
	if since < l.rest/5 || since < l.rest && asked == len(waiting) {
		return last.launches, nil
	}
	launches, err := l.order(ctx, line)
	if err == nil {
		l.orders[line] = order{time.Now(), launches}
	}
	return launches, err
}

// order is a line's launches, the next one first, as Kueue has them.
func (l *Line) order(ctx context.Context, line string) ([]int64, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	u, err := l.client.Resource(orderKind).Get(ctx, line, got, "pendingworkloads")
	if err != nil {
		return nil, fmt.Errorf("ask for the order of the line %s: %w", line, err)
	}
	items, _, err := unstructured.NestedSlice(u.Object, "items")
	if err != nil {
		return nil, fmt.Errorf("read the order of the line %s: %w", line, err)
	}
	var launches []int64
	for _, item := range items {
		if m, ok := item.(map[string]any); ok {
			name, _, _ := unstructured.NestedString(m, "metadata", "name")
			launches = append(launches, launchOf(name))
		}
	}
	return launches, nil
}
