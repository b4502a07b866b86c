// Package week lives through a week of a lab in compressed time: people who work
// in notebooks and submit jobs, and a policy that decides who gets a GPU when.
// The same demand is lived through with several policies, and compared.
//
// The demand is drawn from what is published of real clusters, by a seed; see
// the constants of this file. Three policies are plain rules: GPUs that belong to
// one person each, GPUs that belong to groups, and first come, first served. The
// fourth is gpulab: its own code decides with the real Kueue behind it.
//
// test/bench prints the figures.
package week

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

const aWeek = 7 * 24 * time.Hour

// Demand is what the people of a lab want to do in a week, whatever comes of it.
type Demand struct {
	Seed     uint64
	Length   time.Duration // a week; it begins on a Monday at midnight
	People   int
	Machines []int // GPUs of each
	Sessions []Session
	Jobs     []Job
}

// Session is somebody at work in a notebook with one GPU.
type Session struct {
	Person int
	// At is when they want to begin, Until when they go home: what is not done by
	// then is not done. Both count from the beginning of the week.
	At, Until time.Duration
	Cells     []Cell
	// LeftOpen is for how long the notebook stays open when they have gone, 0 for
	// one that is stopped.
	LeftOpen time.Duration
}

// Cell is one run of a cell: its owner thinks, then the GPU is at work.
type Cell struct {
	Think, Busy time.Duration
	Away        bool // while they think they are not at the desk
}

// Job is a program that runs to its end.
type Job struct {
	Person int
	At     time.Duration
	GPUs   int
	Work   time.Duration // on so many GPUs
}

// What is drawn, and from where. "lognormal" is given by its median and sigma.
const (
	// Size of a lab: what gpulab is made for. There are 2 to 8 people to a GPU.
	fewestPeople, mostPeople       = 30, 100
	fewestGPUs, mostGPUs           = 6, 40
	fewestPeoplePerGPU, mostPerGPU = 2.0, 8.0

	// How long a cell keeps the GPU at work: half of them up to 2 minutes, three
	// quarters up to 5 minutes; and how long after one cell the next begins: half
	// within 5 minutes (Adobe's notebooks: B. Carver et al., NotebookOS, ASPLOS 2026,
	// arXiv 2503.20591). So half of the thinking is up to 3 minutes.
	cellMedian, cellSigma   = 2 * time.Minute, 1.358 // ln(5/2) / 0.6745
	thinkMedian, thinkSigma = 3 * time.Minute, 1.2
	longestCell             = 4 * time.Hour
	longestThink            = 2 * time.Hour
	// Who thinks for so long is at lunch or in a meeting, half of the time.
	awayFrom = 20 * time.Minute

	// How much somebody does in one sitting, in cells: about two hours of work in
	// the middle. An assumption; the papers tell of notebooks that stay open for days.
	cellsMedian, cellsSigma = 14.0, 0.8
	mostCells               = 120

	// How many sittings a week somebody has. An assumption: one on most working days.
	sessionsMean = 4.0

	// Of three notebooks two are left open, and then for half a day on average, two
	// days at most. Of interactive jobs on MIT's Supercloud most run into their
	// limit of 12 or 24 hours (B. Li et al., HPCA 2022), and Adobe's GPUs that are
	// held by notebooks are unused 81 % of the time (NotebookOS).
	leftOpen        = 2.0 / 3
	leftOpenMean    = 12 * time.Hour
	longestLeftOpen = 48 * time.Hour

	// How long a job takes: half of them up to 30 minutes (GPU jobs on Supercloud,
	// HPCA 2022), with a tail that brings the mean to about three hours: Helios has 1.8
	// (6,652 s; Q. Hu et al., SC 2021), Philly 7.9 (28,329 s, as compared there;
	// M. Jeon et al., ATC 2019).
	jobMedian, jobSigma = 30 * time.Minute, 2.0
	longestJob          = 48 * time.Hour

	// How many GPUs a job takes. Most take one in all these traces; Philly has 1.75
	// on average, with machines of eight (SC 2021).
	jobsOnTwo, jobsOnFour = 0.10, 0.05

	// How many jobs a week somebody submits. An assumption, but how unevenly they
	// are spread is known: of PAI's users 5 % submit 77 % of what runs (Q. Weng et
	// al., NSDI 2022). A lab is less uneven: here 5 % submit a quarter.
	jobsMean     = 4.0
	jobsSigma    = 1.0
	oftenInArray = 0.15 // jobs that are submitted several at once, such as a sweep
	arrayLength  = 4
)

// hours says how much is begun in each hour of a day: least at night, a dip at noon
// and in the evening, most in the afternoon, as Helios' submissions (SC 2021, its figure 2).
var hours = [24]float64{
	0.4, 0.2, 0.1, 0.1, 0.1, 0.1, 0.1, 0.3, 1, 2.5, 3, 3, 1.8, 2.4, 3, 3, 3, 2.6, 1.8, 1.4, 1.5, 1.4, 1, 0.7,
}

// days says how much is begun on each day of a week, Monday first.
var days = [7]float64{1, 1, 1, 1, 0.95, 0.35, 0.35}

// Generate draws a lab and its week. The same seed gives the same.
func Generate(seed uint64) Demand {
	r := rand.New(rand.NewPCG(seed, 0x6770756c6162)) //nolint:gosec // it has to be the same again
	d := Demand{Seed: seed, Length: aWeek, People: fewestPeople + r.IntN(mostPeople-fewestPeople+1)}
	ratio := fewestPeoplePerGPU + r.Float64()*(mostPerGPU-fewestPeoplePerGPU)
	gpus := min(max(int(math.Round(float64(d.People)/ratio)), fewestGPUs), mostGPUs)
	for gpus > 0 {
		n := min([]int{1, 2, 4}[r.IntN(3)], gpus)
		d.Machines = append(d.Machines, n)
		gpus -= n
	}
	largest := slices.Max(d.Machines)
	for person := range d.People {
		busy := math.Exp(jobsSigma*r.NormFloat64() - jobsSigma*jobsSigma/2) // 1 on average
		for range poisson(r, sessionsMean) {
			d.Sessions = append(d.Sessions, session(r, person))
		}
		for range poisson(r, jobsMean*busy/(1+oftenInArray*(arrayLength-1))) {
			j := Job{Person: person, At: moment(r), GPUs: 1}
			if size := r.Float64(); size < jobsOnFour {
				j.GPUs = min(4, largest)
			} else if size < jobsOnFour+jobsOnTwo {
				j.GPUs = min(2, largest)
			}
			copies := 1
			if r.Float64() < oftenInArray {
				copies = arrayLength
			}
			for range copies {
				j.Work = lognormal(r, jobMedian, jobSigma, longestJob)
				d.Jobs = append(d.Jobs, j)
			}
		}
	}
	slices.SortStableFunc(d.Sessions, func(a, b Session) int { return cmp.Compare(a.At, b.At) })
	slices.SortStableFunc(d.Jobs, func(a, b Job) int { return cmp.Compare(a.At, b.At) })
	return d
}

// session draws a sitting that could be lived through without waiting.
func session(r *rand.Rand, person int) Session {
	s := Session{Person: person, At: moment(r)}
	// They stay until 7 in the evening, or for four hours if they begin late.
	day := s.At.Truncate(24 * time.Hour)
	s.Until = min(max(day+19*time.Hour, s.At+4*time.Hour), aWeek)
	n := min(max(int(math.Round(cellsMedian*math.Exp(cellsSigma*r.NormFloat64()))), 1), mostCells)
	end := s.At
	for range n {
		c := Cell{
			Think: lognormal(r, thinkMedian, thinkSigma, longestThink), Busy: lognormal(r, cellMedian, cellSigma, longestCell),
		}
		c.Away = c.Think >= awayFrom && r.Float64() < 0.5
		if end += c.Think + c.Busy; end > s.Until {
			break
		}
		s.Cells = append(s.Cells, c)
	}
	if r.Float64() < leftOpen {
		s.LeftOpen = min(time.Duration(r.ExpFloat64()*float64(leftOpenMean)), longestLeftOpen).Truncate(time.Second)
	}
	return s
}

// moment draws when something is begun.
func moment(r *rand.Rand) time.Duration {
	day := pick(r, days[:])
	hour := pick(r, hours[:])
	return time.Duration(day)*24*time.Hour + time.Duration(hour)*time.Hour + time.Duration(r.IntN(3600))*time.Second
}

// pick draws one by its weight.
func pick(r *rand.Rand, weights []float64) int {
	sum := 0.0
	for _, w := range weights {
		sum += w
	}
	at := r.Float64() * sum
	for i, w := range weights {
		if at -= w; at < 0 {
			return i
		}
	}
	return len(weights) - 1
}

// lognormal draws a time, in whole seconds.
func lognormal(r *rand.Rand, median time.Duration, sigma float64, most time.Duration) time.Duration {
	return max(min(time.Duration(float64(median)*math.Exp(sigma*r.NormFloat64())), most).Truncate(time.Second),
		time.Second)
}

// poisson draws how often something happens that does so often on average.
func poisson(r *rand.Rand, mean float64) int {
	n, p := 0, math.Exp(-mean)
	for at := r.Float64(); at > p; n++ {
		at *= r.Float64()
	}
	return n
}

// GPUs is how many the lab has.
func (d Demand) GPUs() int {
	sum := 0
	for _, n := range d.Machines {
		sum += n
	}
	return sum
}

// asked is what each person would have used by the end of the week had they
// never waited.
func (d Demand) asked() []time.Duration {
	list := make([]time.Duration, d.People)
	for _, s := range d.Sessions {
		for _, c := range s.Cells {
			list[s.Person] += c.Busy
		}
	}
	for _, j := range d.Jobs {
		list[j.Person] += min(j.Work, d.Length-j.At) * time.Duration(j.GPUs)
	}
	return list
}

// Hours are the GPU hours that would be used had nobody ever to wait.
func (d Demand) Hours() float64 {
	var sum time.Duration
	for _, a := range d.asked() {
		sum += a
	}
	return sum.Hours()
}

// Capacity are the GPU hours that there are.
func (d Demand) Capacity() float64 { return d.Length.Hours() * float64(d.GPUs()) }

// Bound is the most GPU hours that any policy could have made use of. Until any
// moment no more is used than was asked for until then, and from then on no more
// than there are GPUs: the least of these sums. It takes work for divisible and
// GPUs of several machines for those of one, so it may be out of reach.
func (d Demand) Bound() float64 {
	type piece struct {
		at   time.Duration
		work float64
	}
	var list []piece
	for _, s := range d.Sessions {
		at := s.At
		for _, c := range s.Cells {
			at += c.Think
			list = append(list, piece{at, c.Busy.Hours()})
			at += c.Busy
		}
	}
	for _, j := range d.Jobs {
		list = append(list, piece{j.At, min(j.Work, d.Length-j.At).Hours() * float64(j.GPUs)})
	}
	slices.SortFunc(list, func(a, b piece) int { return cmp.Compare(a.at, b.at) })
	before, bound := 0.0, d.Capacity()
	for _, p := range list {
		bound = min(bound, before+(d.Length-p.at).Hours()*float64(d.GPUs()))
		before += p.work
	}
	return min(bound, before)
}
