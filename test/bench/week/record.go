package week

import (
	"math"
	"slices"
	"time"
)

// Record is what became of a week.
type Record struct {
	Demand Demand
	// Policy names what decided.
	Policy   string
	Launches int
	// Held are GPU hours that somebody held.
	Held     float64
	Finished int // jobs
	// GaveUp are sittings whose owner went home before they had a GPU, StillWaiting
	// launches that wait at the end.
	GaveUp, StillWaiting int
	// Reclaimed notebooks were stopped because nobody used them, Interrupted of
	// them while their owner wanted to go on; Lost of them while their GPU was at work.
	Reclaimed, Interrupted, Lost int
	// Preempted jobs were ended for the sake of others.
	Preempted int

	got             []time.Duration // GPU time at work by person
	notebooks, jobs []time.Duration // how long each waited
}

func (r *Record) waited(job bool, d time.Duration) {
	if job {
		r.jobs = append(r.jobs, d)
	} else {
		r.notebooks = append(r.notebooks, d)
	}
}

// Useful are the GPU hours in which a GPU was at work.
func (r Record) Useful() float64 {
	var sum time.Duration
	for _, d := range r.got {
		sum += d
	}
	return sum.Hours()
}

// Waited is how long so many of a hundred launches waited at most, of jobs or of
// notebooks. Who gave up, and who still waits, has waited until then; who went on
// in a notebook that was still open has not waited.
func (r Record) Waited(jobs bool, of int) time.Duration {
	list := r.notebooks
	if jobs {
		list = r.jobs
	}
	return percentile(list, of)
}

func percentile(list []time.Duration, of int) time.Duration {
	if len(list) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(list))
	at := int(math.Ceil(float64(of)/100*float64(len(sorted)))) - 1
	return sorted[min(max(at, 0), len(sorted)-1)]
}

// Fairness is Jain's index of what people got of what they asked for: 1 is the
// same share for everybody, 1/n everything for one of n.
func (r Record) Fairness() float64 {
	asked := r.Demand.asked()
	var shares []float64
	for i, a := range asked {
		if a > 0 {
			shares = append(shares, min(float64(r.got[i])/float64(a), 1))
		}
	}
	return jain(shares)
}

// jain is R. Jain's index of fairness, DEC-TR-301, 1984.
func jain(list []float64) float64 {
	sum, squares := 0.0, 0.0
	for _, x := range list {
		sum, squares = sum+x, squares+x*x
	}
	if squares == 0 {
		return 1
	}
	return sum * sum / (float64(len(list)) * squares)
}
