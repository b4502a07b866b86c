package week

import (
	"math"
	"reflect"
	"slices"
	"testing"
	"time"
)

func TestSameSeedSameWeek(t *testing.T) {
	if !reflect.DeepEqual(Generate(7), Generate(7)) {
		t.Error("a seed gives two weeks")
	}
	if reflect.DeepEqual(Generate(7).Jobs, Generate(8).Jobs) {
		t.Error("two seeds give one week")
	}
}

// What is drawn keeps to the figures that it is drawn from.
func TestDemand(t *testing.T) {
	var busy, gaps, jobs []time.Duration
	var sittings, people, heavy, all int
	var left float64
	for seed := range uint64(60) {
		d := Generate(seed)
		if d.People < fewestPeople || d.People > mostPeople || d.GPUs() < fewestGPUs || d.GPUs() > mostGPUs {
			t.Errorf("seed %d: %d people with %d GPUs", seed, d.People, d.GPUs())
		}
		if bound := d.Bound(); bound > d.Hours()+1e-6 || bound > d.Capacity() || bound <= 0 {
			t.Errorf("seed %d: at most %f of %f hours in %f", seed, bound, d.Hours(), d.Capacity())
		}
		people += d.People
		sittings += len(d.Sessions)
		for _, s := range d.Sessions {
			end := s.At
			for _, c := range s.Cells {
				busy, gaps = append(busy, c.Busy), append(gaps, c.Think)
				end += c.Think + c.Busy
			}
			if s.At < 0 || end > s.Until || s.Until > aWeek || s.LeftOpen > longestLeftOpen {
				t.Fatalf("seed %d: %+v", seed, s)
			}
			if s.LeftOpen > 0 {
				left++
			}
		}
		each := make([]int, d.People)
		for _, j := range d.Jobs {
			if j.At < 0 || j.At >= aWeek || j.Work <= 0 || j.Work > longestJob || j.GPUs < 1 || j.GPUs > slices.Max(d.Machines) {
				t.Fatalf("seed %d: %+v", seed, j)
			}
			jobs = append(jobs, j.Work)
			each[j.Person]++
		}
		slices.Sort(each)
		for i, n := range each {
			all += n
			if i >= len(each)-len(each)/20 {
				heavy += n
			}
		}
	}
	near := func(what string, got, want, within float64) {
		t.Helper()
		if math.Abs(got-want) > within {
			t.Errorf("%s: %.3f, and not %.3f", what, got, want)
		}
	}
	// Cells that do not fit before the evening are left out, and those are long ones.
	near("half of the cells, in minutes", percentile(busy, 50).Minutes(), 2, 0.15)
	near("three quarters of the cells, in minutes", percentile(busy, 75).Minutes(), 5, 0.4)
	near("half of the thinking, in minutes", percentile(gaps, 50).Minutes(), 3, 0.2)
	near("half of the jobs, in minutes", percentile(jobs, 50).Minutes(), 30, 2)
	near("a job on average, in hours", mean(jobs).Hours(), 3, 0.6)
	near("jobs of a person", float64(len(jobs))/float64(people), jobsMean, 0.4)
	near("sittings of a person", float64(sittings)/float64(people), sessionsMean, 0.2)
	near("notebooks that are left open", left/float64(sittings), leftOpen, 0.03)
	near("what a twentieth of the people submits", float64(heavy)/float64(all), 0.25, 0.06)
}

func mean(list []time.Duration) time.Duration {
	var sum time.Duration
	for _, d := range list {
		sum += d
	}
	return sum / time.Duration(len(list))
}

// Work that comes late cannot all be done in time, however it is shared out.
func TestBound(t *testing.T) {
	d := Demand{Length: aWeek, People: 1, Machines: []int{1}, Jobs: []Job{
		{At: 0, GPUs: 1, Work: 10 * time.Hour},
		{At: aWeek - 4*time.Hour, GPUs: 1, Work: 3 * time.Hour},
		{At: aWeek - 4*time.Hour, GPUs: 1, Work: 48 * time.Hour},
	}}
	if got := d.Bound(); got != 14 {
		t.Errorf("%f hours at most, and not the first 10 and the last 4", got)
	}
	if got := d.Hours(); got != 17 {
		t.Errorf("%f hours are asked for, and not 10, 3 and 4", got)
	}
}
