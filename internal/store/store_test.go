package store

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
)

func open(t *testing.T, dir string) *Store {
	t.Helper()
	s, err := Open(t.Context(), dir)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func TestOpenSetsPragmasOnEveryConnection(t *testing.T) {
	s := open(t, t.TempDir())
	for _, tc := range []struct {
		db     *sql.DB
		pragma string
		want   string
	}{
		{s.DB(), "journal_mode", "wal"},
		{s.DB(), "synchronous", "2"},
		{s.DB(), "foreign_keys", "1"},
		{s.DB(), "busy_timeout", "10000"},
		{s.Metrics(), "journal_mode", "wal"},
		{s.Metrics(), "synchronous", "1"},
		{s.Metrics(), "foreign_keys", "1"},
	} {
		checkPragma(t, tc.db, tc.pragma, tc.want)
	}
}

// checkPragma looks at two connections at once: a pragma set by a statement would only reach the first.
func checkPragma(t *testing.T, db *sql.DB, pragma, want string) {
	t.Helper()
	for range 2 {
		conn, err := db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		var got string
		if err := conn.QueryRowContext(t.Context(), "PRAGMA "+pragma).Scan(&got); err != nil {
			t.Fatal(err)
		}
		if got != want {
			t.Errorf("%s = %q, want %q", pragma, got, want)
		}
	}
}

func TestFilesArePrivate(t *testing.T) {
	old := syscall.Umask(0)
	defer syscall.Umask(old)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, MetricsFile), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	s := open(t, dir)
	if err := s.Backup(t.Context(), filepath.Join(dir, "copy.db")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{MainFile, MainFile + "-wal", MainFile + "-shm", MetricsFile, "copy.db"} {
		fi, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Errorf("%v", err)
			continue
		}
		if fi.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v, want 0600", name, fi.Mode().Perm())
		}
	}
}

func TestOpenHandlesPathsWithSpecialCharacters(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a b?c#d%20e")
	open(t, dir)
	if _, err := os.Stat(filepath.Join(dir, MainFile)); err != nil {
		t.Fatal(err)
	}
}

func TestOpenTwiceConverges(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	addUser(t, s.DB(), "ada", 20000)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	var n int
	if err := open(t, dir).DB().QueryRow("SELECT count(*) FROM users").Scan(&n); err != nil || n != 1 {
		t.Fatalf("users after reopening: %d, %v", n, err)
	}
}

func TestConcurrentOpen(t *testing.T) {
	dir := t.TempDir()
	var wg sync.WaitGroup
	errs := make([]error, 4)
	for i := range errs {
		wg.Go(func() {
			s, err := Open(t.Context(), dir)
			if err == nil {
				err = s.Close()
			}
			errs[i] = err
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func TestNewerDatabaseIsRefusedAndUntouched(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	if _, err := s.DB().Exec("INSERT INTO goose_db_version (version_id, is_applied) VALUES (999, 1)"); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	_, err := Open(t.Context(), dir)
	if !errors.Is(err, ErrNewerDatabase) {
		t.Fatalf("got %v, want ErrNewerDatabase", err)
	}
	for _, want := range []string{MainFile, "schema 999", "backup"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not mention %q", err, want)
		}
	}
}

func TestDamagedDatabaseNamesTheNextStep(t *testing.T) {
	dir := t.TempDir()
	junk := []byte(strings.Repeat("this is not a database\n", 500))
	if err := os.WriteFile(filepath.Join(dir, MainFile), junk, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Open(t.Context(), dir)
	if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "backup") {
		t.Fatalf("got %v, want ErrDamaged with a next step", err)
	}
	if got, err := os.ReadFile(filepath.Join(dir, MainFile)); err != nil || string(got) != string(junk) {
		t.Error("the damaged file was changed")
	}
}

// A damaged metrics.db is set aside, as often as it happens; one copy is kept. One that is only newer is not damaged.
func TestDamagedMetricsIsSetAside(t *testing.T) {
	dir := t.TempDir()
	path, aside := filepath.Join(dir, MetricsFile), filepath.Join(dir, DamagedMetricsFile)
	if s := open(t, dir); s.MetricsSetAside() != "" {
		t.Error("a new database was set aside")
	} else if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for _, junk := range []string{"first", "second"} {
		junk = strings.Repeat(junk+" is not a database\n", 500)
		if err := os.WriteFile(path, []byte(junk), 0o600); err != nil {
			t.Fatal(err)
		}
		s := open(t, dir)
		if s.MetricsSetAside() != aside {
			t.Errorf("set aside as %q", s.MetricsSetAside())
		}
		if kept, err := os.ReadFile(aside); err != nil || string(kept) != junk {
			t.Errorf("kept %.20q, %v", kept, err)
		}
		if _, err := s.Metrics().Exec("INSERT INTO meta VALUES ('k', 'v')"); err != nil {
			t.Error(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	s := open(t, dir)
	old := s.Metrics()
	if err := s.ReplaceMetrics(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := old.Ping(); err == nil {
		t.Error("the old handle is open")
	}
	var n int
	if err := s.Metrics().QueryRow("SELECT count(*) FROM meta").Scan(&n); err != nil || n != 0 {
		t.Errorf("%d rows in the new one, %v", n, err)
	}
	if _, err := s.Metrics().Exec("INSERT INTO goose_db_version (version_id, is_applied) VALUES (999, 1)"); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), dir); !errors.Is(err, ErrNewerDatabase) {
		t.Errorf("a newer one: %v", err)
	}
}

func TestBackup(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	addUser(t, s.DB(), "ada", 20000)
	path := filepath.Join(dir, "backup", MainFile)
	if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := s.Backup(t.Context(), path); err != nil {
		t.Fatal(err)
	}
	if err := s.Backup(t.Context(), path); err == nil {
		t.Error("a second backup overwrote the first one")
	}
	left, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(left) != 1 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	var handle string
	if err := open(t, filepath.Dir(path)).DB().QueryRow("SELECT handle FROM users").Scan(&handle); err != nil || handle != "ada" {
		t.Fatalf("the backup holds %q, %v", handle, err)
	}
}

func TestSchemaRules(t *testing.T) {
	const launch = `INSERT INTO launches (user_id, handle, name, profile, state, requested_at, gpu_uuids) VALUES `
	for _, tc := range []struct {
		name, sql string
		ok        bool
	}{
		{"two users", `INSERT INTO users (handle, role, uid, created_at) VALUES ('eve', 'guest', 20001, 0)`, true},
		{"same uid", `INSERT INTO users (handle, role, uid, created_at) VALUES ('eve', 'guest', 20000, 0)`, false},
		{"uid of the host", `INSERT INTO users (handle, role, uid, created_at) VALUES ('eve', 'guest', 1000, 0)`, false},
		{"unknown role", `INSERT INTO users (handle, role, uid, created_at) VALUES ('eve', 'king', 20001, 0)`, false},
		{"handle changes", `UPDATE users SET handle = 'eve'`, false},
		{"uid changes", `UPDATE users SET uid = 20009`, false},
		{"name changes", `UPDATE users SET name = 'Ada L.'`, true},
		{"user deleted", `DELETE FROM users`, false},
		{"audit changed", `UPDATE audit SET action = 'nothing'`, false},
		{"audit deleted", `DELETE FROM audit`, false},
		{"launch of nobody", launch + `(99, 'x', 'n', 'cpu', 'waiting', 0, '[]')`, false},
		{"launch in an unknown state", launch + `(1, 'ada', 'n', 'cpu', 'lost', 0, '[]')`, false},
		{"launch with broken json", launch + `(1, 'ada', 'n', 'cpu', 'waiting', 0, '[')`, false},
		{"same name twice active", launch + `(1, 'ada', 'n', 'cpu', 'waiting', 0, '[]'), (1, 'ada', 'n', 'cpu', 'running', 0, '[]')`, false},
		{"same name after the end", launch + `(1, 'ada', 'n', 'cpu', 'ended', 0, '[]'), (1, 'ada', 'n', 'cpu', 'running', 0, '[]')`, true},
		{"password link of nobody", `INSERT INTO links (token_hash, purpose, created_at, expires_at) VALUES (x'00', 'password', 0, 1)`, false},
		{"admin link", `INSERT INTO links (token_hash, purpose, created_at, expires_at) VALUES (x'00', 'admin-setup', 0, 1)`, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := open(t, t.TempDir())
			addUser(t, s.DB(), "ada", 20000)
			if _, err := s.DB().Exec(`INSERT INTO audit (id, at, actor, action, hash) VALUES (1, 0, 'ada', 'sign-in', zeroblob(32))`); err != nil {
				t.Fatal(err)
			}
			if _, err := s.DB().Exec(tc.sql); (err == nil) != tc.ok {
				t.Errorf("error = %v, want success %v", err, tc.ok)
			}
		})
	}
}

// A transaction that reads first and writes later must not be refused because of another writer.
func TestReadThenWriteTransactionsQueue(t *testing.T) {
	s := open(t, t.TempDir())
	if _, err := s.DB().Exec("INSERT INTO settings VALUES ('n', '0')"); err != nil {
		t.Fatal(err)
	}
	const workers, rounds = 8, 10
	var wg sync.WaitGroup
	errs := make(chan error, workers*rounds)
	for range workers {
		wg.Go(func() {
			for range rounds {
				errs <- increment(t.Context(), s.DB())
			}
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
	var n string
	if err := s.DB().QueryRow("SELECT value FROM settings WHERE key = 'n'").Scan(&n); err != nil || n != strconv.Itoa(workers*rounds) {
		t.Fatalf("n = %s, %v", n, err)
	}
}

func increment(ctx context.Context, db *sql.DB) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	var n int
	if err := tx.QueryRowContext(ctx, "SELECT value FROM settings WHERE key = 'n'").Scan(&n); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, "UPDATE settings SET value = ? WHERE key = 'n'", strconv.Itoa(n+1)); err != nil {
		return err
	}
	return tx.Commit()
}

// A child process writes pairs of rows and says which pairs are committed; it is killed in full
// flight. Every pair it announced must be there, and no half pair.
func TestKilledWriterLosesNothingCommitted(t *testing.T) {
	if dir := os.Getenv("GPULAB_STORE_CRASH_DIR"); dir != "" {
		writeUntilKilled(dir)
		return
	}
	dir := t.TempDir()
	for round := range 3 {
		cmd := exec.Command(os.Args[0], "-test.run=^TestKilledWriterLosesNothingCommitted$")
		cmd.Env = append(os.Environ(), "GPULAB_STORE_CRASH_DIR="+dir)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		announced := 0
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if id, ok := strings.CutPrefix(lines.Text(), "committed "); ok {
				if announced, err = strconv.Atoi(id); err != nil {
					t.Fatal(err)
				}
				if announced >= (round+1)*20 {
					break
				}
			}
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		checkPairs(t, dir, announced)
	}
}

func writeUntilKilled(dir string) {
	s, err := Open(context.Background(), dir)
	if err != nil {
		fmt.Println("open:", err)
		os.Exit(1)
	}
	var n int
	if err := s.DB().QueryRow("SELECT count(*) FROM audit").Scan(&n); err != nil {
		fmt.Println("count:", err)
		os.Exit(1)
	}
	for i := n/2 + 1; ; i++ {
		tx, err := s.DB().Begin()
		if err != nil {
			fmt.Println("begin:", err)
			os.Exit(1)
		}
		for range 2 {
			if _, err := tx.Exec("INSERT INTO audit (id, at, actor, action, target, hash) SELECT coalesce(max(id), 0) + 1, 0, 'system', 'test', ?, zeroblob(32) FROM audit", strconv.Itoa(i)); err != nil {
				fmt.Println("insert:", err)
				os.Exit(1)
			}
		}
		if err := tx.Commit(); err != nil {
			fmt.Println("commit:", err)
			os.Exit(1)
		}
		fmt.Println("committed", i)
	}
}

func checkPairs(t *testing.T, dir string, announced int) {
	t.Helper()
	if announced == 0 {
		t.Fatal("the child wrote nothing")
	}
	s, err := Open(t.Context(), dir)
	if err != nil {
		t.Fatalf("open after the kill: %v", err)
	}
	defer func() { _ = s.Close() }()
	var health string
	if err := s.DB().QueryRow("PRAGMA integrity_check").Scan(&health); err != nil || health != "ok" {
		t.Fatalf("integrity_check: %s, %v", health, err)
	}
	var rows, pairs int
	if err := s.DB().QueryRow("SELECT count(*), count(DISTINCT target) FROM audit").Scan(&rows, &pairs); err != nil {
		t.Fatal(err)
	}
	if rows != 2*pairs || pairs < announced {
		t.Fatalf("%d rows in %d pairs, %d pairs announced", rows, pairs, announced)
	}
}

func addUser(t *testing.T, db *sql.DB, handle string, uid int) {
	t.Helper()
	if _, err := db.Exec(`INSERT INTO users (handle, role, uid, created_at) VALUES (?, 'member', ?, 0)`, handle, uid); err != nil {
		t.Fatal(err)
	}
}
