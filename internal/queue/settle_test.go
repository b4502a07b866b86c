package queue

import (
	"errors"
	"slices"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Kueue that comes back has some of those who wait in its line before the
// others. Room that is given free in that moment goes to somebody of these.
func TestNothingIsFreedBeforeWhoWaitsHasAPlace(t *testing.T) {
	l := &Line{}
	s := State{Claims: []Claim{{Launch: 1, Held: true}, {Launch: 2}, {Launch: 3}}}
	both := map[int64]Standing{1: {Admitted: true}, 2: {Position: 1}, 3: {Position: 2}}
	away := errors.New("the server is currently unable to handle the request")

	if l.settle(s, both, nil); !l.mayFree() {
		t.Fatal("everybody has a place, and nothing may be freed")
	}
	if l.settle(s, nil, away); l.mayFree() {
		t.Error("Kueue does not answer, and room is given free")
	}
	if again := l.settle(s, map[int64]Standing{3: {Position: 1}}, nil); again || l.mayFree() {
		t.Error("launch 2 has no place yet, and room is given free")
	}
	if again := l.settle(s, both, nil); !again || !l.mayFree() {
		t.Error("everybody has a place again, and room is kept")
	}

	// A launch that never gets one keeps nobody's GPU for long.
	l.settle(s, map[int64]Standing{3: {Position: 1}}, nil)
	l.unsettled = time.Now().Add(-settlingTime - time.Second)
	gone := apierrors.NewForbidden(schema.GroupResource{Resource: "workloads"}, "launch-2", errors.New("the namespace is being terminated"))
	if l.settle(s, nil, gone); !l.mayFree() {
		t.Error("one launch that cannot join holds the room of all")
	}
	if l.settle(s, nil, away); l.mayFree() {
		t.Error("Kueue is away again, and room is given free")
	}
}

// Whom no open machine could take stands aside: it keeps the place that it has, or gets one for later, is let in no more,
// and nobody waits for it to be given a place.
func TestAsideKeepsItsPlace(t *testing.T) {
	c := Claim{Launch: 7, Namespace: "user-ada", GPUs: 1, Aside: true}
	stock := []Stock{{"T4", 1}}
	place := localQueue(c.Namespace, everyKind)
	l := &Line{written: map[string]writing{place.key(): {place.content, time.Now()}}}
	if l.keepClaim(c, asideLine, workload{}, false) == nil {
		t.Error("it gets no place for later")
	}
	if got := lineOf(c, stock); got != asideLine {
		t.Errorf("it is in the line %q", got)
	}
	if lines := linesOf(State{Stock: stock, Claims: []Claim{c}}); len(lines) != 1 {
		t.Errorf("Kueue knows the lines %v", lines)
	}
	if placeless(State{Claims: []Claim{c}}, nil) {
		t.Error("others wait for it to have a place")
	}
	there := workload{launch: 7, line: everyKind, gpus: 1}
	if l.keepClaim(c, asideLine, there, true) == nil {
		t.Error("it does not stand aside")
	}
	there.line = asideLine
	if l.keepClaim(c, asideLine, there, true) != nil {
		t.Error("its place is not left alone")
	}
	c.Aside = false
	if l.keepClaim(c, everyKind, there, true) == nil {
		t.Error("it does not come back")
	}
	there.line = everyKind
	if l.keepClaim(c, everyKind, there, true) != nil {
		t.Error("it is moved where it is")
	}
	// What was let in, and could not start.
	let := workload{launch: 7, line: everyKind, gpus: 1, reserved: true, admitted: true}
	if l.keepClaim(c, everyKind, let, true) != nil {
		t.Error("what was let in is taken away")
	}
	c.Aside = true
	if l.keepClaim(c, asideLine, let, true) == nil {
		t.Error("it holds what others could use")
	}
}

// What there is more of is lent after everybody has been moved to where they could get it, what there is less of before.
func TestMoreIsLentLast(t *testing.T) {
	l := &Line{}
	now := []Stock{{"A100", 2}, {"T4", 4}}
	if got := l.atMost(now); !slices.Equal(got, now) {
		t.Errorf("at first there are %v to lend", got)
	}
	l.lent = []Stock{{"T4", 6}}
	if got, want := l.atMost(now), []Stock{{"A100", 0}, {"T4", 4}}; !slices.Equal(got, want) {
		t.Errorf("before anybody is moved there are %v to lend, want %v", got, want)
	}
	l.lent = []Stock{} // no machine had any
	if got, want := l.atMost(now), []Stock{{"A100", 0}, {"T4", 0}}; !slices.Equal(got, want) {
		t.Errorf("before anybody is moved there are %v to lend, want %v", got, want)
	}
}

// Who waits and is not ready yet, as after a start of gpulab, keeps the place that it
// has, and is given none.
func TestUnreadyKeepsItsPlace(t *testing.T) {
	c := Claim{Launch: 7, Namespace: "user-ada", GPUs: 1, Unready: true}
	line := lineOf(c, nil)
	place := localQueue(c.Namespace, line)
	l := &Line{written: map[string]writing{place.key(): {place.content, time.Now()}}}
	if l.keepClaim(c, line, workload{}, false) != nil {
		t.Error("it joins, though its namespace may not be there")
	}
	there := workload{launch: 7, line: line, gpus: 1}
	if l.keepClaim(c, line, there, true) != nil {
		t.Error("its place is not left alone")
	}
	if placeless(State{Claims: []Claim{c}}, nil) {
		t.Error("others wait for it to have a place")
	}
	if held := (Claim{Launch: 8, Namespace: "user-ada", GPUs: 1, Held: true, Unready: true}); l.keepClaim(held, line, workload{}, false) != nil {
		t.Error("what is being stopped joins a line in a namespace that may be going")
	}
	c.Unready = false
	if l.keepClaim(c, line, workload{}, false) == nil || !placeless(State{Claims: []Claim{c}}, nil) {
		t.Error("once it is ready, it does not join")
	}
}
