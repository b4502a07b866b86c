package store

import (
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/gpulab/gpulab/internal/version"
)

// as makes this test another version of gpulab.
func as(t *testing.T, v string) {
	t.Helper()
	was := version.Version
	version.Version = v
	t.Cleanup(func() { version.Version = was })
}

// olderSchema is what a gpulab knew that has some migrations less.
const olderSchema = 11

// older makes the gpulab.db of version 1, with some people and a long audit log.
func older(t *testing.T, dir string, entries int) {
	t.Helper()
	as(t, "1")
	list := fstest.MapFS{}
	names, err := fs.Glob(mainMigrations, "migrations/*.sql")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names[:olderSchema] {
		data, err := fs.ReadFile(mainMigrations, name)
		if err != nil {
			t.Fatal(err)
		}
		list[name] = &fstest.MapFile{Data: data}
	}
	db, err := openOne(t.Context(), filepath.Join(dir, MainFile), "FULL", list, "migrations")
	if err != nil {
		t.Fatal(err)
	}
	addUser(t, db, "ada", 20000)
	if _, err := db.Exec(`WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)
		INSERT INTO audit (id, at, actor, action, target, hash) SELECT i, 0, 'ada', 'sign-in', hex(randomblob(60)), zeroblob(32) FROM n`, entries); err != nil {
		t.Fatal(err)
	}
	if err := record(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestAnotherVersionKeepsACopyFirst(t *testing.T) {
	dir := t.TempDir()
	older(t, dir, 10)
	as(t, "2")
	s := open(t, dir)
	if before, err := s.Before(t.Context()); err != nil || before != "1" {
		t.Errorf("the version before is %q, %v", before, err)
	}
	copies, err := Copies(t.Context(), dir)
	if err != nil || len(copies) != 1 || copies[0].Version != "1" || copies[0].Schema != olderSchema {
		t.Fatalf("copies: %+v, %v", copies, err)
	}
	if info, err := os.Stat(copies[0].Path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the copy: %v, %v", info.Mode(), err)
	}
	known, _ := Known()
	if w, err := Inspect(t.Context(), filepath.Join(dir, MainFile)); err != nil || w != (Written{"2", "1", known}) {
		t.Errorf("the database now: %+v, %v", w, err)
	}
	// What the package's preinst reads, while gpulab runs.
	data, err := os.ReadFile(filepath.Join(dir, MainFile))
	if err != nil {
		t.Fatal(err)
	}
	if schema := binary.BigEndian.Uint32(data[60:]); int64(schema) != known {
		t.Errorf("the file says schema %d, want %d", schema, known)
	}
	addUser(t, s.DB(), "ben", 20001)
	if lost, err := Lost(t.Context(), dir, copies[0]); err != nil || lost != (Loss{Accounts: 1}) {
		t.Errorf("lost: %+v, %v", lost, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	// The same version needs no copy; of those that follow, three stay.
	for _, v := range []string{"2", "3", "4", "5", "6"} {
		as(t, v)
		if err := open(t, dir).Close(); err != nil {
			t.Fatal(err)
		}
	}
	copies, err = Copies(t.Context(), dir)
	if err != nil || len(copies) != 3 || copies[0].Version != "5" || copies[2].Version != "3" {
		t.Errorf("copies after six versions: %+v, %v", copies, err)
	}
}

// A migration that fails leaves the database as it was, and says where the copy is.
func TestFailedMigrationLeavesTheOldDatabase(t *testing.T) {
	dir := t.TempDir()
	older(t, dir, 10)
	db, err := connect(filepath.Join(dir, MainFile), "FULL")
	if err != nil {
		t.Fatal(err)
	}
	// In the way of a table that a migration makes.
	if _, err := db.Exec("CREATE TABLE ssh_keys (x)"); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	as(t, "2")
	_, err = Open(t.Context(), dir)
	if err == nil || !strings.Contains(err.Error(), "it is as it was, and a copy is in "+copyPath(dir, "1")) {
		t.Fatalf("got %v", err)
	}
	for _, path := range []string{filepath.Join(dir, MainFile), copyPath(dir, "1")} {
		if w, err := Inspect(t.Context(), path); err != nil || w != (Written{Version: "1", Schema: olderSchema}) {
			t.Errorf("%s: %+v, %v", path, w, err)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, MainFile+workEnd)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("left behind: %v", err)
	}
}

// A newer version's first start is killed at twenty moments. The database is then the old one or the new one, whole,
// and the next start goes on.
func TestOpenKilled(t *testing.T) {
	if dir := os.Getenv("GPULAB_STORE_OPEN_DIR"); dir != "" {
		version.Version = "2"
		if _, err := Open(context.Background(), dir); err != nil {
			fmt.Println("open:", err)
			os.Exit(1)
		}
		os.Exit(0) // as abruptly as a kill
	}
	const entries = 10000
	template := t.TempDir()
	older(t, template, entries)
	start := func(dir string) *exec.Cmd {
		cmd := exec.Command(os.Args[0], "-test.run=^TestOpenKilled$")
		cmd.Env = append(os.Environ(), "GPULAB_STORE_OPEN_DIR="+dir)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd
	}
	whole := t.TempDir()
	must(t, os.CopyFS(whole, os.DirFS(template)))
	began := time.Now()
	if err := start(whole).Wait(); err != nil {
		t.Fatal(err)
	}
	took := time.Since(began)

	as(t, "2")
	known, _ := Known()
	found := map[int64]int{}
	const moments = 20
	for i := range moments {
		dir := t.TempDir()
		must(t, os.CopyFS(dir, os.DirFS(template)))
		child := start(dir)
		time.Sleep(took * time.Duration(i) / moments)
		_ = child.Process.Kill()
		_ = child.Wait()
		if err := Whole(t.Context(), filepath.Join(dir, MainFile)); err != nil {
			t.Errorf("moment %d: %v", i, err)
		}
		w, err := Inspect(t.Context(), filepath.Join(dir, MainFile))
		if err != nil || w != (Written{"1", "", olderSchema}) && w != (Written{"2", "1", known}) {
			t.Errorf("moment %d: %+v, %v", i, w, err)
		}
		found[w.Schema]++
		s := open(t, dir)
		var n int
		if err := s.DB().QueryRow("SELECT count(*) FROM audit").Scan(&n); err != nil || n != entries {
			t.Errorf("moment %d: %d entries, %v", i, n, err)
		}
		copies, err := Copies(t.Context(), dir)
		if err != nil || len(copies) != 1 || copies[0].Written != (Written{"1", "", olderSchema}) || Whole(t.Context(), copies[0].Path) != nil {
			t.Errorf("moment %d: copies %+v, %v", i, copies, err)
		}
		left, _ := filepath.Glob(filepath.Join(dir, "copies/.part-*"))
		if w.Schema == olderSchema && len(left) > 0 {
			t.Errorf("moment %d: left behind: %v", i, left)
		}
	}
	t.Logf("in %s: killed before it was the new one %d times, after it %d times", took.Round(time.Millisecond), found[olderSchema], found[known])
	if found[olderSchema] == 0 {
		t.Error("no kill came early enough")
	}
}

// What a rollback takes away was given all the same: no number comes twice.
func TestStageGivesNoNumberTwice(t *testing.T) {
	dir := t.TempDir()
	older(t, dir, 10)
	as(t, "2")
	s := open(t, dir)
	for i := range 3 {
		addUser(t, s.DB(), fmt.Sprintf("new-%d", i), 20001+i)
	}
	if _, err := s.DB().Exec(`INSERT INTO folders (name, kind, gid, created_by, created_at) VALUES ('data', 'dataset', 60004, 'root', 0)`); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Keep(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	copies, err := Copies(t.Context(), dir)
	if err != nil || len(copies) != 2 {
		t.Fatalf("copies: %+v, %v", copies, err)
	}
	if err := Stage(t.Context(), dir, copies[1]); err != nil {
		t.Fatal(err)
	}
	for range 2 { // also when it is done already
		if err := PutBack(dir); err != nil {
			t.Fatal(err)
		}
	}
	if w, err := Inspect(t.Context(), filepath.Join(dir, MainFile)); err != nil || w != (Written{"1", "", olderSchema}) {
		t.Fatalf("put back: %+v, %v", w, err)
	}
	s = open(t, dir)
	var users int
	var seq, uid, gid int64
	err = s.DB().QueryRow(`SELECT (SELECT count(*) FROM users), (SELECT seq FROM sqlite_sequence WHERE name = 'users'),
		(SELECT value FROM settings WHERE key = 'last.uid'), (SELECT value FROM settings WHERE key = 'last.gid')`).Scan(&users, &seq, &uid, &gid)
	if err != nil || users != 1 || seq != 4 || uid != 20003 || gid != 60004 {
		t.Errorf("%d people, the last number of one %d, the last UID %d, the last GID %d, %v", users, seq, uid, gid, err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestInspectAfterAPowerCut: a change that was broken off is taken back, and what was before it is read.
func TestInspectAfterAPowerCut(t *testing.T) {
	dir := t.TempDir()
	older(t, dir, 2000)
	path := filepath.Join(dir, MainFile)
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=journal_mode(delete)&_pragma=cache_spill(1)&_pragma=cache_size(2)")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	db.SetMaxOpenConns(1)
	tx, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	// More than the cache holds, so that part of it is in the file already.
	for _, change := range []string{"UPDATE settings SET value = 'broken off' WHERE key = '" + versionKey + "'", "CREATE TABLE filler AS SELECT hex(randomblob(1000)) AS x FROM audit"} {
		if _, err := tx.Exec(change); err != nil {
			t.Fatal(err)
		}
	}
	cut := t.TempDir()
	for _, name := range []string{MainFile, MainFile + "-journal"} {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(cut, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if w, err := Inspect(t.Context(), filepath.Join(cut, MainFile)); err != nil || w.Version != "1" {
		t.Errorf("after a power cut: %+v, %v", w, err)
	}
	if err := Whole(t.Context(), filepath.Join(cut, MainFile)); err != nil {
		t.Error(err)
	}
}

// What is copied for another version is never readable by others, not even while it grows.
func TestStageIsPrivate(t *testing.T) {
	dir := t.TempDir()
	older(t, dir, 10)
	as(t, "2")
	s := open(t, dir)
	_, err := s.DB().Exec(`INSERT INTO settings (key, value) VALUES ('large', hex(zeroblob(20000000)))`)
	must(t, errors.Join(err, s.Close()))
	_, err = Keep(t.Context(), dir)
	must(t, err)
	copies, err := Copies(t.Context(), dir)
	must(t, err)
	ended, seen, wrong := make(chan struct{}), 0, os.FileMode(0)
	var watch sync.WaitGroup
	watch.Go(func() {
		for {
			if info, err := os.Stat(filepath.Join(dir, MainFile+nextEnd)); err == nil {
				seen++
				wrong |= info.Mode().Perm() & 0o077
			}
			select {
			case <-ended:
				return
			default:
			}
		}
	})
	err = Stage(t.Context(), dir, copies[0])
	close(ended)
	watch.Wait()
	if err != nil || seen == 0 || wrong != 0 {
		t.Errorf("seen %d times, with %o for others, %v", seen, wrong, err)
	}
}
