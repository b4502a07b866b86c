package storage

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/store"
	"github.com/gpulab/gpulab/internal/users"
)

// testLab is a lab with people, on real folders: ada is an admin, lea leads the group vision with ben and cleo
// and the guest gus in it, and dan is in no group.
type testLab struct {
	*Service
	people *users.Service
	store  *store.Store
	of     map[string]users.User

	mu    sync.Mutex
	ended map[int64]string // launches, and why
	why   map[int64]Cause
	limit map[string]int64 // of homes, in bytes
	files map[string]int64 // how many may be in homes
}

// notice is what somebody is told of their home now.
func (l *testLab) notice(t *testing.T, u users.User) (string, error) {
	t.Helper()
	state, err := l.HomeState(t.Context(), u)
	if err != nil {
		return "", err
	}
	return l.HomeNotice(t.Context(), u.ID, state)
}

func newTestLab(t *testing.T) *testLab {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: folders that belong to several people need root")
	}
	st, err := store.Open(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	l := &testLab{people: users.New(st.DB()), store: st, of: map[string]users.User{}, ended: map[int64]string{}, why: map[int64]Cause{}, limit: map[string]int64{}, files: map[string]int64{}}
	for _, p := range []users.NewUser{{Handle: "ada", Role: users.RoleAdmin}, {Handle: "lea", Role: users.RoleLead}, {Handle: "ben"},
		{Handle: "cleo"}, {Handle: "gus", Role: users.RoleGuest}, {Handle: "dan"}} {
		u, err := l.people.Create(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		l.of[u.Handle] = u
	}
	if _, err := l.people.CreateGroup(t.Context(), "vision", ""); err != nil {
		t.Fatal(err)
	}
	for _, handle := range []string{"lea", "ben", "cleo", "gus"} {
		if err := l.people.SetMember(t.Context(), "vision", l.of[handle].ID, handle == "lea"); err != nil {
			t.Fatal(err)
		}
	}
	base := open(t)
	l.Service = New(Config{DB: st.DB(), People: l.people, Audit: l.people.AuditLog(),
		HomesDir: filepath.Join(base, "homes"), FoldersDir: filepath.Join(base, "folders"), DataDir: base,
		HomeLimit: func(_ context.Context, u users.User) (*HomeLimit, error) {
			if n, ok := l.limit[u.Handle]; ok {
				return &HomeLimit{Bytes: n, Why: "for everybody"}, nil
			}
			return nil, nil
		},
		HomeFiles: func(_ context.Context, u users.User) (*FileLimit, error) {
			if n, ok := l.files[u.Handle]; ok {
				return &FileLimit{Files: n, Why: "for everybody"}, nil
			}
			return nil, nil
		},
		Active: func(ctx context.Context) ([]Running, error) {
			rows, err := st.DB().QueryContext(ctx, "SELECT id, user_id, state = 'waiting' FROM launches WHERE state <> 'ended'")
			if err != nil {
				return nil, err
			}
			defer rows.Close()
			var list []Running
			for rows.Next() {
				var r Running
				if err := rows.Scan(&r.Launch, &r.UserID, &r.Waiting); err != nil {
					return nil, err
				}
				list = append(list, r)
			}
			return list, rows.Err()
		},
		End: func(_ context.Context, launch int64, why Cause, reason string) error {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.ended[launch], l.why[launch] = reason, why
			return nil
		},
		Grace: time.Hour})
	return l
}

// open is a folder through which other people get, unlike a test's usual one.
func open(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "gpulab-storage-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	return dir
}

func (l *testLab) create(t *testing.T, n NewFolder) Folder {
	t.Helper()
	if n.By == "" {
		n.By = "root"
	}
	f, err := l.Create(t.Context(), n)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// place is where somebody sees a folder.
func (l *testLab) place(t *testing.T, handle, name string) (Place, bool) {
	t.Helper()
	places, err := l.PlacesOf(t.Context(), l.of[handle].ID)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range places {
		if p.Name == name {
			return p, true
		}
	}
	return Place{}, false
}

// launch notes a launch of somebody's, and what it opens.
func (l *testLab) launch(t *testing.T, handle string) (int64, Opened) {
	t.Helper()
	u := l.of[handle]
	res, err := l.store.DB().ExecContext(t.Context(), `INSERT INTO launches (user_id, handle, name, profile, state, requested_at)
		VALUES (?, ?, 'n' || (SELECT count(*) FROM launches), 'cpu', 'running', 0)`, u.ID, u.Handle)
	if err != nil {
		t.Fatal(err)
	}
	id, err := res.LastInsertId()
	if err != nil {
		t.Fatal(err)
	}
	opened, err := l.Open(t.Context(), id, u)
	if err != nil {
		t.Fatal(err)
	}
	return id, opened
}

// person runs a shell as somebody, with the group that a place gives them, and returns what it printed.
func (l *testLab) person(t *testing.T, handle string, gid int, script string) (string, error) {
	t.Helper()
	u := l.of[handle]
	credential := &syscall.Credential{Uid: uint32(u.UID), Gid: uint32(u.UID)}
	if gid != 0 {
		credential.Groups = []uint32{uint32(gid)}
	}
	cmd := exec.Command("/bin/sh", "-ec", "umask 077; "+script)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: credential}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return strings.TrimSpace(out.String()), err
}

// can runs a script that has to work, cannot one that must not.
func (l *testLab) can(t *testing.T, handle string, gid int, script string) string {
	t.Helper()
	out, err := l.person(t, handle, gid, script)
	if err != nil {
		t.Errorf("%s cannot: %s: %v\n%s", handle, script, err, out)
	}
	return out
}

func (l *testLab) cannot(t *testing.T, handle string, gid int, script string) {
	t.Helper()
	if out, err := l.person(t, handle, gid, script); err == nil {
		t.Errorf("%s can: %s\n%s", handle, script, out)
	}
}
