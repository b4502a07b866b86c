package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime/pprof"
	"slices"
	"sync"
	"time"

	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/fleet"
	"github.com/gpulab/gpulab/internal/gpu"
	"github.com/gpulab/gpulab/internal/history"
	"github.com/gpulab/gpulab/internal/notebooks"
	"github.com/gpulab/gpulab/internal/quota"
	"github.com/gpulab/gpulab/internal/storage"
	"github.com/gpulab/gpulab/internal/store"
	"github.com/gpulab/gpulab/internal/users"
	"github.com/gpulab/gpulab/internal/webca"
	"github.com/gpulab/gpulab/internal/webui"
	"github.com/gpulab/gpulab/test/bench/part"
)

// waiting is how many launches wait for a GPU.
const waiting = 20

// sample is a new value of a GPU.
type sample struct {
	UUID               string
	Use                int // percent
	Sampled, Published time.Time
}

func (s sample) key() string { return fmt.Sprintf("%s %d", s.UUID, s.Use) }

// samples are the new values that were published.
type samples struct {
	mu   sync.Mutex
	last map[string]int
	list []sample
}

func (s *samples) note(snapshot gpu.Snapshot, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range snapshot.GPUs {
		if g.Utilization == nil || s.last[g.UUID] == int(*g.Utilization) {
			continue
		}
		s.last[g.UUID] = int(*g.Utilization)
		s.list = append(s.list, sample{UUID: g.UUID, Use: s.last[g.UUID], Sampled: snapshot.Time, Published: now})
	}
}

// take returns what was published since the last call.
func (s *samples) take() []sample {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := s.list
	s.list = nil
	return list
}

func (s *samples) uuids() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []string
	for uuid := range s.last {
		list = append(list, uuid)
	}
	slices.Sort(list)
	return list
}

func handle(i int) string { return fmt.Sprintf("student-%d", i) }

// owned says whose pods the processes are in, as the cluster would: nobody
// else's name is on two of them.
func owned(s gpu.Snapshot) gpu.Snapshot {
	s.GPUs = slices.Clone(s.GPUs)
	for g := range s.GPUs {
		card := &s.GPUs[g]
		card.Slots, card.Holders = processes, nil
		card.Processes = slices.Clone(card.Processes)
		for i := range card.Processes {
			user := handle(g*processes + i)
			pod := gpu.PodRef{UID: user, Namespace: "user-" + user, Name: "jupyter-" + user, User: user, Notebook: "gpu"}
			card.Processes[i].Pod = pod
			card.Holders = append(card.Holders, gpu.Holder{PodRef: pod, Since: s.Time.Add(-time.Hour)})
		}
	}
	return s
}

// idle is a gpulab of which nothing is to be told, one machine alone.
type idle struct{ webui.Machines }

func (idle) Status(context.Context) (ctl.Status, error)  { return ctl.Status{}, nil }
func (idle) Nodes(context.Context) (ctl.Machines, error) { return ctl.Machines{}, nil }
func (idle) Charts(context.Context) ([]ctl.Chart, error) { return nil, nil }

// noEnvironments are those of a lab that has none.
type noEnvironments struct{ webui.Environments }

func (noEnvironments) List(context.Context) ([]ctl.EnvironmentState, error) { return nil, nil }

// serve is the server: what watches the GPUs, and the pages.
func serve(ctx context.Context, file string) error {
	cfg, err := part.Config[config](file)
	if err != nil {
		return err
	}
	databases, err := store.Open(ctx, cfg.Dir)
	if err != nil {
		return err
	}
	defer func() { _ = databases.Close() }()
	people := users.New(databases.DB())
	ports, err := notebooks.NewOrigins(ctx, databases.DB(), []int{21000, 21999}, func(int) bool { return true })
	if err != nil {
		return err
	}
	service, err := notebooks.New(notebooks.Config{
		DB: databases.DB(), Cluster: noCluster{}, Origins: ports, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	r := ready{}
	if r.Cookies, err = signIn(ctx, people, service, cfg.People); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	var tasks sync.WaitGroup
	defer tasks.Wait()
	defer cancel()

	machines := fleet.New()
	published := &samples{last: map[string]int{}}
	recorder := history.New(history.Config{Store: databases})
	tasks.Go(func() { _ = recorder.Run(ctx, machines.Subscribe(ctx)) })
	first := make(chan struct{})
	var once sync.Once
	monitor := gpu.NewMonitor(gpu.MonitorConfig{Node: "gpu-box", ProbePath: cfg.Probe, Library: cfg.Library,
		Publish: func(s gpu.Snapshot) {
			s = owned(s)
			machines.Update(s)
			published.note(s, time.Now())
			if len(s.GPUs) == gpus && len(s.GPUs[gpus-1].Processes) == processes {
				once.Do(func() { close(first) })
			}
		}})
	tasks.Go(func() { _ = monitor.Run(ctx) })
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-first:
	case <-time.After(30 * time.Second):
		return errors.New("the probe has not told of all GPUs and processes within 30 s")
	}
	pages, err := webui.New(webui.Config{
		Users: people, Audit: people.AuditLog(), Notebooks: service, Fleet: machines, Status: idle{}, Machines: idle{},
		History: recorder,
		Quotas:  unlimited{},
		Storage: storage.New(storage.Config{
			DB: databases.DB(), People: people, Audit: people.AuditLog(), HomesDir: filepath.Join(cfg.Dir, "homes"),
			FoldersDir: filepath.Join(cfg.Dir, "folders"),
		}),
		Environments: noEnvironments{},
		CheckGPU:     func(context.Context) (string, error) { return "", nil },
		LendGPU:      func(context.Context, string, bool) error { return nil },
		NotebooksAt:  ports.Authority,
		Log:          slog.Default(),
	})
	if err != nil {
		return err
	}
	tasks.Go(func() { _ = pages.Run(ctx) })
	certs, err := webca.Ensure(filepath.Join(cfg.Dir, "tls"), []string{"127.0.0.1"})
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := &http.Server{
		Handler: pages, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: time.Minute, TLSConfig: certs.TLSConfig(),
	}
	tasks.Go(func() { _ = server.ServeTLS(listener, "", "") })
	defer func() { _ = server.Close() }()
	r.Address, r.CA, r.UUIDs = listener.Addr().String(), certs.CAPEM(), published.uuids()
	out := json.NewEncoder(os.Stdout)
	if err := out.Encode(r); err != nil {
		return err
	}
	return obey(out, published, cfg.Profile)
}

// signIn makes the people, a session for each, and launches of some.
func signIn(ctx context.Context, people *users.Service, service *notebooks.Service,
	n int) (cookies []string, err error) {
	for i := range n {
		u, err := people.Create(ctx, users.NewUser{Handle: handle(i), Name: handle(i), Role: users.RoleMember})
		if err != nil {
			return nil, err
		}
		token, err := people.StartSession(ctx, u.ID, users.SessionMeta{})
		if err != nil {
			return nil, err
		}
		cookies = append(cookies, token)
		if i < waiting {
			if _, err := service.Launch(ctx, u, notebooks.Request{Profile: "gpu"}); err != nil {
				return nil, err
			}
		}
	}
	return cookies, nil
}

// obey does what the measurement says until it ends.
func obey(out *json.Encoder, published *samples, profile string) error {
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		switch lines.Text() {
		case "profile":
			if err := part.Profile(profile); err != nil {
				return err
			}
		case "samples":
			pprof.StopCPUProfile()
			if err := out.Encode(published.take()); err != nil {
				return err
			}
		}
	}
	return nil
}

// unlimited is a lab without quotas.
type unlimited struct{ webui.Quotas }

func (unlimited) Limits(context.Context, users.User) ([]quota.Limit, error) { return nil, nil }
func (unlimited) Notice(context.Context, int64) (string, error)             { return "", nil }

// noCluster is what launches see that nobody starts.
type noCluster struct{ notebooks.Cluster }

func (noCluster) Synced() bool { return false }
