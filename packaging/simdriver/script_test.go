package simdriver

import (
	"os"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestScriptLines(t *testing.T) {
	for line, want := range map[string]step{
		"init 18":                                     {gpu: -1, verb: "init", number: 18},
		"at 3s gpu 0 hang":                            {at: 3 * time.Second, verb: "hang"},
		"at 20s gpu 1 removed":                        {at: 20 * time.Second, gpu: 1, verb: "removed"},
		"at 5s gpu 0 xid 79":                          {at: 5 * time.Second, verb: "xid", number: 79, times: 1},
		"gpu 0 xid 31 times 10000":                    {verb: "xid", number: 31, times: 10000},
		"gpu 0 xid 31 by 7 python3 logged":            {verb: "xid", number: 31, times: 1, pid: 7, words: []string{"python3"}, logged: true},
		"gpu 0 use 30..90 over 60s for 2m":            {verb: "use", from: 30, to: 90, over: time.Minute, length: 2 * time.Minute},
		"gpu 0 use 12.5":                              {verb: "use", from: 12.5, to: 12.5},
		"gpu 1 process 4711 ends":                     {gpu: 1, verb: "process", number: 4711, words: []string{"ends"}},
		"gpu 0 ecc corrected 12":                      {verb: "ecc", kind: "corrected", number: 12},
		"gpu 0 remapped uncorrected 1 failed":         {verb: "remapped", kind: "uncorrected", number: 1, words: []string{"failed"}},
		"gpu 0 retired 3 pending":                     {verb: "retired", number: 3, words: []string{"pending"}},
		"gpu 0 throttle temperature power":            {verb: "throttle", words: []string{"temperature", "power"}},
		"gpu 0 throttle none":                         {verb: "throttle"},
		"gpu 0 recovery drain-and-reset":              {verb: "recovery", words: []string{"drain-and-reset"}},
		"gpu 0 persistence off":                       {verb: "persistence", words: []string{"off"}},
		"gpu 0 mig 1g.6gb 2g.12gb":                    {verb: "mig", words: []string{"1g.6gb", "2g.12gb"}},
		"gpu 0 process 7 sm 0 memory 1GiB instance 1": {verb: "process", number: 7, load: exactLoad{memory: 1 << 30, part: 2}},
		"gpu 0 mig off":                               {verb: "mig"},
		"at 10s gpu 1 process 4711 sm 70 memory 1.5GiB graphics for 60s": {
			at: 10 * time.Second, gpu: 1, verb: "process", number: 4711, length: time.Minute,
			load: exactLoad{sm: 70, memory: 3 << 29, graphics: true},
		},
	} {
		if got, err := parseStep(line); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %+v, %v; want %+v", line, got, err, want)
		}
	}
}

func TestScriptRefusals(t *testing.T) {
	for line, want := range map[string]string{
		"at soon gpu 0 lost":   `"soon" after "at" is no time such as 5s or 2m`,
		"at -1s gpu 0 lost":    `"-1s" after "at" is no time`,
		"gpu 16 lost":          `"16" is no number from 0 to 15`,
		"gpu 0 explode":        `one of ecc, fail, hang, limits, lists, lost, mig, ok,`,
		"gpu 0 xid":            `"" is no number from 1 to 65535; write e.g. "gpu 0 xid 31 times 10000 by 4711 python3"`,
		"gpu 0 xid 79 times 0": `"0" is no number from 1 to 1000000`,
		"gpu 0 xid 79 by 7":    `the program's name is missing`,
		"gpu 0 xid 79 by me x": `"me" is no number from 1 to 4194304`,
		"gpu 0 process 7 sm 0 memory 1GiB instance 7": `"7" is no number from 0 to 6`,
		"gpu 0 lost twice":                            `"twice" is too much`,
		"gpu 0 use 30..90":                            `a range needs "over" and a time`,
		"gpu 0 use 30 over 5s":                        `a range needs "over" and a time`,
		"gpu 0 use 130":                               `"130" is no percentage`,
		"gpu 0 process x sm 1 memory 1GiB":            `"x" is no number`,
		"gpu 0 process 7 memory 1GiB":                 `"sm" is missing`,
		"gpu 0 process 7 sm 101 memory 1GiB":          `"101" is no share from 0 to 100 percent`,
		"gpu 0 process 7 sm 10 memory 1GB":            `"1GB" is no size such as 512MiB or 4GiB`,
		"gpu 0 process 7 sm 10 memory NaNGiB":         `"NaNGiB" is no size`,
		"gpu 0 ecc fixed 1":                           `"fixed" is neither corrected nor uncorrected`,
		"gpu 0 remapped corrected 1 soon":             `"soon" is none of pending, failed`,
		"gpu 0 throttle":                              `the reason is missing`,
		"gpu 0 recovery pray":                         `"pray" is none of none, reset, reboot, drain, drain-and-reset`,
		"gpu 0 mig":                                   `0 instances, but there can be 1 to 7`,
		"gpu 0 mig 9g.1gb":                            `"9g.1gb" is neither "off" nor a size such as 1g.6gb`,
		"gpu 0 process 7 sm 1 memory 1GiB for x":      `"x" after "for" is no time`,
	} {
		_, err := parseStep(line)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), `"`+line+`": `) {
			t.Errorf("%q: %v; want %s", line, err, want)
		}
	}
}

func TestScriptNamesEveryWrongLine(t *testing.T) {
	good, err := parseScript("# a comment\nat 9s gpu 0 lost\n\nnonsense\nat 1s gpu 0 hang # early\ngpu 0 xid x\n")
	if len(good) != 2 || good[0].verb != "hang" || good[1].verb != "lost" {
		t.Errorf("the good lines are %+v, want hang before lost", good)
	}
	if err == nil || !strings.HasPrefix(err.Error(), `line 4: "nonsense": `) || !strings.Contains(err.Error(), "\nline 6: ") {
		t.Errorf("error %v", err)
	}
}

// at replays a script's lines as they stand so long after its beginning.
func at(s *state, age time.Duration, lines []step) {
	now := time.Now()
	s.replay(script{began: now.Add(-age), steps: lines}, nil, now)
}

func TestTimeline(t *testing.T) {
	s := exampleState()
	g := &s.gpus[1]
	lines := steps(t,
		"at 10s gpu 1 process 4711 sm 70 memory 4GiB for 60s",
		"at 0s gpu 1 use 30..90 over 60s for 100s",
		"at 20s gpu 1 removed",
		"at 30s gpu 1 ok",
		"at 2s gpu 1 ecc corrected 5", "at 4s gpu 1 ecc corrected 2",
		"at 40s gpu 1 throttle brake temperature")
	for _, c := range []struct {
		age     time.Duration
		use     float64
		process bool
		want    condition
	}{
		{0, 30, false, condition{}},
		{5 * time.Second, 35, false, condition{ecc: counts{corrected: 7}}},
		{15 * time.Second, 45, true, condition{ecc: counts{corrected: 7}}},
		{25 * time.Second, 55, true, condition{removed: true, ecc: counts{corrected: 7}}},
		{45 * time.Second, 75, true, condition{throttle: 0xa0}},
		{99 * time.Second, 90, false, condition{throttle: 0xa0}},
	} {
		at(&s, c.age, lines)
		if g.scripted.use == nil || *g.scripted.use != c.use {
			t.Errorf("after %v the use is %v, want %v", c.age, g.scripted.use, c.use)
		}
		if _, there := g.scripted.processes[4711]; there != c.process || g.condition != c.want {
			t.Errorf("after %v the process is there: %v, condition %+v; want %v, %+v", c.age, there, g.condition, c.process, c.want)
		}
	}
	at(&s, 100*time.Second, lines)
	if g.scripted.use != nil {
		t.Errorf("after its end the use is %v", *g.scripted.use)
	}
}

// Two people on one GPU: each reads what they take, and the GPU the sum.
func TestExactLoads(t *testing.T) {
	s := exampleState()
	g, m := &s.gpus[0], newGPUModel(&s.gpus[0])
	two := []user{{pid: 7, exact: &exactLoad{sm: 70, memory: 4 << 30}, resident: 1 << 30}, {pid: 8, exact: &exactLoad{sm: 30, memory: 6 << 30}}}
	for range 30 {
		m.step(g, two, time.Second)
		want := []processState{{pid: 7, sm: 70, memory: 4 << 30}, {pid: 8, sm: 30, memory: 6 << 30}}
		if g.utilization != 100 || g.memoryUsed != 10<<30 || !reflect.DeepEqual(g.processes, want) {
			t.Fatalf("%v %% and %d bytes, %+v", g.utilization, g.memoryUsed, g.processes)
		}
	}
	if g.power < 200 || g.fan <= idleFan || g.pcieGeneration != 4 || g.memoryTemperature < 50 || g.pcieReceived < 1e6 {
		t.Errorf("after half a minute of work: %+v", *g)
	}
	// More than there is: the shares shrink alike, the card is full.
	m.step(g, append(two, user{pid: 9, exact: &exactLoad{sm: 100, memory: 20 << 30}}), time.Second)
	if g.utilization != 100 || g.memoryUsed != gpuMemory || g.processes[0].sm != 35 || g.processes[2].sm != 50 || g.processes[2].memory != 14<<30 {
		t.Errorf("%v %% and %d bytes, %+v", g.utilization, g.memoryUsed, g.processes)
	}
	// One that says what it takes beside one that is measured.
	mixed := []user{two[1], {pid: 9, work: 1, resident: 1 << 30}}
	for range 60 {
		m.step(g, mixed, time.Second)
	}
	if g.processes[0].sm != 30 || g.processes[1].sm < 60 || g.processes[1].sm > 70 {
		t.Errorf("%v %%, %+v", g.utilization, g.processes)
	}
	// A script's use and process.
	s.gpus[1].scripted = scripted{use: new(42.0), processes: map[int]exactLoad{5: {sm: 40, memory: 1 << 30, graphics: true}}}
	newGPUModel(&s.gpus[1]).step(&s.gpus[1], nil, time.Second)
	if want := []processState{{pid: 5, sm: 40, memory: 1 << 30, graphics: true}}; s.gpus[1].utilization != 42 || !reflect.DeepEqual(s.gpus[1].processes, want) {
		t.Errorf("%v %%, %+v", s.gpus[1].utilization, s.gpus[1].processes)
	}
}

func TestPlay(t *testing.T) {
	root := t.TempDir()
	if err := os.MkdirAll(stateDir(root), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Play(root, "at 1s gpu 0 lost\n"); err != nil {
		t.Fatal(err)
	}
	if err := Play(root, "gpu 0 lost\ngpu 0 explode\n"); err == nil || !strings.Contains(err.Error(), "line 2: ") {
		t.Errorf("got %v", err)
	}
	r := scriptReader{path: ScriptFile(root)}
	got, err := r.read()
	if err != nil || len(got.steps) != 1 || got.steps[0].at != time.Second || time.Since(got.began) > time.Minute {
		t.Errorf("the script is %+v, %v", got, err)
	}
	if err := os.WriteFile(ScriptFile(root), []byte("by hand\ngpu 0 hang\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err = r.read(); err == nil || len(got.steps) != 1 || got.steps[0].verb != "hang" {
		t.Errorf("with a wrong line: %+v, %v", got, err)
	}
	if _, err = r.read(); err != nil {
		t.Errorf("the wrong line is told again: %v", err)
	}
	if err := os.Remove(ScriptFile(root)); err != nil {
		t.Fatal(err)
	}
	if got, err = r.read(); err != nil || got.steps != nil {
		t.Errorf("without a script: %+v, %v", got, err)
	}
}

func TestAskedLoad(t *testing.T) {
	if got, err := parseLoad(" memory=4GiB  sm=70 "); err != nil || got != (exactLoad{sm: 70, memory: 4 << 30}) {
		t.Errorf("got %+v, %v", got, err)
	}
	for _, text := range []string{"70", "sm", "sm=many", "memory=4", "power=3"} {
		if _, err := parseLoad(text); err == nil || !strings.Contains(err.Error(), "write e.g.") {
			t.Errorf("%q: %v", text, err)
		}
	}
}
