// Package apitest is a lab behind the HTTP API, for tests: real accounts, quotas and history in databases of the test's
// own, two simulated GPUs, and notebooks that a test moves from state to state by hand.
package apitest

import (
	"context"
	"database/sql"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/api"
	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/gpu"
	"github.com/gpulab/gpulab/internal/history"
	"github.com/gpulab/gpulab/internal/mail"
	"github.com/gpulab/gpulab/internal/notebooks"
	"github.com/gpulab/gpulab/internal/quota"
	"github.com/gpulab/gpulab/internal/report"
	"github.com/gpulab/gpulab/internal/storage"
	"github.com/gpulab/gpulab/internal/store"
	"github.com/gpulab/gpulab/internal/users"
)

// The people of a test lab, in the order of their numbers from 1. Whoever has a password has Password(handle). lea
// leads the group vision, in which zed is.
var people = []struct {
	handle, name string
	role         users.Role
	password     bool
}{
	{"ada", "Ada Lovelace", users.RoleAdmin, true},
	{"ben", "Ben Okafor", users.RoleMember, true},
	{"lea", "Lea Marie Schäfer", users.RoleLead, true},
	{"gus", "Gus", users.RoleGuest, true},
	{"zed", "Zed", users.RoleMember, false},
	{"ann", "Ann", users.RoleAdmin, true},
}

// Password is somebody's password.
func Password(handle string) string { return handle + " has a long password" }

// Group is the group that lea leads, Folder the folder that its members share. Dataset is everybody's.
const (
	Group   = "vision"
	Folder  = "vision-data"
	Dataset = "imagenet"
)

// template is a database with these people: hashing passwords takes a while.
var template = sync.OnceValues(makeTemplate)

func makeTemplate() ([]byte, error) {
	dir, err := os.MkdirTemp("", "gpulab-apitest-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	ctx := context.Background()
	st, err := store.Open(ctx, dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = st.Close() }()
	service := users.New(st.DB())
	if _, err := service.CreateGroup(ctx, Group, "Vision"); err != nil {
		return nil, err
	}
	for _, p := range people {
		u, err := service.Create(ctx, users.NewUser{Handle: p.handle, Name: p.name, Role: p.role})
		if err == nil && p.password {
			err = service.SetPassword(ctx, u.ID, Password(p.handle))
		}
		if err == nil && (p.handle == "lea" || p.handle == "zed") {
			err = service.SetMember(ctx, Group, u.ID, p.handle == "lea")
		}
		if err != nil {
			return nil, err
		}
	}
	if err := addFolders(ctx, st.DB()); err != nil {
		return nil, err
	}
	copied := filepath.Join(dir, "copy.db")
	if err := st.Backup(ctx, copied); err != nil {
		return nil, err
	}
	return os.ReadFile(copied)
}

// addFolders notes shared folders without making them on disk, which takes root.
func addFolders(ctx context.Context, db *sql.DB) error {
	now := time.Now().UnixMilli()
	for _, statement := range []struct {
		text string
		args []any
	}{
		{"INSERT INTO folders (name, kind, note, others, gid, created_by, created_at) VALUES (?, 'group', 'for the " +
			"seminar', 'none', 60000, 'ada', ?)", []any{Folder, now}},
		{"INSERT INTO folder_groups SELECT (SELECT max(id) FROM folders), id FROM groups WHERE name = ?", []any{Group}},
		{"INSERT INTO sizes (what, id, bytes, files, largest, at) SELECT 'folder', max(id), 3000000000, 17, '[]', ? " +
			"FROM folders",
			[]any{now}},
		{"INSERT INTO folders (name, kind, note, others, gid, created_by, created_at) VALUES (?, 'dataset', '', 'read', " +
			"60002, 'ada', ?)", []any{Dataset, now}},
	} {
		if _, err := db.ExecContext(ctx, statement.text, statement.args...); err != nil {
			return err
		}
	}
	return nil
}

// rootless is storage where folders cannot be made on disk.
type rootless struct{ *storage.Service }

// Create refuses.
func (rootless) Create(context.Context, storage.NewFolder) (storage.Folder, error) {
	return storage.Folder{}, &users.Error{
		Kind: storage.ErrPath, Text: "Folders that belong to several people are made by root alone.",
	}
}

// A Lab is what a test asks and changes.
type Lab struct {
	API          *api.Server
	Users        *users.Service
	DB           *sql.DB
	Quotas       *quota.Service
	Storage      *storage.Service
	Notebooks    *Notebooks
	Machines     *Machines
	Tailnet      *Tailnet
	Idle         *Idle
	Environments *Environments
	// Open are how many connections for files somebody has open.
	Open map[int64]int
	GPUs []gpu.Snapshot
	// Broken makes the state of the lab one that cannot be read.
	Broken bool
	lent   map[string]bool
	mu     sync.Mutex // guards Open
}

// New makes a lab that takes as many requests as a test sends.
func New(t testing.TB) *Lab {
	t.Helper()
	return NewWithLimits(t, api.Limits{PerSecond: 1e6, Burst: 1e6})
}

// NewWithLimits makes a lab with these limits of requests.
func NewWithLimits(t testing.TB, limits api.Limits) *Lab {
	t.Helper()
	database, err := template()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, store.MainFile), database, 0o600); err != nil {
		t.Fatal(err)
	}
	st, err := store.Open(context.Background(), dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	l := &Lab{
		Users: users.New(st.DB()), DB: st.DB(), Notebooks: &Notebooks{}, Machines: NewMachines(), Tailnet: NewTailnet(),
		Idle: &Idle{}, Environments: NewEnvironments(t), GPUs: []gpu.Snapshot{machine()}, Open: map[int64]int{},
		lent: map[string]bool{},
	}
	l.Quotas = quota.New(quota.Config{DB: st.DB(), People: l.Users, Held: l.held,
		Hours: func(context.Context, string, time.Time) ([]quota.HourUse, error) { return nil, nil }})
	l.Storage = storage.New(storage.Config{
		DB: st.DB(), People: l.Users, Audit: l.Users.AuditLog(), HomesDir: filepath.Join(dir, "homes"),
		FoldersDir: filepath.Join(dir, "folders"),
		DataDir:    dir,
	})
	var files api.Storage = l.Storage
	if os.Geteuid() != 0 {
		files = rootless{l.Storage}
	}
	l.API, err = api.New(api.Config{
		Report: report.New(report.Config{DB: st.DB(), Usage: history.New(history.Config{Store: st}).Usage,
			Groups: l.Users.Groups, Members: l.Users.Members}).Make,
		Users: l.Users, Audit: l.Users.AuditLog(), Notebooks: l.Notebooks, History: history.New(history.Config{Store: st}),
		Quotas:    l.Quotas,
		Storage:   files,
		Snapshots: func() []gpu.Snapshot { return l.GPUs }, Status: l.status,
		MayLaunch: func(ctx context.Context, u users.User, p notebooks.Profile) error {
			return l.Quotas.Check(ctx, u, quota.Ask{GPUs: p.GPUs, CPUs: p.CPUs, Memory: 4 << 30}, 0)
		},
		Machines: l.Machines,
		Tailnet:  l.Tailnet,
		Mail: mail.New(mail.ServiceConfig{DB: st.DB(), People: l.Users, Lab: "Test lab", URL: func() string {
			return "https://lab.example"
		}}),
		Idle:         l.Idle,
		Environments: l.Environments,
		CheckGPU:     func(context.Context) (string, error) { return "an NVIDIA A100", nil },
		LendGPU:      func(_ context.Context, uuid string, anyway bool) error { l.lent[uuid] = anyway; return nil },
		Files: &api.FileDoor{
			Port: 2022, HostKey: "ssh-ed25519 AAAA", Fingerprint: "SHA256:abc", Open: l.connections, Close: l.closeConnections,
		},
		Providers: []api.Provider{
			{Name: "university", Title: "Example University"}, {Name: "directory", Title: "Department account", Directory: true},
		},
		LabName: "Vision lab", HubPort: 8443, Limits: limits,
		NotebooksAt: func(_ context.Context, host string, user int64) (string, error) {
			return net.JoinHostPort(strings.Trim(host, "[]"), strconv.Itoa(21000+int(user))), nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func (l *Lab) connections(userID int64) []api.FileConnection {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := make([]api.FileConnection, l.Open[userID])
	for i := range list {
		list[i] = api.FileConnection{Since: time.Now(), Remote: "192.0.2.7", Client: "OpenSSH_9.9", Way: "the password"}
	}
	return list
}

func (l *Lab) closeConnections(userID int64) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.Open[userID]
	l.Open[userID] = 0
	return n
}

func (l *Lab) held(_ context.Context, userID, without int64) ([]quota.Ask, error) {
	var list []quota.Ask
	for _, n := range l.Notebooks.filter(func(n notebooks.Launch) bool {
		return n.Active() && n.UserID == userID && n.ID != without
	}) {
		list = append(list, quota.Ask{GPUs: n.GPUs, CPUs: 2, Memory: 4 << 30})
	}
	return list, nil
}

func (l *Lab) status(context.Context) (ctl.Status, error) {
	if l.Broken {
		return ctl.Status{}, errors.New("the state cannot be read")
	}
	return ctl.Status{Ready: true, URL: "https://lab.example", Version: "0.1.0", Nodes: []ctl.Node{}, GPUs: l.GPUs,
		Components: []ctl.Component{{Name: "k3s", State: ctl.OK}}, Network: ctl.Network{Allow: []ctl.Allowed{}}}, nil
}

// Token makes an access token.
func (l *Lab) Token(t testing.TB, handle string, scope users.TokenScope) string {
	t.Helper()
	secret, err := l.NewToken(handle, scope)
	if err != nil {
		t.Fatal(err)
	}
	return secret
}

// NewToken makes an access token.
func (l *Lab) NewToken(handle string, scope users.TokenScope) (string, error) {
	u, err := l.Users.ByHandle(context.Background(), handle)
	if err != nil {
		return "", err
	}
	secret, _, err := l.Users.CreateToken(context.Background(), u.ID, users.NewToken{Name: "test", Scope: scope, Days: 7})
	return secret, err
}

// GPU is the UUID of the first GPU.
const GPU = "GPU-5f0c1a7e-0000-4000-8000-000000000000"

// machine is a machine with two simulated GPUs, of which nobody holds one.
func machine() gpu.Snapshot {
	memory, use, power := uint64(40<<30), 12.5, 60.0
	s := gpu.Snapshot{
		Node: "gpu-box", Time: time.Now().UTC(), DriverVersion: "570.86.10", CUDAVersion: "12.8", Simulated: true,
	}
	for i := range 2 {
		g := gpu.GPU{Device: gpu.Device{UUID: GPU[:len(GPU)-1] + string(rune('0'+i)), Index: i, Name: "NVIDIA A100-SXM4-40GB",
			MemoryTotal: &memory, Simulated: true}}
		g.Utilization, g.Power = &use, &power
		s.GPUs = append(s.GPUs, g)
	}
	return s
}
