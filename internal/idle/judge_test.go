package idle

import (
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/gpu"
)

var start = time.Date(2026, 11, 2, 9, 0, 0, 0, time.UTC)

// watch looks every 15 s for so long.
func watch(r *row, now *time.Time, for_ time.Duration, s sight) {
	s.watched = true
	for end := now.Add(for_); now.Before(end); {
		*now = now.Add(15 * time.Second)
		r.look(*now, s)
	}
}

func TestEachKindOfActivityCounts(t *testing.T) {
	for name, s := range map[string]sight{
		"gpu": {gpu: true}, "cpu": {cpu: true}, "network": {network: true}, "kernel": {claims: &Claims{KernelBusy: true}},
	} {
		r, now := begin(Notebook{Ready: start}, start), start
		watch(&r, &now, time.Hour, s)
		if got := now.Sub(r.used(Default())); got != 0 {
			t.Errorf("a notebook with busy %s counts as idle for %s", name, got)
		}
		watch(&r, &now, time.Hour, sight{claims: &Claims{}})
		if got := now.Sub(r.used(Default())); got != time.Hour {
			t.Errorf("an hour after busy %s it is idle for %s", name, got)
		}
	}
}

func TestTerminalCountsWhenItLastSpoke(t *testing.T) {
	r, now := begin(Notebook{Ready: start}, start), start
	watch(&r, &now, 40*time.Minute, sight{claims: &Claims{Terminal: start.Add(10 * time.Minute)}})
	if got := now.Sub(r.used(Default())); got != 30*time.Minute {
		t.Errorf("its terminal was used 30 min ago, and it is idle for %s", got)
	}
	if h := r.holding(Notebook{Policy: Default()}); !h.Seen[Terminal].Equal(start.Add(10*time.Minute)) || !h.Seen[GPU].Equal(start) {
		t.Errorf("seen is %v", h.Seen)
	}
}

func TestNotebookThatLies(t *testing.T) {
	r, now := begin(Notebook{Ready: start}, start), start
	busy := sight{claims: &Claims{KernelBusy: true, Kernel: start.AddDate(1, 0, 0), Terminal: start.AddDate(1, 0, 0)}}
	watch(&r, &now, believed, busy)
	if got := now.Sub(r.used(Default())); got != 0 {
		t.Fatalf("a kernel that says it is busy is not believed for %s", believed)
	}
	watch(&r, &now, time.Hour, busy)
	if got := now.Sub(r.used(Default())); got < 59*time.Minute {
		t.Errorf("an hour after nothing bears it out any more, it is idle for %s only", got)
	}
	// One look at something real, and its word counts again.
	watch(&r, &now, 15*time.Second, sight{cpu: true})
	watch(&r, &now, time.Hour, busy)
	if got := now.Sub(r.used(Default())); got != 0 {
		t.Errorf("after it has computed, a kernel's word is not believed: idle for %s", got)
	}
}

func TestLoopOnAProcessorDoesNotHoldAGPUForEver(t *testing.T) {
	p := Default()
	r, now := begin(Notebook{Ready: start}, start), start
	watch(&r, &now, 23*time.Hour, sight{cpu: true})
	if got := now.Sub(r.used(p)); got != 0 {
		t.Errorf("a kernel that computes counts as idle for %s", got)
	}
	watch(&r, &now, time.Hour, sight{cpu: true})
	if got := now.Sub(r.used(p)); got != 24*time.Hour {
		t.Errorf("after a day without its GPU it is idle for %s", got)
	}
	p.Unused = 0
	if got := now.Sub(r.used(p)); got != 0 {
		t.Errorf("where the policy sets no bound it is idle for %s", got)
	}
}

func TestTimeThatNobodyWatchedDoesNotCount(t *testing.T) {
	p := Default()
	r, now := begin(Notebook{Ready: start}, start), start
	watch(&r, &now, 20*time.Minute, sight{})
	r.state, r.ends = Warned, now.Add(10*time.Minute)
	idle := func() time.Duration { return now.Sub(r.used(p)) }

	now = now.Add(8 * time.Hour) // the machine slept
	r.look(now, sight{watched: true})
	if idle() != 20*time.Minute || r.ends.Sub(now) != 10*time.Minute {
		t.Errorf("after a sleep: idle for %s, %s left", idle(), r.ends.Sub(now))
	}
	now = now.Add(15 * time.Second) // its machine is not heard
	r.look(now, sight{})
	if idle() != 20*time.Minute || r.ends.Sub(now) != 10*time.Minute {
		t.Errorf("not heard: idle for %s, %s left", idle(), r.ends.Sub(now))
	}
	now = now.Add(-3 * time.Hour) // the clock was set back
	r.look(now, sight{watched: true})
	if idle() != 20*time.Minute || r.ends.Sub(now) != 10*time.Minute {
		t.Errorf("clock set back: idle for %s, %s left", idle(), r.ends.Sub(now))
	}
	watch(&r, &now, 5*time.Minute, sight{})
	if idle() != 25*time.Minute || r.ends.Sub(now) != 5*time.Minute {
		t.Errorf("then: idle for %s, %s left", idle(), r.ends.Sub(now))
	}
}

func TestRates(t *testing.T) {
	base := Usage{At: start, CPU: time.Minute, Bytes: 1 << 20}
	for name, c := range map[string]struct {
		now                 Usage
		cpu, network, known bool
	}{
		"nothing new":              {base, false, false, false},
		"an open tab":              {Usage{start.Add(10 * time.Second), time.Minute + 500*time.Millisecond, 1<<20 + 50<<10}, false, false, true},
		"one core":                 {Usage{start.Add(10 * time.Second), time.Minute + 10*time.Second, 1 << 20}, true, false, true},
		"a download":               {Usage{start.Add(10 * time.Second), time.Minute, 20 << 20}, false, true, true},
		"browsers took more":       {Usage{start.Add(10 * time.Second), time.Minute, 0}, false, false, true},
		"its container is another": {Usage{start.Add(10 * time.Second), 0, 0}, false, false, false},
	} {
		cpu, network, known := rates(base, c.now)
		if cpu != c.cpu || network != c.network || known != c.known {
			t.Errorf("%s: processors %v, network %v, known %v", name, cpu, network, known)
		}
	}
}

func TestShareOfAGPU(t *testing.T) {
	f := func(v float64) *float64 { return &v }
	mine, other := gpu.PodRef{UID: "mine"}, gpu.PodRef{UID: "other"}
	holders := []gpu.Holder{{PodRef: mine}}
	both := []gpu.Holder{{PodRef: mine}, {PodRef: other}}
	for name, c := range map[string]struct {
		g    gpu.GPU
		want *float64
	}{
		"at work":                                       {gpu.GPU{Reading: gpu.Reading{Utilization: f(50), Processes: []gpu.Process{{Pod: mine, SMUtilization: f(50)}}}, Holders: holders}, f(50)},
		"memory taken, nothing done":                    {gpu.GPU{Reading: gpu.Reading{Utilization: f(0), Processes: []gpu.Process{{Pod: mine, SMUtilization: f(0)}}}, Holders: holders}, f(0)},
		"a desktop draws":                               {gpu.GPU{Reading: gpu.Reading{Utilization: f(7), Processes: []gpu.Process{{Graphics: true}}}, Holders: holders}, f(0)},
		"the other one works":                           {gpu.GPU{Reading: gpu.Reading{Utilization: f(90), Processes: []gpu.Process{{Pod: other, SMUtilization: f(90)}}}, Holders: both}, f(0)},
		"shares not told, alone":                        {gpu.GPU{Reading: gpu.Reading{Utilization: f(30), Processes: []gpu.Process{{Pod: mine}}}, Holders: holders}, f(30)},
		"shares not told, two, idle":                    {gpu.GPU{Reading: gpu.Reading{Utilization: f(0), Processes: []gpu.Process{{Pod: mine}, {Pod: other}}}, Holders: both}, f(0)},
		"shares not told, two, busy":                    {gpu.GPU{Reading: gpu.Reading{Utilization: f(30), Processes: []gpu.Process{{Pod: mine}, {Pod: other}}}, Holders: both}, nil},
		"the driver tells nothing":                      {gpu.GPU{Holders: holders}, nil},
		"no list of processes, and busy":                {gpu.GPU{Reading: gpu.Reading{Utilization: f(30)}, Holders: holders}, f(30)},
		"a desktop draws, and who computes is not told": {gpu.GPU{Reading: gpu.Reading{Utilization: f(30), ProcessesUnknown: true, Processes: []gpu.Process{{Graphics: true}}}, Holders: holders}, f(30)},
		"a program draws, and who computes is not told": {gpu.GPU{Reading: gpu.Reading{Utilization: f(99), ProcessesUnknown: true, Processes: []gpu.Process{{Pod: mine, Graphics: true, SMUtilization: f(1)}}}, Holders: holders}, f(99)},
		"the same, of two":                              {gpu.GPU{Reading: gpu.Reading{Utilization: f(99), ProcessesUnknown: true, Processes: []gpu.Process{{Pod: mine, Graphics: true, SMUtilization: f(1)}}}, Holders: both}, nil},
		"cannot be read":                                {gpu.GPU{Reading: gpu.Reading{Error: "lost"}, Holders: holders}, nil},
		"has powered itself down":                       {gpu.GPU{Reading: gpu.Reading{Asleep: true}, Holders: holders}, f(0)},
	} {
		got := shareOf(&c.g, holders[0])
		if (got == nil) != (c.want == nil) || got != nil && *got != *c.want {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
}

func TestWhoServesWhom(t *testing.T) {
	ben := func(launch int64, gpus int, nodes ...string) Waiting {
		return Waiting{Launch: launch, Handle: "ben", GPUs: gpus, Nodes: nodes}
	}
	keeps := func(launch int64, gpus int, node string, nodes ...string) Waiting {
		w := ben(launch, gpus, nodes...)
		w.Keeps = node
		return w
	}
	for name, c := range map[string]struct {
		q    Queue
		list []candidate
		want map[int64]int64
	}{
		"nobody waits": {Queue{}, []candidate{{launch: 1, node: "a", gpus: 1, idle: 9}}, nil},
		"the longest idle one goes": {Queue{Waiting: []Waiting{ben(9, 1, "a")}},
			[]candidate{{launch: 1, node: "a", gpus: 1, idle: 5}, {launch: 2, node: "a", gpus: 1, idle: 9}}, map[int64]int64{2: 9}},
		"a warning does not wander": {Queue{Waiting: []Waiting{ben(9, 1, "a")}},
			[]candidate{{launch: 1, node: "a", gpus: 1, idle: 5, warned: true}, {launch: 2, node: "a", gpus: 1, idle: 9}}, map[int64]int64{1: 9}},
		"not even to another machine": {Queue{Waiting: []Waiting{ben(9, 1, "a", "b")}},
			[]candidate{{launch: 2, node: "a", gpus: 1, idle: 9}, {launch: 1, node: "b", gpus: 1, idle: 5, warned: true}}, map[int64]int64{1: 9}},
		"one is free anyway": {Queue{Free: map[string]int{"a": 1}, Waiting: []Waiting{ben(9, 1, "a")}},
			[]candidate{{launch: 1, node: "a", gpus: 1, idle: 9}}, nil},
		"it would not do": {Queue{Waiting: []Waiting{ben(9, 1, "b")}},
			[]candidate{{launch: 1, node: "a", gpus: 1, idle: 9}}, nil},
		"two for one who needs two": {Queue{Waiting: []Waiting{ben(9, 2, "a")}},
			[]candidate{{launch: 1, node: "a", gpus: 1, idle: 9}, {launch: 2, node: "a", gpus: 1, idle: 5}, {launch: 3, node: "a", gpus: 1, idle: 2}}, map[int64]int64{1: 9, 2: 9}},
		"one more than is free": {Queue{Free: map[string]int{"a": 1}, Waiting: []Waiting{ben(9, 2, "a")}},
			[]candidate{{launch: 1, node: "a", gpus: 1, idle: 9}, {launch: 2, node: "a", gpus: 1, idle: 5}}, map[int64]int64{1: 9}},
		"not enough comes together": {Queue{Waiting: []Waiting{ben(9, 2, "a", "b")}},
			[]candidate{{launch: 1, node: "a", gpus: 1, idle: 9}, {launch: 2, node: "b", gpus: 1, idle: 5}}, nil},
		"nobody goes for what is kept for another": {Queue{Free: map[string]int{"a": 1}, Waiting: []Waiting{keeps(8, 3, "a", "a"), ben(9, 1, "a")}},
			[]candidate{{launch: 1, node: "a", gpus: 1, idle: 9}}, nil},
		"what is kept serves nobody behind": {Queue{Free: map[string]int{"a": 1}, Waiting: []Waiting{keeps(8, 2, "a", "a"), ben(9, 1, "a", "b")}},
			[]candidate{{launch: 1, node: "b", gpus: 1, idle: 9}}, map[int64]int64{1: 9}},
		"the machine that is kept is full then": {Queue{Free: map[string]int{"a": 1}, Waiting: []Waiting{keeps(8, 2, "a", "a", "b"), ben(9, 1, "a")}},
			[]candidate{{launch: 1, node: "a", gpus: 1, idle: 5}, {launch: 2, node: "a", gpus: 1, idle: 4}}, map[int64]int64{1: 8, 2: 9}},
		"what is left over serves the next": {Queue{Waiting: []Waiting{ben(8, 1, "a"), ben(9, 1, "a")}},
			[]candidate{{launch: 1, node: "a", gpus: 2, idle: 9}, {launch: 2, node: "a", gpus: 1, idle: 5}}, map[int64]int64{1: 8}},
		"more is taken than there is": {Queue{Free: map[string]int{"a": -1}, Waiting: []Waiting{ben(9, 1, "a")}},
			[]candidate{{launch: 1, node: "a", gpus: 1, idle: 9}}, map[int64]int64{1: 9}},
		"each by one": {Queue{Waiting: []Waiting{ben(8, 1, "a"), ben(9, 1, "a")}},
			[]candidate{{launch: 1, node: "a", gpus: 1, idle: 9}, {launch: 2, node: "a", gpus: 1, idle: 5}, {launch: 3, node: "a", gpus: 1, idle: 4}}, map[int64]int64{1: 8, 2: 9}},
	} {
		got := match(c.q, c.list)
		if len(got) != len(c.want) {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
		for launch, who := range c.want {
			if got[launch].Launch != who {
				t.Errorf("%s: launch %d goes for %v, want %d", name, launch, got[launch], who)
			}
		}
	}
}

func TestPolicies(t *testing.T) {
	d := func(d time.Duration) *time.Duration { return &d }
	never := Never
	p := Policies{Base: Default(),
		Profiles: map[string]Change{"big": {After: d(5 * time.Minute)}},
		Groups:   map[string]Change{"thesis": {After: d(2 * time.Hour)}, "course": {After: d(10 * time.Minute), Countdown: d(time.Minute)}, "staff": {Act: &never}}}
	if err := p.Check(); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		profile string
		groups  []string
		want    time.Duration
	}{
		"base": {"gpu", nil, 30 * time.Minute}, "profile": {"big", []string{"other"}, 5 * time.Minute},
		"group before profile": {"big", []string{"course"}, 10 * time.Minute}, "the most generous group": {"gpu", []string{"course", "thesis"}, 2 * time.Hour},
	} {
		if got := p.Of(c.profile, c.groups).After; got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
	if got := p.Of("gpu", []string{"thesis", "staff"}).Act; got != Never {
		t.Errorf("whoever is in a group that is left alone is: %s", got)
	}
	for text, change := range map[string]Change{
		"act is": {Act: new(Act)}, "after is how long": {After: d(0)}, "countdown is how long": {Countdown: d(0)}, "extend is for how long": {Extend: d(0)},
		"unused is shorter": {Unused: d(time.Minute)}, "maxAge is not longer": {MaxAge: d(time.Minute)}, "no time is longer": {MaxAge: d(999 * 24 * time.Hour)},
	} {
		if err := (Policies{Base: change.Apply(Default())}).Check(); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("want an error with %q, got %v", text, err)
		}
		if err := (Policies{Base: Default(), Groups: map[string]Change{"g": change}}).Check(); err == nil || !strings.Contains(err.Error(), `the group "g"`) {
			t.Errorf("for a group: %v", err)
		}
	}
}

func TestLeft(t *testing.T) {
	for d, want := range map[time.Duration]string{-1: "0:00", time.Millisecond: "0:01", 581 * time.Second: "9:41", 3725 * time.Second: "1:02:05"} {
		if got := Left(d); got != want {
			t.Errorf("%s left is %q, want %q", d, got, want)
		}
	}
}
