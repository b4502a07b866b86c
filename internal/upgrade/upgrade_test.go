package upgrade

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/store"
	"github.com/gpulab/gpulab/internal/version"
)

// newSchema is what only version 2 of these tests knows.
const newSchema = 999

func as(t *testing.T, v string) {
	t.Helper()
	was := version.Version
	version.Version = v
	t.Cleanup(func() { version.Version = was })
}

// versions are what versions 1 and 2 can work with.
func versions() (one, two Version) {
	main, metrics := store.Known()
	return Version{"1", main, metrics, "1.35"}, Version{"2", newSchema, metrics + 1, "1.35"}
}

// world is a machine that went from version 1 to 2, and where a person came since.
type world struct {
	t       *testing.T
	dir     string
	program string // on the disk
}

func newWorld(t *testing.T) world {
	t.Helper()
	w := world{t, t.TempDir(), filepath.Join(t.TempDir(), "gpulab")}
	one, two := versions()
	images := filepath.Join(t.TempDir(), "images")
	w.write(filepath.Join(images, "images.json"), "{}")
	w.write(filepath.Join(images, "blobs/sha256/abc"), "layer")
	as(t, "1")
	w.database(`INSERT INTO users (handle, role, uid, created_at) VALUES ('ada', 'member', 20000, 0)`)
	w.write(w.program, "the program of version 1")
	w.must(Keep(w.dir, one, w.program, images, ""))
	if _, err := store.Keep(t.Context(), w.dir); err != nil {
		t.Fatal(err)
	}
	w.database(
		fmt.Sprintf(`INSERT INTO goose_db_version (version_id, is_applied) VALUES (%d, 1)`, newSchema),
		`UPDATE settings SET value = '2' WHERE key = 'gpulab.version'`,
		`UPDATE settings SET value = '1' WHERE key = 'gpulab.before'`,
		`INSERT INTO users (handle, role, uid, created_at) VALUES ('ben', 'member', 20001, 0)`,
		`INSERT INTO launches (user_id, handle, name, profile, state, requested_at, gpu_uuids) VALUES (2, 'ben', 'n', 'cpu', 'running', 0, '[]')`)
	// As a package does it: the program that runs goes on being the old file.
	w.must(os.Remove(w.program))
	w.write(w.program, "the program of version 2")
	w.must(Keep(w.dir, two, w.program, images, "1"))
	w.history("2")
	as(t, "2")
	return w
}

func (w world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w world) write(path, content string) {
	w.t.Helper()
	w.must(os.MkdirAll(filepath.Dir(path), 0o700))
	w.must(os.WriteFile(path, []byte(content), 0o755))
}

func (w world) database(statements ...string) {
	w.t.Helper()
	s, err := store.Open(w.t.Context(), w.dir)
	w.must(err)
	for _, statement := range statements {
		_, err := s.DB().Exec(statement)
		w.must(err)
	}
	w.must(s.Close())
}

// history marks metrics.db as a version's own.
func (w world) history(v string) { w.write(filepath.Join(w.dir, store.MetricsFile), "history of "+v) }

func (w world) options() Options {
	_, two := versions()
	return Options{DataDir: w.dir, Own: two, Program: w.program}
}

// plan is the way from here, whose parts are whole.
func (w world) plan() Plan {
	w.t.Helper()
	p, err := MakePlan(w.t.Context(), w.options())
	w.must(err)
	w.must(p.Check(w.t.Context()))
	return p
}

// state says which version is in use, and who wrote the database, which is whole.
func (w world) state() string {
	w.t.Helper()
	u, err := Current(w.dir, "2")
	w.must(err)
	if u.Pending {
		w.t.Error("something is left to do")
	}
	path := filepath.Join(w.dir, store.MainFile)
	w.must(store.Whole(w.t.Context(), path))
	by, err := store.Inspect(w.t.Context(), path)
	w.must(err)
	return fmt.Sprintf("%s: database of %s, schema %d", u.Version, by.Version, by.Schema)
}

func TestKeptFilesAreNotCopied(t *testing.T) {
	w := newWorld(t)
	kept, err := Find(w.dir, "2")
	w.must(err)
	w.must(kept.Check())
	disk, err1 := os.Stat(w.program)
	own, err2 := os.Stat(kept.Program())
	w.must(errors.Join(err1, err2))
	if !os.SameFile(disk, own) {
		t.Error("the program was copied on the same file system")
	}
	one, err := Find(w.dir, "1")
	w.must(err)
	if data, err := os.ReadFile(one.Program()); err != nil || string(data) != "the program of version 1" {
		t.Errorf("the kept program of version 1 is %q, %v", data, err)
	}
	if data, err := os.ReadFile(filepath.Join(w.dir, folder, "1/images/blobs/sha256/abc")); err != nil || string(data) != "layer" {
		t.Errorf("the kept image is %q, %v", data, err)
	}
	// Two stay.
	three := Version{Version: "3/../x"}
	w.must(Keep(w.dir, three, w.program, filepath.Join(w.dir, folder, "2/images"), "2"))
	list, err := os.ReadDir(filepath.Join(w.dir, folder))
	w.must(err)
	if len(list) != 2 || list[0].Name() != "2" || list[1].Name() != "3%2F..%2Fx" {
		t.Errorf("kept: %v", list)
	}
}

// Images of a kept version whose content lies on another file system are containerd's to keep.
func TestBorrowed(t *testing.T) {
	w := newWorld(t)
	dir := filepath.Join(w.dir, folder, "1", imagesName)
	w.must(os.WriteFile(filepath.Join(dir, "images.json"), []byte(`{"images":[{"name":"hub","ref":"gpulab.local/hub:1"},{"name":"notebook","ref":"gpulab.local/notebook:1"}]}`), 0o600))
	if refs, err := Borrowed(w.dir); err != nil || len(refs) != 0 {
		t.Errorf("whose content is kept: %v, %v", refs, err)
	}
	w.must(os.RemoveAll(filepath.Join(dir, "blobs")))
	w.must(os.Symlink("/usr/share/gpulab/images/blobs", filepath.Join(dir, "blobs")))
	if refs, err := Borrowed(w.dir); err != nil || !slices.Equal(refs, []string{"gpulab.local/hub:1", "gpulab.local/notebook:1"}) {
		t.Errorf("whose content is elsewhere: %v, %v", refs, err)
	}
	w.must(os.RemoveAll(filepath.Dir(dir)))
	if refs, err := Borrowed(w.dir); err != nil || len(refs) != 0 {
		t.Errorf("of a version that is not kept any more: %v, %v", refs, err)
	}
}

func TestRollbackAndForthAgain(t *testing.T) {
	w := newWorld(t)
	p := w.plan()
	if p.From != "2" || p.To != "1" || p.Forth || p.Copy == nil || p.Lost != (store.Loss{Accounts: 1, Launches: 1, Running: 1}) || !p.History || p.Minor {
		t.Errorf("the plan: %+v", p)
	}
	main, _ := store.Known()
	if got := w.state(); got != fmt.Sprintf("2: database of 2, schema %d", newSchema) {
		t.Errorf("a plan changed something: %s", got)
	}
	w.must(os.Remove(filepath.Join(w.dir, store.MetricsFile)))
	w.must(p.Apply(t.Context(), w.options()))
	if got := w.state(); got != fmt.Sprintf("1: database of 1, schema %d", main) {
		t.Errorf("after the rollback: %s", got)
	}
	p = w.plan()
	if p.From != "1" || p.To != "2" || !p.Forth || p.Copy == nil || p.Program != w.program {
		t.Errorf("the plan forth: %+v", p)
	}
	o := w.options()
	o.KeepDatabase = true
	if bring, err := MakePlan(t.Context(), o); err != nil || bring.Copy != nil || bring.To != "2" {
		t.Errorf("the plan forth with today's database: %+v, %v", bring, err)
	}
	w.must(p.Apply(t.Context(), w.options()))
	if got := w.state(); got != fmt.Sprintf("2: database of 2, schema %d", newSchema) {
		t.Errorf("forth again: %s", got)
	}
	// Another program on the disk is an upgrade from there.
	if u, err := Current(w.dir, "3"); err != nil || u.Version != "3" || u.RolledBack() {
		t.Errorf("as another version: %+v, %v", u, err)
	}
	w.must(Tidy(w.dir, "3"))
	if _, err := os.Stat(inUsePath(w.dir)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a rollback is not forgotten: %v", err)
	}
}

// Each version has a history of its own, where they cannot read the other's.
func TestHistoryGoesAlong(t *testing.T) {
	w := newWorld(t)
	back := InUse{Version: "1", From: "2", History: true, Pending: true}
	forth := InUse{Version: "2", From: "1", History: true, Pending: true}
	content := func() string {
		data, _ := os.ReadFile(filepath.Join(w.dir, store.MetricsFile))
		return string(data)
	}
	for range 2 { // also when it was interrupted before it could say that it is done
		w.must(back.Finish(w.dir))
		if content() != "" {
			t.Errorf("version 1 has the %s", content())
		}
	}
	w.history("1")
	w.must(forth.Finish(w.dir))
	if content() != "history of 2" {
		t.Errorf("version 2 has the %s", content())
	}
	if data, err := os.ReadFile(filepath.Join(w.dir, folder, "1", store.MetricsFile)); err != nil || string(data) != "history of 1" {
		t.Errorf("put aside: the %s, %v", data, err)
	}
}

func TestRefusedPlans(t *testing.T) {
	t.Run("a first version", func(t *testing.T) {
		one, _ := versions()
		_, err := MakePlan(t.Context(), Options{DataDir: t.TempDir(), Own: one})
		if !errors.Is(err, ErrNothingBefore) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("no program", func(t *testing.T) {
		w := newWorld(t)
		w.must(os.RemoveAll(filepath.Join(w.dir, folder, "1")))
		if _, err := MakePlan(t.Context(), w.options()); !errors.Is(err, ErrNothingBefore) || !strings.Contains(err.Error(), "its program is not kept") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("no database", func(t *testing.T) {
		w := newWorld(t)
		w.must(os.RemoveAll(filepath.Join(w.dir, "copies")))
		if _, err := MakePlan(t.Context(), w.options()); !errors.Is(err, ErrNoCopy) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("a program that was overwritten", func(t *testing.T) {
		w := newWorld(t)
		p := w.plan()
		w.must(os.WriteFile(p.Program, []byte("the program of version X"), 0o755))
		if err := p.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "is not what was kept") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("a damaged copy", func(t *testing.T) {
		w := newWorld(t)
		p := w.plan()
		f, err := os.OpenFile(p.Copy.Path, os.O_WRONLY, 0)
		w.must(err)
		_, err = f.WriteAt([]byte(strings.Repeat("x", 8192)), 4096)
		w.must(errors.Join(err, f.Close()))
		if err := p.Check(t.Context()); !errors.Is(err, store.ErrDamaged) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("another Kubernetes", func(t *testing.T) {
		w := newWorld(t)
		o := w.options()
		o.Own.Kubernetes = "1.36"
		if p, err := MakePlan(t.Context(), o); err != nil || !p.Minor {
			t.Errorf("%+v, %v", p, err)
		}
	})
}

// Where both versions can use the database, it stays, and nothing is lost.
func TestDatabaseStaysWithinASchema(t *testing.T) {
	w := newWorld(t)
	k, err := Find(w.dir, "1")
	w.must(err)
	k.Schema = newSchema
	w.must(writeJSON(filepath.Join(w.dir, folder, "1", aboutName), k))
	if p := w.plan(); p.Copy != nil || p.To != "1" || p.Lost != (store.Loss{}) {
		t.Errorf("the plan: %+v", p)
	}
}

// A rollback, and the way forth, are killed at twenty moments each. There is then one of the two versions, whole, once
// the next start has looked; and the same command leads on from there.
func TestApplyKilled(t *testing.T) {
	if dir := os.Getenv("GPULAB_UPGRADE_DIR"); dir != "" {
		version.Version = "2"
		_, two := versions()
		o := Options{DataDir: dir, Own: two, Program: os.Getenv("GPULAB_UPGRADE_PROGRAM")}
		p, err := MakePlan(context.Background(), o)
		if err == nil {
			err = p.Apply(context.Background(), o)
		}
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	main, _ := store.Known()
	one, two := fmt.Sprintf("1: database of 1, schema %d", main), fmt.Sprintf("2: database of 2, schema %d", newSchema)
	w := newWorld(t)
	w.must(os.Remove(filepath.Join(w.dir, store.MetricsFile)))
	start := func() *exec.Cmd {
		cmd := exec.Command(os.Args[0], "-test.run=^TestApplyKilled$")
		cmd.Env = append(os.Environ(), "GPULAB_UPGRADE_DIR="+w.dir, "GPULAB_UPGRADE_PROGRAM="+w.program)
		w.must(cmd.Start())
		return cmd
	}
	began := time.Now()
	w.must(start().Wait())
	took := time.Since(began)
	if got := w.state(); got != one {
		t.Fatalf("without a kill: %s", got)
	}
	was, stayed, went := one, 0, 0
	const moments = 40
	for i := range moments {
		child := start()
		time.Sleep(2 * took * time.Duration(i/2) / (moments / 2))
		_ = child.Process.Kill()
		_ = child.Wait()
		u, err := Current(w.dir, "2")
		w.must(err)
		w.must(u.Finish(w.dir))
		w.must(Tidy(w.dir, "2"))
		got := w.state()
		if got != one && got != two {
			t.Fatalf("moment %d: %s", i, got)
		}
		if got == was {
			stayed++
		} else {
			went++
		}
		was = got
		left, _ := filepath.Glob(filepath.Join(w.dir, "gpulab.db.*"))
		for _, path := range left {
			t.Errorf("moment %d left behind: %s", i, path)
		}
	}
	t.Logf("in %s: killed while it was the version before %d times, as the other one %d times", took.Round(time.Millisecond), stayed, went)
	w.must(start().Wait())
	if got := w.state(); got == was {
		t.Errorf("the same command leads nowhere: %s", got)
	}
}

// The copy that a rollback puts back is the oldest that is kept, and would go for
// the one that is kept now.
func TestRollbackToTheOldestCopy(t *testing.T) {
	w := newWorld(t)
	w.must(os.Remove(filepath.Join(w.dir, store.MetricsFile)))
	db, err := sql.Open("sqlite", filepath.Join(w.dir, store.MainFile))
	w.must(err)
	for _, failed := range []string{"2a", "2b"} { // they never became ready
		_, err := store.Keep(t.Context(), w.dir)
		w.must(err)
		_, err = db.Exec(`UPDATE settings SET value = ? WHERE key = 'gpulab.version'`, failed)
		w.must(err)
	}
	w.must(db.Close())
	p := w.plan()
	if p.To != "1" || p.Copy == nil {
		t.Fatalf("the plan: %+v", p)
	}
	w.must(p.Apply(t.Context(), w.options()))
	main, _ := store.Known()
	if got := w.state(); got != fmt.Sprintf("1: database of 1, schema %d", main) {
		t.Errorf("after the rollback: %s", got)
	}
}
