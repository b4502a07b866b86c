package notebooks

import (
	"strings"
	"testing"
	"time"
)

func TestStartFailure(t *testing.T) {
	now := time.Now()
	for _, c := range []struct {
		name string
		pod  PodInfo
		want string // part of the sentence, "" = goes on
	}{
		{"coming up", PodInfo{WaitingReason: "ContainerCreating", Created: now}, ""},
		{"no such image", PodInfo{WaitingReason: "ErrImageNeverPull", WaitingMessage: "not present"}, "image cannot be loaded: it is not on the machine"},
		{"bad configuration", PodInfo{WaitingReason: "CreateContainerConfigError"}, "container cannot be started: CreateContainerConfigError"},
		{"crash loop", PodInfo{WaitingReason: "CrashLoopBackOff", ExitCode: 3}, "exit code 3"},
		{"the runtime refuses", PodInfo{Finished: true, Exited: true, ExitCode: 128, ExitReason: "StartError", ExitMessage: "no such device"}, "cannot be started: no such device"},
		{"the kubelet refuses", PodInfo{Finished: true, StatusReason: "UnexpectedAdmissionError", StatusMessage: "no GPU"}, "could not hand over the GPU: no GPU"},
		{"out of memory", PodInfo{Exited: true, ExitCode: 137, ExitReason: "OOMKilled", MemoryLimit: 512 << 20}, "limit of 512 MiB"},
		{"just not placed yet", PodInfo{Unschedulable: "0/1 nodes", Created: now.Add(-time.Second)}, ""},
		{"not placed for long", PodInfo{Unschedulable: "0/1 nodes", Created: now.Add(-time.Minute)}, "No machine can take it: 0/1 nodes"},
	} {
		got := startFailure(c.pod, now, 10*time.Second)
		if c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}

// A cell that once ran out of memory does not make every later end one of it.
func TestMemoryOfLongAgo(t *testing.T) {
	long := time.Now().Add(-time.Hour)
	for name, c := range map[string]struct {
		pod           PodInfo
		notebook, job string
	}{
		"now":                      {PodInfo{Exited: true, ExitCode: 137}, EndOutOfMemory, EndOutOfMemory},
		"shut down from inside":    {PodInfo{Exited: true}, EndExited, EndSucceeded},
		"failed":                   {PodInfo{Exited: true, ExitCode: 1}, EndExited, EndOutOfMemory},
		"the machine shuts down":   {PodInfo{Exited: true, ExitCode: 137, StatusReason: "NodeShutdown"}, EndInterrupted, EndInterrupted},
		"asked to end":             {PodInfo{Exited: true, ExitCode: 143}, EndExited, EndExited},
		"saved":                    {PodInfo{Exited: true, ExitCode: exitSaved, Terminating: true}, EndExited, EndInterrupted},
		"killed after its grace":   {PodInfo{Exited: true, ExitCode: 137, Terminating: true}, EndExited, EndExited},
		"the machine lost its pod": {PodInfo{Exited: true, ExitCode: 255}, EndExited, EndOutOfMemory},
	} {
		c.pod.ExitReason, c.pod.Started, c.pod.Ended = "OOMKilled", long, long.Add(time.Minute)
		if code, words := endWords(c.pod); code != c.notebook {
			t.Errorf("%s: a notebook ends as %s: %s", name, code, words)
		}
		if code, words := jobEndWords(c.pod, 2*time.Hour, true); code != c.job {
			t.Errorf("%s: a job ends as %s: %s", name, code, words)
		}
	}
}

func TestLastLine(t *testing.T) {
	for said, want := range map[string]string{
		"":                             "",
		" \r\n \n":                     "",
		"\x1b[31m\x1b[0m":              "",
		"one\ntwo\n\n":                 " Its last line was: two",
		"10 %\r20 %\r":                 " Its last line was: 20 %",
		"\x1b[1;31mOSError\x1b[0m: no": " Its last line was: OSError: no",
		"a\x00b\u202ec\xff":            " Its last line was: abc\ufffd",
		strings.Repeat("ä", 400):       " Its last line was: " + strings.Repeat("ä", 300) + "…",
	} {
		if got := lastLine(said); got != want {
			t.Errorf("%q: got %q, want %q", said, got, want)
		}
	}
}

// Who fills a disk of their own reads that, and who gives way to others that.
func TestEvictedWords(t *testing.T) {
	const own = "It wrote more than its 20 GiB outside of its home"
	for message, want := range map[string]string{
		`Container notebook exceeded its local ephemeral storage limit "20Gi". `:                    own,
		`Pod ephemeral local storage usage exceeds the total limit of containers 20Gi. `:            own,
		`Usage of EmptyDir volume "scratch" exceeds the limit "20Gi". `:                             own,
		`The node was low on resource: memory. Threshold quantity: 200Mi, available: 100Mi. `:       "Its machine ran short of memory or disk",
		`The node was low on resource: ephemeral-storage. Container x was using 20Gi, request is 0`: "Its machine ran short of memory or disk",
	} {
		code, words := endWords(PodInfo{Finished: true, StatusReason: "Evicted", StatusMessage: message})
		if code != EndEvicted || !strings.HasPrefix(words, want) {
			t.Errorf("%s: %s, %s", message, code, words)
		}
	}
}

// Whatever a registry or the kubelet says, a student reads what it means.
func TestImageFailure(t *testing.T) {
	const ref = `failed to pull and unpack image "docker.io/lab/x:1": failed to resolve reference "docker.io/lab/x:1": `
	for message, want := range map[string]string{
		ref + `failed to do request: Head "https://registry-1.docker.io/v2/lab/x/manifests/1": dial tcp: lookup registry-1.docker.io: no such host`: "Its image lab/x:1 is not on the machine, and its registry cannot be reached. Try again later, ask an administrator to import it, or choose another notebook.",
		ref + `failed to do request: Head "https://registry-1.docker.io/v2/lab/x/manifests/1": dial tcp 10.0.0.1:443: i/o timeout`:                  "its registry cannot be reached",
		ref + `docker.io/lab/x:1: not found`: "Its image lab/x:1 is not on the machine, and its registry has none of this name. Ask an administrator to correct the profile, or choose another notebook.",
		ref + `pull access denied, repository does not exist or may require authorization: server message: insufficient_scope: authorization failed`: "gives it to nobody who is not signed in",
		ref + `unexpected status from HEAD request to https://registry-1.docker.io/v2/lab/x/manifests/1: 429 Too Many Requests`:                      "lets nobody load more for now",
		ref + `tls: failed to verify certificate: x509: certificate signed by unknown authority`:                                                     "certificate is not trusted",
		`failed to extract layer: write /x: no space left on device`:                                                                                 "the machine's disk is full",
		`no match for platform in manifest: not found`:                                                                                               "not made for this kind of machine",
		`something that nobody has thought of`:                                                                                                       "Its image lab/x:1 cannot be loaded: something that nobody has thought of",
		``:                                                                                                                                           "Its image lab/x:1 cannot be loaded: ErrImagePull",
	} {
		p := PodInfo{Image: "lab/x:1", WaitingReason: "ErrImagePull", WaitingMessage: message}
		if got := startFailure(p, time.Now(), 0); !strings.Contains(got, want) {
			t.Errorf("%s\nreads\n%s\nwant\n%s", message, got, want)
		}
	}
}

func TestWaitWords(t *testing.T) {
	room := Room{
		Nodes: []NodeRoom{{Total: Amount{GPUs: 2}, Free: Amount{GPUs: 1}}, {Total: Amount{GPUs: 2}, Free: Amount{GPUs: 1}}},
	}
	for _, c := range []struct {
		name     string
		v        verdict
		room     Room
		position int
		want     string
	}{
		{"no machine", verdict{short: shortGPU}, Room{Away: make([]NodeRoom, 1)}, 1, "No machine of the lab is ready. It starts when one is."},
		{"never", verdict{never: true, candidate: candidate{need: Need{Amount: Amount{GPUs: 3}}}}, room, 0, "It asks for 3 GPUs, but no machine of this lab has more than 2. It can never start like this: cancel it, or launch another notebook."},
		{"no GPU in the lab", verdict{never: true, candidate: candidate{need: Need{Amount: Amount{GPUs: 1}}}}, Room{Nodes: make([]NodeRoom, 1)}, 0, "No machine of this lab offers a GPU now. Cancel it, or launch a CPU notebook."},
		{"only on a machine without", verdict{never: true, candidate: candidate{need: Need{Amount: Amount{GPUs: 1}, Only: "head"}}}, room, 0, "It starts on head only, because its home is nowhere else, and head has no such GPUs. Cancel it, or launch a CPU notebook."},
		{"only on a machine that is full", verdict{short: shortGPU, candidate: candidate{need: Need{Amount: Amount{GPUs: 1}, Only: "head"}}}, Room{Nodes: []NodeRoom{{Name: "head", Total: Amount{GPUs: 1}}, {Name: "b", Total: Amount{GPUs: 1}}}}, 1, "It starts on head only, because its home is nowhere else, and no GPU is free there. It is next in line."},
		{"no such model", verdict{never: true, candidate: candidate{need: Need{Amount: Amount{GPUs: 1}, GPUKind: GPUKind{Model: "H100"}}}}, room, 0, "It asks for 1 GPU of the kind H100, and no machine of this lab has that. There are: 4 × of an unknown kind. It can never start like this: cancel it, or launch another notebook."},
		{"too small", verdict{never: true, candidate: candidate{need: Need{Amount: Amount{GPUs: 2}, GPUKind: GPUKind{MinMemory: 40 << 30}}}}, room, 0, "It asks for 2 GPUs with 40 GiB each, and no machine of this lab has that. There are: 4 × of an unknown kind. It can never start like this: cancel it, or launch another notebook."},
		{"spread over machines", verdict{short: shortGPU, candidate: candidate{need: Need{Amount: Amount{GPUs: 2}}}}, room, 1, "It asks for 2 GPUs; 2 of 4 are free, but not on one machine or not yet for it. It is next in line."},
		{"one withheld", verdict{short: shortGPU, candidate: candidate{need: Need{Amount: Amount{GPUs: 1}}}}, Room{Nodes: []NodeRoom{{Total: Amount{GPUs: 2}, Withheld: 1}}}, 1, "In use: 1 of 2 GPUs. Not lent out now: 1; the GPU page says why. It is next in line."},
		{"shares", verdict{short: shortGPU, candidate: candidate{need: Need{Amount: Amount{GPUs: 1}}}}, Room{Shared: true, Nodes: []NodeRoom{{Total: Amount{GPUs: 2}}}}, 1, "All 2 shares of GPUs are in use. It is next in line."},
		{"all withheld", verdict{short: shortGPU, candidate: candidate{need: Need{Amount: Amount{GPUs: 1}}}}, Room{Nodes: []NodeRoom{{Total: Amount{GPUs: 2}, Withheld: 2}}}, 1, "No GPU is lent out now; the GPU page says why. It starts when one is. It is next in line."},
		{"memory", verdict{short: shortMemory, candidate: candidate{need: Need{Amount: Amount{Memory: 3 << 29}}}}, room, 2, "Not enough memory is free: it needs 1.5 GiB on one machine. One launch is ahead of it."},
		{"cordoned, and full elsewhere", verdict{short: shortGPU, candidate: candidate{need: Need{Amount: Amount{GPUs: 1}}}, cordoned: []NodeRoom{{Name: "b", Why: "new memory"}}},
			Room{Nodes: []NodeRoom{{Total: Amount{GPUs: 1}}}}, 1, "The lab's GPU is in use. b (new memory) takes no new work now. It is next in line."},
		{"all that would do are cordoned", verdict{candidate: candidate{need: Need{Amount: Amount{GPUs: 1}}}, cordoned: []NodeRoom{{Name: "a"}, {Name: "b", Why: "new memory"}}},
			Room{Nodes: []NodeRoom{{}}}, 2, "a and b (new memory) take no new work now. It starts when that has changed."},
		{"all machines are cordoned", verdict{cordoned: []NodeRoom{{Name: "a"}}}, Room{}, 1, "a takes no new work now. It starts when that has changed."},
		{"away", verdict{candidate: candidate{need: Need{Amount: Amount{GPUs: 1}, Only: "c"}}, short: shortGPU}, Room{Nodes: make([]NodeRoom, 1), Away: []NodeRoom{{Name: "c", Total: Amount{GPUs: 1}}}}, 0, "The machine that it needs is away. It starts when that is back."},
		{"its turn, and GPUs of several machines", verdict{short: shortGPU, candidate: candidate{granted: true, need: Need{Amount: Amount{GPUs: 2}}}}, room, 0, "Its turn has come. It waits until a machine has 2 GPUs free at once."},
		{"its turn, and no memory", verdict{short: shortMemory, candidate: candidate{granted: true, need: Need{Amount: Amount{GPUs: 1, Memory: 3 << 29}}}}, room, 0, "Its turn has come. Not enough memory is free: it needs 1.5 GiB on one machine."},
		{"not in line yet", verdict{short: shortGPU, candidate: candidate{need: Need{Amount: Amount{GPUs: 1}}}}, Room{Nodes: []NodeRoom{{Total: Amount{GPUs: 1}}}}, 0, "The lab's GPU is in use. It is being put in line."},
		{"processor", verdict{short: shortCPU, candidate: candidate{need: Need{Amount: Amount{MilliCPU: 500}}}}, room, 4, "Not enough processor time is free: it needs 0.5 cores on one machine. 3 launches are ahead of it."},
	} {
		if got := waitWords(c.v, c.room, c.position); got != c.want {
			t.Errorf("%s:\n%s\nwant\n%s", c.name, got, c.want)
		}
	}
}
