package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/audit"
	"github.com/gpulab/gpulab/internal/backup"
	"github.com/gpulab/gpulab/internal/config"
	"github.com/gpulab/gpulab/internal/mail"
	"github.com/gpulab/gpulab/internal/signin"
	"github.com/gpulab/gpulab/internal/storage"
	"github.com/gpulab/gpulab/internal/store"
	"github.com/gpulab/gpulab/internal/users"
	"github.com/gpulab/gpulab/internal/webca"
)

// resting is a lab that does not run.
type resting struct{ config, data, socket string }

// newResting makes the place for one, with a configuration that says where.
func newResting(t *testing.T, config string) resting {
	t.Helper()
	dir := t.TempDir()
	l := resting{filepath.Join(dir, "etc", "config.yaml"), filepath.Join(dir, "data"), filepath.Join(dir, "run", "gpulab.sock")}
	mustDo(t, os.MkdirAll(filepath.Dir(l.config), 0o755))
	mustDo(t, os.WriteFile(l.config, []byte(fmt.Sprintf("dataDir: %s\n%s", l.data, config)), 0o644))
	return l
}

func mustDo(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// run runs a command on it.
func (l resting) run(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	return gpulab(t, append(args, "--config", l.config, "--socket", l.socket)...)
}

// open opens its databases.
func (l resting) open(t *testing.T) *store.Store {
	t.Helper()
	s, err := store.Open(t.Context(), l.data)
	mustDo(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

const adaPassword = "a quiet green lamp"

// furnish makes a lab with ada, who is signed in and waits for a notebook, and a shared folder.
func (l resting) furnish(t *testing.T) {
	t.Helper()
	s := l.open(t)
	people := users.New(s.DB())
	ada, err := people.Create(t.Context(), users.NewUser{Handle: "ada", Name: "Ada", Role: users.RoleAdmin})
	mustDo(t, err)
	link, err := people.CreateLink(t.Context(), users.Link{Purpose: users.PurposePassword, UserID: &ada.ID}, time.Hour)
	mustDo(t, err)
	_, err = people.RedeemLink(t.Context(), link, "", "", adaPassword)
	mustDo(t, err)
	_, err = people.StartSession(t.Context(), ada.ID, users.SessionMeta{})
	mustDo(t, err)
	_, err = people.CreateLink(t.Context(), users.Link{Purpose: users.PurposePassword, UserID: &ada.ID}, time.Hour)
	mustDo(t, err)
	_, err = s.DB().Exec(`INSERT INTO launches (user_id, handle, name, profile, state, requested_at) VALUES (?, 'ada', 'cpu', 'cpu', 'waiting', ?)`, ada.ID, time.Now().UnixMilli())
	mustDo(t, err)
	shared := storage.New(storage.Config{DB: s.DB(), People: people, FoldersDir: filepath.Join(l.data, "folders"), DataDir: l.data})
	_, err = shared.Create(t.Context(), storage.NewFolder{Name: "imagenet", Kind: storage.Dataset, By: "root"})
	mustDo(t, err)
	home := filepath.Join(l.data, "homes", "1")
	mustDo(t, os.MkdirAll(home, 0o700))
	mustDo(t, os.WriteFile(filepath.Join(home, "thesis"), []byte("chapter one"), 0o600))
	mustDo(t, os.Chown(home, ada.UID, ada.UID))
	_, err = webca.Ensure(filepath.Join(l.data, "tls"), []string{"lab.example"})
	mustDo(t, err)
	_, err = loadMetricsToken(l.data)
	mustDo(t, err)
	mustDo(t, s.Close())
}

func TestBackupAndRestore(t *testing.T) {
	needRoot(t)
	from := newResting(t, "lab: Vision lab\naddress: 192.0.2.77\nfiles: {listen: \"192.0.2.77:2022\"}\n"+
		"signin: [{name: uni, type: oidc, issuer: https://id.example.org, clientID: x, clientSecretFile: SECRETS/uni.secret}]\n")
	secret := filepath.Join(filepath.Dir(from.config), "uni.secret")
	text, err := os.ReadFile(from.config)
	mustDo(t, err)
	mustDo(t, os.WriteFile(from.config, bytes.ReplaceAll(text, []byte("SECRETS"), []byte(filepath.Dir(from.config))), 0o644))
	mustDo(t, os.WriteFile(secret, []byte("hush"), 0o600))
	from.furnish(t)
	file := filepath.Join(t.TempDir(), "lab.tar.zst")
	code, out, errOut := from.run(t, "backup", "--homes", "--history", "--json", file)
	var made backupReport
	if err := json.Unmarshal([]byte(out), &made); code != 0 || err != nil || made.Manifest.People != 1 || made.Manifest.CA == "" || !made.Manifest.Homes || !made.Manifest.History {
		t.Fatalf("exit code %d, %v\n%s%s", code, err, out, errOut)
	}
	before := from.open(t)
	setting, err := before.Setting(t.Context(), backup.LastSetting)
	mustDo(t, err)
	if last, err := backup.ParseLast(setting); err != nil || last == nil || !last.Homes || last.Bytes != made.Size {
		t.Errorf("%q %v", setting, err)
	}
	checkAudited(t, before, "backup.create")

	to := newResting(t, "")
	code, out, errOut = to.run(t, "restore", file)
	if code != 0 {
		t.Fatalf("exit code %d\n%s%s", code, out, errOut)
	}
	for _, want := range []string{"Vision lab is restored", "The lab's address was 192.0.2.77", "Files came in at 192.0.2.77", "The lab's data lay in " + from.data, "signed out", "gpulab init"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in what it said:\n%s", want, out)
		}
	}
	to.checkRestored(t, made.Manifest.CA)
	if data, err := os.ReadFile(filepath.Join(filepath.Dir(to.config), "uni.secret")); err != nil || string(data) != "hush" {
		t.Errorf("the provider's secret: %q, %v", data, err)
	}
	if data, err := os.ReadFile(filepath.Join(to.data, "homes", "1", "thesis")); err != nil || string(data) != "chapter one" {
		t.Errorf("the home: %q, %v", data, err)
	}
}

// checkRestored looks at a lab that has come back.
func (l resting) checkRestored(t *testing.T, ca string) {
	t.Helper()
	cfg, err := loadConfig(l.config)
	if err != nil || cfg.Lab != "Vision lab" || cfg.DataDir != l.data || cfg.Address != "" || cfg.Files.Listen != ":2022" {
		t.Errorf("%+v, %v", cfg, err)
	}
	if fp, err := caFingerprint(cfg); err != nil || fp != ca {
		t.Errorf("the authority is %s, want %s, %v", fp, ca, err)
	}
	s := l.open(t)
	people := users.New(s.DB())
	if _, err := people.Authenticate(t.Context(), "ada", adaPassword, "192.0.2.1"); err != nil {
		t.Errorf("the old password: %v", err)
	}
	for table, want := range map[string]int{"sessions": 0, "links": 0, "launches WHERE state <> 'ended'": 0, "launches": 1} {
		var n int
		if err := s.DB().QueryRow("SELECT count(*) FROM " + table).Scan(&n); err != nil || n != want {
			t.Errorf("%s: %d, want %d, %v", table, n, want, err)
		}
	}
	checkAudited(t, s, "backup.restore")
	if info, err := os.Stat(filepath.Join(l.data, "folders", "1")); err != nil || info.Mode() != os.ModeDir|os.ModeSetgid|0o770 {
		t.Errorf("the shared folder: %v, %v", info, err)
	}
}

func checkAudited(t *testing.T, s *store.Store, action string) {
	t.Helper()
	people := users.New(s.DB())
	list, err := people.AuditLog().List(t.Context(), audit.Filter{Action: action})
	if err != nil || len(list) != 1 || list[0].Actor != "root" {
		t.Errorf("%s: %+v, %v", action, list, err)
	}
	if _, err := people.AuditLog().Verify(t.Context(), nil); err != nil {
		t.Errorf("the audit log's chain: %v", err)
	}
}

// Homes that are there stay, are set aside, or keep the restore from beginning: they are shown to nobody whose they
// are not.
// backedUp is a furnished lab, and a backup of it.
func backedUp(t *testing.T) (l resting, file string) {
	t.Helper()
	l = newResting(t, "lab: Vision lab\n")
	l.furnish(t)
	file = filepath.Join(t.TempDir(), "lab.tar.zst")
	if code, out, errOut := l.run(t, "backup", file); code != 0 {
		t.Fatalf("exit code %d\n%s%s", code, out, errOut)
	}
	return l, file
}

func TestRestoreAndHomesThatAreThere(t *testing.T) {
	needRoot(t)
	_, file := backedUp(t)
	with := func(uid int) resting {
		to := newResting(t, "")
		for _, id := range []string{"1", "5"} {
			home := filepath.Join(to.data, "homes", id)
			mustDo(t, os.MkdirAll(home, 0o700))
			mustDo(t, os.Chown(home, uid, uid))
		}
		return to
	}
	for _, tc := range []struct {
		name  string
		uid   int
		args  []string
		stays bool
		says  string
	}{
		{"not asked", users.FirstUID, nil, false, "--keep-homes"},
		{"kept", users.FirstUID, []string{"--keep-homes"}, true, "1 homes and shared folders stayed"},
		{"of another number", users.FirstUID + 1, []string{"--keep-homes"}, false, "is restored"},
		{"replaced", users.FirstUID, []string{"--replace"}, false, "before-restore-"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			to := with(tc.uid)
			code, out, errOut := to.run(t, append([]string{"restore", file}, tc.args...)...)
			if !strings.Contains(out+errOut, tc.says) || (code == 0) != (tc.args != nil) {
				t.Errorf("exit code %d\n%s%s", code, out, errOut)
			}
			if tc.args == nil {
				return
			}
			_, err := os.Stat(filepath.Join(to.data, "homes", "1"))
			if stays := err == nil; stays != tc.stays {
				t.Errorf("ada's home is there: %v", stays)
			}
			if _, err := os.Stat(filepath.Join(to.data, "homes", "5")); err == nil {
				t.Error("a home of nobody stays where the next one would get it")
			}
			if aside, _ := filepath.Glob(filepath.Join(to.data, "before-restore-*", "homes", "5")); len(aside) != 1 {
				t.Errorf("it is not set aside: %v", aside)
			}
		})
	}
}

// Who joined after the backup is gone with the restore, and nobody gets their
// number: files that bear it would be somebody else's.
func TestRestoreGivesNoNumberAgain(t *testing.T) {
	needRoot(t)
	l, file := backedUp(t)
	join := func(handle string) users.User {
		s := l.open(t)
		u, err := users.New(s.DB()).Create(t.Context(), users.NewUser{Handle: handle, Name: handle, Role: users.RoleMember})
		mustDo(t, errors.Join(err, s.Close()))
		return u
	}
	ben := join("ben")
	if code, out, errOut := l.run(t, "restore", "--replace", file); code != 0 {
		t.Fatalf("exit code %d\n%s%s", code, out, errOut)
	}
	if cem := join("cem"); cem.UID <= ben.UID || cem.ID <= ben.ID {
		t.Errorf("after ben with number %d, account %d, cem got number %d, account %d", ben.UID, ben.ID, cem.UID, cem.ID)
	}
}

// What cannot be done says so in one sentence, and changes nothing.
func TestBackupRefusals(t *testing.T) {
	needRoot(t)
	lab := newResting(t, "lab: Vision lab\n")
	lab.furnish(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "lab.tar.zst")
	if code, out, errOut := lab.run(t, "backup", "--homes", file); code != 0 {
		t.Fatalf("exit code %d\n%s%s", code, out, errOut)
	}
	newer := newerBackup(t, lab)
	junk := filepath.Join(dir, "junk")
	mustDo(t, os.WriteFile(junk, []byte("just a text of some length, which is no backup at all"), 0o600))
	empty := newResting(t, "")
	strange := newResting(t, "lba: x\n")
	for _, tc := range []struct {
		name string
		on   resting
		args []string
		code int
		says []string
	}{
		{"no lab", empty, []string{"backup", filepath.Join(dir, "x")}, exitNotRunning, []string{"there is no lab", "gpulab init"}},
		{"there already", lab, []string{"backup", file}, exitFailure, []string{"exists already", "--force"}},
		{"a folder", lab, []string{"backup", "--force", dir}, exitFailure, []string{"is no file"}},
		{"no such folder", lab, []string{"backup", filepath.Join(dir, "no", "x")}, exitFailure, []string{"no such file"}},
		{"into itself", lab, []string{"backup", filepath.Join(lab.data, "x")}, exitUsage, []string{"own data folder"}},
		{"verify and more", lab, []string{"backup", "--verify", "--homes", file}, exitFailure, []string{"verify"}},
		{"verify junk", lab, []string{"backup", "--verify", junk}, exitFailure, []string{"no backup of gpulab"}},
		{"restore junk", empty, []string{"restore", junk}, exitFailure, []string{"no backup of gpulab"}},
		{"restore a folder", empty, []string{"restore", dir}, exitFailure, []string{"a backup is one file"}},
		{"restore nothing", empty, []string{"restore", filepath.Join(dir, "none")}, exitFailure, []string{"no such file"}},
		{"people are there", lab, []string{"restore", file}, exitFailure, []string{"a lab with 1 person", "--replace"}},
		{"people are there, dry run", lab, []string{"restore", "--dry-run", file}, exitFailure, []string{"a lab with 1 person"}},
		{"newer", empty, []string{"restore", newer}, exitFailure, []string{"install gpulab 9.9.9"}},
		{"homes or not", empty, []string{"restore", "--keep-homes", file}, exitUsage, []string{"--keep-homes is for a backup without homes"}},
		{"a configuration with a mistake", strange, []string{"restore", file}, exitUsage, []string{"lba"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			code, out, errOut := tc.on.run(t, tc.args...)
			if code != tc.code || strings.Count(errOut, "\n") != 1 {
				t.Errorf("exit code %d, want %d\n%s%s", code, tc.code, out, errOut)
			}
			for _, want := range tc.says {
				if !strings.Contains(errOut, want) {
					t.Errorf("%q is not in %s", want, errOut)
				}
			}
		})
	}
	if left, _ := os.ReadDir(empty.data); len(left) != 0 {
		t.Errorf("what was refused left %v", left)
	}
	code, out, errOut := empty.run(t, "restore", "--dry-run", file)
	if code != 0 || !strings.Contains(out, "A whole backup of Vision lab") {
		t.Errorf("dry run: exit code %d\n%s%s", code, out, errOut)
	}
	if left, _ := os.ReadDir(empty.data); len(left) != 0 {
		t.Errorf("a dry run left %v", left)
	}
}

// newerBackup is one of a gpulab that is newer than this.
func newerBackup(t *testing.T, lab resting) string {
	t.Helper()
	s := lab.open(t)
	main, _ := store.Known()
	_, err := s.DB().Exec("INSERT INTO goose_db_version (version_id, is_applied) VALUES (?, 1)", main+1)
	mustDo(t, err)
	path := filepath.Join(t.TempDir(), "newer")
	f, err := os.Create(path)
	mustDo(t, err)
	defer f.Close()
	_, _, err = backup.Create(context.Background(), backup.Source{DataDir: lab.data, Config: lab.config,
		Manifest: backup.Manifest{Version: "9.9.9", Lab: "x", Host: "x", Made: time.Now()}}, f, backup.Watch{Note: func(string, string) {}, Step: func(string, int64) {}})
	mustDo(t, err)
	_, err = s.DB().Exec("DELETE FROM goose_db_version WHERE version_id = ?", main+1)
	mustDo(t, err)
	return path
}

// A restore that was interrupted while it was put in place is finished by the next command, and no backup is made of
// half of it.
func TestFinishRestore(t *testing.T) {
	needRoot(t)
	l := newResting(t, "lab: Old lab\n")
	l.furnish(t)
	a := &app{configPath: l.config}
	mustDo(t, os.WriteFile(l.config+".restored", []byte("lab: Restored lab\ndataDir: "+l.data+"\n"), 0o644))
	journal := map[string]any{"moves": []map[string]string{{"from": l.config + ".restored", "to": l.config}}}
	text, err := json.Marshal(journal)
	mustDo(t, err)
	mustDo(t, os.WriteFile(restoreJournal(a), text, 0o600))
	if code, _, errOut := l.run(t, "backup", filepath.Join(t.TempDir(), "x")); code != exitFailure || !strings.Contains(errOut, "a restore was interrupted") {
		t.Errorf("exit code %d, %s", code, errOut)
	}
	var out bytes.Buffer
	mustDo(t, finishRestore(t.Context(), a, &out))
	if cfg, err := loadConfig(l.config); err != nil || cfg.Lab != "Restored lab" || !strings.Contains(out.String(), "is finished") {
		t.Errorf("%q, %v, %q", cfg.Lab, err, out.String())
	}
	out.Reset()
	if err := finishRestore(t.Context(), a, &out); err != nil || out.Len() != 0 {
		t.Errorf("%v, %q", err, out.String())
	}
}

// Every file that the configuration names is asked for, whatever it is for.
func TestFilesNamed(t *testing.T) {
	cfg := config.Config{
		Mail:   mail.Config{PasswordFile: "/etc/gpulab/mail.secret", CAFile: "/etc/gpulab/mail.pem"},
		TLS:    config.TLS{Certificate: "/etc/gpulab/lab.pem", Key: "/etc/gpulab/lab.key"},
		SignIn: []signin.Config{{ClientSecretFile: "/etc/gpulab/oidc.secret"}, {BindPasswordFile: "/etc/gpulab/ldap.secret", CAFile: "/etc/gpulab/mail.pem"}},
	}
	want := []string{"/etc/gpulab/lab.key", "/etc/gpulab/lab.pem", "/etc/gpulab/ldap.secret", "/etc/gpulab/mail.pem", "/etc/gpulab/mail.secret", "/etc/gpulab/oidc.secret"}
	if got := cfg.FilesNamed(); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// A database that cannot be read is set aside like any other lab; homes say which
// numbers it had given.
func TestRestoreOverADamagedDatabase(t *testing.T) {
	needRoot(t)
	_, file := backedUp(t)
	for _, damaged := range []string{"", "no database at all"} {
		to := newResting(t, "")
		mustDo(t, os.MkdirAll(filepath.Join(to.data, "homes", "7"), 0o700))
		mustDo(t, os.Chown(filepath.Join(to.data, "homes", "7"), 20041, 20041))
		mustDo(t, os.WriteFile(filepath.Join(to.data, store.MainFile), []byte(damaged), 0o600))
		if code, out, errOut := to.run(t, "restore", "--replace", file); code != 0 {
			t.Fatalf("over %q: exit code %d\n%s%s", damaged, code, out, errOut)
		}
		s := to.open(t)
		u, err := users.New(s.DB()).Create(t.Context(), users.NewUser{Handle: "cem", Name: "Cem", Role: users.RoleMember})
		if err != nil || u.ID <= 7 || u.UID <= 20041 {
			t.Errorf("over %q, cem got number %d, account %d, %v", damaged, u.UID, u.ID, err)
		}
		if aside, _ := filepath.Glob(filepath.Join(to.data, "before-restore-*", store.MainFile)); len(aside) != 1 {
			t.Errorf("over %q, the old one is not set aside: %v", damaged, aside)
		}
	}
}

// A reset that keeps homes keeps all work of people, and deletes the rest.
func TestResetKeepsWork(t *testing.T) {
	data := t.TempDir()
	for _, folder := range []string{"homes/1", "folders/1", "k3s/server", "before-restore-20260101-000000/homes/1", "before-restore-20260101-000000/k3s", "before-restore-20260202-000000/tls"} {
		mustDo(t, os.MkdirAll(filepath.Join(data, folder), 0o700))
	}
	mustDo(t, os.WriteFile(filepath.Join(data, store.MainFile), nil, 0o600))
	mustDo(t, removeState(config.Config{DataDir: data}, kept{homes: true}))
	var left []string
	mustDo(t, filepath.WalkDir(data, func(path string, _ fs.DirEntry, err error) error {
		left = append(left, strings.TrimPrefix(path, data))
		return err
	}))
	if got, want := strings.Join(left, " "), " /before-restore-20260101-000000 /before-restore-20260101-000000/homes /before-restore-20260101-000000/homes/1 /folders /folders/1 /homes /homes/1"; got != want {
		t.Errorf("left: %s", got)
	}
}
