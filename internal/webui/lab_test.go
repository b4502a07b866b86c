package webui_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"io/fs"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/gpulab/gpulab/internal/api"
	"github.com/gpulab/gpulab/internal/api/apitest"
	"github.com/gpulab/gpulab/internal/cookies"
	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/notebooks"
	"github.com/gpulab/gpulab/internal/quota"
	"github.com/gpulab/gpulab/internal/storage"
	"github.com/gpulab/gpulab/internal/users"
	"github.com/gpulab/gpulab/internal/webui"
)

// testGPU is the first GPU of a test lab.
const testGPU = "GPU-5f0c1a7e-0000-4000-8000-000000000000"

// A lab is the pages over fakes, on a server of their own that is the
// notebooks' origin too.
type lab struct {
	unused       bool // nobody has had a GPU
	users        *testUsers
	quotas       *quota.Service
	storage      *storage.Service
	notebooks    *fakeNotebooks
	fleet        *fakeFleet
	status       *fakeStatus
	history      *fakeHistory
	lending      *fakeLending
	door         *fakeDoor
	machines     *apitest.Machines
	environments *apitest.Environments
	tailnet      *apitest.Tailnet
	pages        *webui.Server
	server       *httptest.Server
	ca           []byte
	// checked and checkFails are what a test of a GPU comes to.
	checked    string
	checkFails error
	// refuseWebSockets makes the notebooks' origin answer like a Safari that
	// does not trust the certificate: pages yes, WebSockets no.
	refuseWebSockets atomic.Bool
	// breakHub makes it answer like one whose certificate the browser does not
	// take at all: every connection ends.
	breakHub atomic.Bool
}

// apiDescription is what the page about the HTTP API is made of.
func apiDescription(t testing.TB) []byte {
	t.Helper()
	text, err := api.Description()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// newLab starts a lab with two GPUs, of which heldBy hold the first ones.
func newLab(t testing.TB, heldBy ...string) *lab {
	t.Helper()
	return newLabWith(t, nil, heldBy...)
}

// newLabOf starts one that offers these programs for people's computers.
func newLabOf(t testing.TB, clients fs.FS, heldBy ...string) *lab {
	t.Helper()
	return newLabWith(t, func(c *webui.Config) { c.Clients = clients }, heldBy...)
}

// newLabWith starts one with another configuration.
func newLabWith(t testing.TB, edit func(*webui.Config), heldBy ...string) *lab {
	t.Helper()
	l := &lab{users: newUsers(t), notebooks: &fakeNotebooks{}, fleet: &fakeFleet{}, ca: testCA(t),
		history: &fakeHistory{known: map[string]bool{testGPU: true}}, lending: &fakeLending{anyway: map[string]bool{}}, door: &fakeDoor{}, machines: apitest.NewMachines(), environments: apitest.NewEnvironments(t),
		tailnet: apitest.NewTailnet(),
		status:  &fakeStatus{status: ctl.Status{Ready: true, Version: "0.1.0-test", Components: []ctl.Component{{Name: "kubernetes", State: ctl.OK, Detail: "v1.34.1"}}}}}
	l.fleet.publish(snapshotAt(time.Now(), 2, heldBy...))
	l.quotas, l.storage = newQuotas(t, l.users, l.notebooks)

	mux := http.NewServeMux()
	l.server = httptest.NewUnstartedServer(cookies.Limit(mux))
	cookies.Server(l.server.Config)
	l.server.EnableHTTP2 = true
	l.server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	l.server.StartTLS()
	t.Cleanup(l.server.Close)
	address, err := url.Parse(l.server.URL)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(address.Port())
	if err != nil {
		t.Fatal(err)
	}
	config := webui.Config{Users: l.users, Audit: l.users.AuditLog(), Notebooks: l.notebooks, Fleet: l.fleet,
		Status:  l.status,
		History: l.history, Quotas: l.quotas, Storage: l.storage, Report: l.report, LendGPU: l.lending.set, Machines: l.machines, Environments: l.environments, Tailnet: l.tailnet, GPULabels: func(node string) []string {
			return []string{"nvidia.com/gpu.memory=24576", "nvidia.com/gpu.product=NVIDIA-A100-SXM4-40GB"}
		}, CheckGPU: func(context.Context) (string, error) { return l.checked, l.checkFails },
		CA: func() []byte { return l.ca }, Clients: someClients(t), LabName: "Vision lab", Version: "0.1.0-test", HTTPSPort: port, HubPort: port, NotebooksAt: func(_ context.Context, host string, _ int64) (string, error) {
			return net.JoinHostPort(strings.Trim(host, "[]"), strconv.Itoa(port)), nil
		},
		Files: l.door.door(), API: apiDescription(t), Log: slog.New(slog.NewTextHandler(testWriter{t}, nil))}
	if edit != nil {
		edit(&config)
	}
	pages, err := webui.New(config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- pages.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	l.pages = pages
	mux.Handle("/", pages)
	mux.HandleFunc("/gpulab/ping", func(w http.ResponseWriter, _ *http.Request) {
		if l.breakHub.Load() {
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(http.StatusNoContent)
	})
	mux.HandleFunc("/gpulab/ws-check", func(w http.ResponseWriter, r *http.Request) {
		if l.breakHub.Load() {
			panic(http.ErrAbortHandler)
		}
		if l.refuseWebSockets.Load() {
			http.Error(w, "refused", http.StatusBadRequest)
			return
		}
		c, err := websocket.Accept(w, r, nil)
		if err == nil {
			_ = c.CloseNow()
		}
	})
	mux.HandleFunc("/user/", func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "JupyterLab at "+r.URL.Path) })
	return l
}

type testWriter struct{ t testing.TB }

func (w testWriter) Write(text []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(text)))
	return len(text), nil
}

// session signs a person in behind the pages' back.
func (l *lab) session(t testing.TB, handle string) string {
	t.Helper()
	u, err := l.users.ByHandle(context.Background(), handle)
	if err != nil {
		t.Fatal(err)
	}
	token, err := l.users.StartSession(context.Background(), u.ID, users.SessionMeta{})
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// busy fills the lab: launches in every state, ada and ben on the GPUs.
func (l *lab) busy() {
	now := time.Now()
	held := l.fleet.Snapshots()[0]
	add := func(id int64, user, profile, title string, state notebooks.State, edit func(*notebooks.Launch)) notebooks.Launch {
		n := notebooks.Launch{ID: id, Handle: user, Title: title, Profile: profile, Name: profile, State: state,
			Requested: now.Add(-13 * time.Minute), URL: "/user/" + user + "/" + profile + "/"}
		for _, u := range people {
			if u.Handle == user {
				n.UserID = u.ID
			}
		}
		if profile == "gpu" {
			n.GPUs, n.Simulated = 1, state == notebooks.Running
		}
		if state == notebooks.Running {
			n.Started, n.Ready = now.Add(-12*time.Minute-4*time.Second), now.Add(-12*time.Minute)
		}
		if edit != nil {
			edit(&n)
		}
		return n
	}
	steps := func(active int, failed bool) []notebooks.Step {
		all := []notebooks.Step{
			{Name: notebooks.StepQueue, Text: "A GPU is free on gpu-box.", Elapsed: 200 * time.Millisecond},
			{Name: notebooks.StepNamespace, Text: "Home folder and limits are there.", Elapsed: time.Second},
			{Name: notebooks.StepImage, Text: "Already on this machine.", Elapsed: 0},
			{Name: notebooks.StepPod, Text: "Starting the container with GPU 1.", Elapsed: 2 * time.Second},
			{Name: notebooks.StepServer},
		}
		for i := range all {
			switch {
			case i < active:
				all[i].State = "done"
			case i == active && failed:
				all[i].State, all[i].Text = "failed", "The machine has no disk space left for the container."
			case i == active:
				all[i].State = "active"
			default:
				all[i].State, all[i].Text = "waiting", ""
			}
		}
		return all
	}
	waitingSteps := func(reason string) []notebooks.Step {
		all := steps(0, false)
		all[0].Text = reason
		return all
	}
	holders := []notebooks.Holder{
		{Handle: "ada", Pod: "jupyter-ada", Notebook: "gpu", GPUs: 1, Node: "gpu-box", Since: now.Add(-12 * time.Minute)},
		{Handle: "ben", Pod: "jupyter-ben", Notebook: "gpu", GPUs: 1, Node: "gpu-box", Since: now.Add(-59 * time.Minute)},
	}
	l.notebooks.change(func(list *[]notebooks.Launch) {
		*list = []notebooks.Launch{
			add(1, "ada", "gpu", "protein-folding", notebooks.Running, func(n *notebooks.Launch) { n.GPUUUIDs = []string{held.GPUs[0].UUID} }),
			add(2, "ben", "gpu", "Seminar exercise 3", notebooks.Running, func(n *notebooks.Launch) { n.GPUUUIDs = []string{held.GPUs[1].UUID} }),
			add(3, "lea", "gpu", "GPU notebook", notebooks.Waiting, func(n *notebooks.Launch) {
				n.Reason, n.Position, n.Holders = "Both GPUs are in use. It is next in line.", 1, holders
				n.Detail = waitingSteps(n.Reason)
			}),
			add(4, "ada", "cpu", "A rather long title, to see what a table does with a name that somebody wrote in full", notebooks.Starting, func(n *notebooks.Launch) { n.Started, n.Detail = now.Add(-3*time.Second), steps(3, false) }),
			add(5, "ada", "gpu", "eight-gpus", notebooks.Waiting, func(n *notebooks.Launch) {
				n.GPUs, n.Never, n.Reason = 8, true, "It asks for 8 GPUs; the largest machine of this lab has 2."
			}),
			add(6, "ada", "cpu", "failed-one", notebooks.Ended, func(n *notebooks.Launch) {
				n.EndCode, n.Ended, n.Detail = notebooks.EndFailed, now.Add(-time.Minute), steps(3, true)
				n.Reason = "The machine has no disk space left. An admin can free some; “gpulab status” says where it went."
			}),
		}
	})
	l.status.status.Ready = false
	l.status.status.Components = []ctl.Component{
		{Name: "k3s", State: ctl.OK, Detail: "process 31731, up 3h4m0s, 0 restarts"},
		{Name: "hub", State: ctl.Failed, Detail: "The hub's pod has restarted 4 times in 10 minutes.", NextStep: "see `gpulab kubectl -n gpulab-system logs deploy/hub`"},
		{Name: "gpu probe", State: ctl.Warning, Detail: "GPU 1 does not answer.", NextStep: "see `gpulab logs`"},
		{Name: "charts", State: ctl.Starting, Detail: "4 of 6; jupyterhub: waiting"},
		{Name: "backup", State: ctl.Off, Detail: "no folder is set"},
	}
	l.status.charts = []ctl.Chart{{Name: "coredns", Version: "1.43.2", State: "deployed"}, {Name: "jupyterhub", Version: "0.1.0", State: "pending-upgrade"}}
}

// testCA makes a certificate authority like the lab's.
func testCA(t testing.TB) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "gpulab web CA (gpu-box)"},
		NotBefore: time.Now(), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}
