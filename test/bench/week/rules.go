package week

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"time"
)

// Owners lives through a week in a lab whose GPUs belong to one person each: to
// those who would use most of them. The others have none. Nobody waits but for
// their own, and a notebook that was left open makes way for its owner's job.
func Owners(ctx context.Context, d Demand) (Record, error) {
	asked := d.asked()
	order := make([]int, d.People)
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(asked[b], asked[a]) })
	owner := make([]int, d.People)
	for i, who := range order {
		owner[who] = i // a machine of one GPU, or none
	}
	d.Machines = slices.Repeat([]int{1}, d.GPUs())
	return live(ctx, d, &rules{own: owner})
}

// Groups lives through a week in a lab whose machines belong to groups: everybody
// is in one, and the larger machine has the larger group. Within a group who comes
// first is served first.
func Groups(ctx context.Context, d Demand) (Record, error) {
	var seats []int // one for each GPU
	for machine, n := range d.Machines {
		for range n {
			seats = append(seats, machine)
		}
	}
	r := rand.New(rand.NewPCG(d.Seed, 0x67726f757073)) //nolint:gosec // it has to be the same again
	owner := make([]int, d.People)
	for i, who := range r.Perm(d.People) {
		owner[who] = seats[i%len(seats)]
	}
	return live(ctx, d, &rules{own: owner})
}

// FirstCome lives through a week in a lab that shares all of its GPUs: who comes
// first is served first, and keeps what they have until they give it back.
func FirstCome(ctx context.Context, d Demand) (Record, error) {
	return live(ctx, d, &rules{})
}

// rules give GPUs to who comes first, of one line, or of a line for each machine.
type rules struct {
	own []int // machine of each person, nil for any
}

func (r *rules) begin(context.Context, *lab) error { return nil }

// fit takes for a job what its owner has: fewer GPUs, and longer.
func (r *rules) fit(l *lab, launch *Launch) {
	if r.own == nil || r.own[launch.Person] >= len(l.Machines) {
		return
	}
	if has := l.Machines[r.own[launch.Person]]; launch.GPUs > has {
		launch.work = launch.work * time.Duration(launch.GPUs) / time.Duration(has)
		launch.GPUs = has
	}
}

func (r *rules) asked(context.Context, *lab, *Launch) error   { return nil }
func (r *rules) started(context.Context, *lab, *Launch) error { return nil }
func (r *rules) ended(context.Context, *lab, *Launch) error   { return nil }

func (r *rules) ownMakesWay() bool { return r.own != nil }

func (r *rules) turn(_ context.Context, l *lab) (map[*Launch]int, error) {
	turns, free, shut := map[*Launch]int{}, slices.Clone(l.free), map[int]bool{}
	for _, w := range l.waiting {
		line := 0
		if r.own != nil {
			if line = r.own[w.Person]; line >= len(l.Machines) {
				continue // they have none
			}
		}
		if shut[line] {
			continue
		}
		on := slices.DeleteFunc(roomy(free, w.GPUs), func(m int) bool { return r.own != nil && m != line })
		if len(on) == 0 {
			shut[line] = true // who comes next does not pass
			continue
		}
		free[on[0]] -= w.GPUs
		turns[w] = on[0]
	}
	return turns, nil
}

func (r *rules) pass(_ context.Context, _ *lab, until time.Duration) (time.Duration, []*Launch, error) {
	return until, nil, nil
}

// roomy are the machines that have so many GPUs free, first the one that has the
// fewest to spare: so machines stay whole for who needs several, as gpulab has it.
func roomy(free []int, gpus int) (machines []int) {
	for m, n := range free {
		if n >= gpus {
			machines = append(machines, m)
		}
	}
	slices.SortStableFunc(machines, func(a, b int) int { return cmp.Compare(free[a], free[b]) })
	return machines
}
