package main

import (
	"bytes"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/diskspace"
	"github.com/gpulab/gpulab/internal/store"
	"github.com/gpulab/gpulab/internal/users"
)

func TestDiskComponent(t *testing.T) {
	const gib = 1 << 30
	for _, c := range []struct {
		level        diskspace.Level
		silent       bool
		state        ctl.State
		detail, next string
	}{
		{level: diskspace.Fine, state: ctl.OK, detail: "50 % full: 50 GiB of 100 GiB are free"},
		{level: diskspace.Notice, state: ctl.Warning, next: "from 95 % on"},
		{level: diskspace.Refusing, state: ctl.Warning, next: "no notebook starts"},
		{level: diskspace.Full, state: ctl.Warning, next: "make room now"},
		{level: diskspace.ReadOnly, state: ctl.Failed, detail: "can only be read", next: "dmesg"},
		{silent: true, state: ctl.Warning, detail: "does not answer"},
	} {
		got := diskComponent([]diskspace.Filesystem{
			{Path: "/a", Holds: []string{"databases"}, Free: 90 * gib, Used: 10 * gib},
			{Path: "/b", Holds: []string{"homes"}, Free: 50 * gib, Used: 50 * gib, Level: c.level, Silent: c.silent},
		})
		if got.State != c.state || !strings.Contains(got.Detail, c.detail) || !strings.Contains(got.NextStep, c.next) || (got.NextStep == "") != (c.state == ctl.OK) {
			t.Errorf("%s, silent %t: %+v", c.level, c.silent, got)
		}
		if !strings.Contains(got.Detail, "The disk with databases is 10 % full") {
			t.Errorf("the other disk is not told of: %s", got.Detail)
		}
	}
}

func TestPrintDisk(t *testing.T) {
	var out bytes.Buffer
	err := printDisk(&out, ctl.Disk{
		Filesystems: []diskspace.Filesystem{{Holds: []string{"databases", "homes"}, Free: 1 << 30, Used: 31 << 30, Level: diskspace.Refusing}},
		Parts:       []diskspace.Part{{Name: "homes", Bytes: 20 << 30, Path: "/lab/homes"}, {Name: "images", Bytes: 3 << 30}, {Name: "nothing"}},
		Homes:       []ctl.HomeOnDisk{{Handle: "ada", Bytes: 19 << 30}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"databases, homes", "32 GiB", "97 %", "refusing", "homes", "20 GiB", "/lab/homes", "LARGEST HOMES", "ada", "19 GiB"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "nothing") {
		t.Errorf("it lists what takes nothing:\n%s", out.String())
	}
}

// On a disk that is full to the last byte people sign in all the same, after a restart too.
func TestSignInOnFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to mount a small file system")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=400m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	watch := func() *diskspace.Watch {
		return diskspace.New(diskspace.Config{Places: []diskspace.Place{{Name: "databases", Path: dir}}})
	}
	watch() // holds room back
	const password = "seven green bottles hanging"
	databases, people := openPeople(t, dir)
	u, err := people.Create(t.Context(), users.NewUser{Handle: "ada", Role: users.RoleMember})
	if err != nil {
		t.Fatal(err)
	}
	if err := people.SetPassword(t.Context(), u.ID, password); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(filepath.Join(dir, "ballast"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	signIn := func() error {
		who, err := people.Authenticate(t.Context(), "ada", password, "192.0.2.1")
		if err != nil {
			return err
		}
		_, err = people.StartSession(t.Context(), who.ID, users.SessionMeta{})
		return err
	}
	if w := watch(); w.Worst().Level != diskspace.Full {
		t.Errorf("%+v", w.Worst())
	}
	for range 20 {
		if err := signIn(); err != nil {
			t.Fatalf("on a full disk: %v", err)
		}
	}
	if err := databases.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write(make([]byte, 1<<20)); err == nil {
		t.Log("closing gave room back")
	}
	for err = nil; err == nil; _, err = f.Write(make([]byte, 4096)) {
	}
	watch()
	databases, people = openPeople(t, dir)
	if err := signIn(); err != nil {
		t.Errorf("after a restart on a full disk: %v", err)
	}
	for _, pragma := range []string{"integrity_check", "foreign_key_check"} {
		var verdict string
		switch err := databases.DB().QueryRow("PRAGMA " + pragma).Scan(&verdict); {
		case pragma == "foreign_key_check" && errors.Is(err, sql.ErrNoRows):
		case err != nil || verdict != "ok":
			t.Errorf("%s: %q, %v", pragma, verdict, err)
		}
	}
}

func openPeople(t *testing.T, dir string) (*store.Store, *users.Service) {
	t.Helper()
	databases, err := store.Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = databases.Close() })
	return databases, users.New(databases.DB())
}
