package backup

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestMain lets this program be the child that is killed.
func TestMain(m *testing.M) {
	if role := os.Getenv("GPULAB_TEST_CHILD"); role != "" {
		if err := child(role, os.Args[1:]); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// child does what the test kills. It says "now" when it begins with what matters.
func child(role string, args []string) error {
	l := &testLab{dir: args[0], data: filepath.Join(args[0], "data"), config: filepath.Join(args[0], "etc", "config.yaml")}
	switch role {
	case "backup":
		target, err := NewTarget(args[1], true)
		if err != nil {
			return err
		}
		fmt.Println("now")
		if _, _, err := Create(context.Background(), l.source(1), target, quiet); err != nil {
			return err
		}
		return target.Commit(true)
	case "restore":
		archive, err := os.ReadFile(args[1])
		if err != nil {
			return err
		}
		stage, err := NewStage(context.Background(), l.data)
		if err != nil {
			return err
		}
		if len(args) > 2 {
			fmt.Println("now")
		}
		if _, _, err := stage.Unpack(context.Background(), bytes.NewReader(archive), accept, func(string, int64) {}); err != nil {
			return err
		}
		if len(args) == 2 {
			fmt.Println("now")
		}
		p := l.placing()
		for id := range int64(manyHomes) {
			p.Homes[id+1] = true
		}
		_, err = stage.Place(context.Background(), p)
		return err
	}
	return fmt.Errorf("no such role %q", role)
}

// killed starts a child and kills it the given time after it said "now"; 0 lets it end. It returns how long the child
// took, or would have.
func killed(t *testing.T, after time.Duration, role string, args ...string) (took time.Duration) {
	t.Helper()
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), "GPULAB_TEST_CHILD="+role)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	line := make([]byte, 4)
	if _, err := io.ReadFull(out, line); err != nil || string(line) != "now\n" {
		rest, _ := io.ReadAll(out)
		t.Fatalf("the child said %q, %v", string(line)+string(rest), err)
	}
	began := time.Now()
	if after > 0 {
		time.Sleep(after)
		_ = cmd.Process.Kill()
	}
	rest, _ := io.ReadAll(out)
	if err := cmd.Wait(); err != nil && after == 0 {
		t.Fatalf("%v: %s", err, rest)
	}
	return time.Since(began)
}

const (
	manyHomes = 40
	moments   = 12
)

// A backup that is killed at any moment leaves the file that was there before, or the new one, and nothing else.
func TestBackupKilled(t *testing.T) {
	l := newLab(t, "saved")
	write(t, filepath.Join(l.data, "homes", "1", "large"), strings.Repeat("0123456789", 1<<20), 0o600)
	dir := t.TempDir()
	path := filepath.Join(dir, "lab.tar.zst")
	took := killed(t, 0, "backup", l.dir, path)
	before := map[bool]int{}
	for i := range moments {
		write(t, path, "the old one", 0o600)
		killed(t, took*time.Duration(i+1)/moments, "backup", l.dir, path)
		data, err := os.ReadFile(path)
		must(t, err)
		old := string(data) == "the old one"
		before[old]++
		if !old {
			if _, _, err := Verify(t.Context(), bytes.NewReader(data)); err != nil {
				t.Errorf("killed at %d of %d: %v", i+1, moments, err)
			}
		}
		if left, _ := os.ReadDir(dir); len(left) != 1 && !linked(left) {
			t.Errorf("killed at %d of %d: left %v", i+1, moments, left)
		}
	}
	t.Logf("%s; the old one after %d, the new one after %d", took, before[true], before[false])
	l.save(t)
	if exists(filepath.Join(l.data, workFolder)) {
		t.Error("the next backup leaves copies")
	}
}

// linked tells the one moment in which the new file has a name of its own already: complete, just before it takes the
// place of the old one.
func linked(left []os.DirEntry) bool {
	return len(left) == 2 && strings.HasPrefix(left[0].Name(), ".gpulab-backup-")
}

// A restore that is killed at any moment leaves the old lab whole, or a journal with which the restored one becomes
// so; run again, the restored one is there.
func TestRestoreKilled(t *testing.T) {
	archive := filepath.Join(t.TempDir(), "lab.tar.zst")
	from := newLab(t, "saved")
	var ids []int64
	for id := range int64(manyHomes) {
		ids = append(ids, id+1)
		write(t, filepath.Join(from.data, "homes", strconv.FormatInt(id+1, 10), "mark"), "saved", 0o600)
	}
	var out bytes.Buffer
	_, _, err := Create(t.Context(), from.source(ids...), &out, quiet)
	must(t, err)
	must(t, os.WriteFile(archive, out.Bytes(), 0o600))
	before := newLab(t, "before")
	for _, id := range ids {
		write(t, filepath.Join(before.data, "homes", strconv.FormatInt(id, 10), "mark"), "before", 0o600)
	}
	begin := func() *testLab {
		dir := t.TempDir()
		must(t, os.CopyFS(dir, os.DirFS(before.dir)))
		return &testLab{dir: dir, data: filepath.Join(dir, "data"), config: filepath.Join(dir, "etc", "config.yaml")}
	}
	for _, tc := range []struct {
		name string
		args []string
	}{{"while it is put in place", nil}, {"while it is unpacked", []string{"early"}}} {
		t.Run(tc.name, func(t *testing.T) {
			l := begin()
			took := killed(t, 0, "restore", append([]string{l.dir, archive}, tc.args...)...)
			checkHomes(t, l, "saved")
			outcome := map[string]int{}
			for i := range moments {
				l := begin()
				killed(t, took*time.Duration(i+1)/moments, "restore", append([]string{l.dir, archive}, tc.args...)...)
				outcome[afterwards(t, l, archive)]++
			}
			t.Logf("%s; %v", took, outcome)
		})
	}
}

// afterwards looks at a lab whose restore was killed, and says how it was.
func afterwards(t *testing.T, l *testLab, archive string) string {
	t.Helper()
	journal := l.config + ".restore"
	if exists(journal) {
		if _, was, err := Finish(t.Context(), journal); err != nil || !was {
			t.Errorf("finish: %v, %v", was, err)
		}
		l.all(t, "saved")
		checkHomes(t, l, "saved")
		if exists(filepath.Join(l.data, stageFolder)) || exists(filepath.Join(l.data, "k3s")) {
			t.Error("something is left")
		}
		return "finished from the journal"
	}
	if l.marks(t)["database"] == "saved" {
		l.all(t, "saved")
		checkHomes(t, l, "saved")
		return "restored"
	}
	l.all(t, "before")
	checkHomes(t, l, "before")
	if !exists(filepath.Join(l.data, "k3s")) || !exists(filepath.Join(l.data, "hub")) {
		t.Error("the old lab lost its cluster")
	}
	killed(t, 0, "restore", l.dir, archive)
	l.all(t, "saved")
	checkHomes(t, l, "saved")
	if exists(filepath.Join(l.data, stageFolder)) {
		t.Error("something is left")
	}
	return "as before"
}

func checkHomes(t *testing.T, l *testLab, want string) {
	t.Helper()
	for id := range manyHomes {
		data, err := os.ReadFile(filepath.Join(l.data, "homes", strconv.Itoa(id+1), "mark"))
		if err != nil || string(data) != want {
			t.Errorf("home %d: %q, %v; want %q", id+1, data, err, want)
		}
	}
}

// Finish without a journal does nothing; a damaged one says what to do.
func TestFinish(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.yaml.restore")
	if _, was, err := Finish(t.Context(), path); was || err != nil {
		t.Errorf("%v, %v", was, err)
	}
	write(t, path, "{", 0o600)
	if _, _, err := Finish(t.Context(), path); err == nil || !strings.Contains(err.Error(), "gpulab restore") {
		t.Errorf("%v", err)
	}
}
