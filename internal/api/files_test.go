package api_test

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/gpulab/gpulab/internal/api/apitest"
	"github.com/gpulab/gpulab/internal/audit"
	"github.com/gpulab/gpulab/internal/users"
)

// recorded lists who did what, the oldest first.
func recorded(t testing.TB, l *apitest.Lab) string {
	t.Helper()
	var list []string
	entries, err := l.Users.AuditLog().List(t.Context(), audit.Filter{Limit: 500})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		list = append([]string{e.Actor + " " + e.Action + " " + e.Target + " " + e.Detail}, list...)
	}
	return strings.Join(list, "\n")
}

// TestSSHKeys: one's own keys, and nobody else's.
func TestSSHKeys(t *testing.T) {
	l := apitest.New(t)
	ben, gus := l.Token(t, "ben", users.ScopeFull), l.Token(t, "gus", users.ScopeFull)
	made := read[struct{ ID int64 }](t, ask(t, l, ben, "POST", "/me/ssh-keys", `{"key": "`+sshKey+`"}`).want(t, http.StatusCreated, `"name":"somebody@laptop"`, `"type":"ssh-ed25519"`, "SHA256:"))
	ask(t, l, ben, "POST", "/me/ssh-keys", `{"key": "`+sshKey+`", "name": "again"}`).want(t, http.StatusConflict, "already")
	private := ask(t, l, ben, "POST", "/me/ssh-keys", `{"key": "-----BEGIN OPENSSH PRIVATE KEY-----secret"}`).want(t, http.StatusUnprocessableEntity, "private key")
	if strings.Contains(private.body, "secret") {
		t.Errorf("a private key comes back: %s", private.body)
	}
	ask(t, l, ben, "GET", "/me/ssh-keys", "").want(t, http.StatusOK, "somebody@laptop")
	if got := ask(t, l, gus, "GET", "/me/ssh-keys", "").want(t, http.StatusOK); strings.Contains(got.body, "laptop") {
		t.Errorf("gus sees ben's: %s", got.body)
	}
	path := "/me/ssh-keys/" + strconv.FormatInt(made.ID, 10)
	ask(t, l, gus, "DELETE", path, "").want(t, http.StatusNotFound)
	ask(t, l, l.Token(t, "ben", users.ScopeFiles), "DELETE", path, "").want(t, http.StatusForbidden)
	ask(t, l, ben, "DELETE", path, "").want(t, http.StatusNoContent)
	ask(t, l, ben, "DELETE", path, "").want(t, http.StatusNotFound)
	if log := recorded(t, l); !strings.Contains(log, "ben ssh-key.add ben key 1, SHA256:") || !strings.Contains(log, "ben ssh-key.remove ben key 1, SHA256:") {
		t.Error(log)
	}
}

func TestFileConnections(t *testing.T) {
	l := apitest.New(t)
	ben := l.Token(t, "ben", users.ScopeFull)
	who, err := l.Users.ByHandle(t.Context(), "ben")
	if err != nil {
		t.Fatal(err)
	}
	l.Open[who.ID], l.Open[who.ID+1] = 2, 1
	got := read[struct{ Connections []struct{ Remote string } }](t, ask(t, l, ben, "GET", "/files/connections", "").want(t, http.StatusOK, "OpenSSH_9.9"))
	if len(got.Connections) != 2 {
		t.Errorf("%+v", got)
	}
	ask(t, l, ben, "DELETE", "/files/connections", "").want(t, http.StatusOK, `"closed":2`)
	ask(t, l, ben, "DELETE", "/files/connections", "").want(t, http.StatusOK, `"closed":0`)
	if log := recorded(t, l); l.Open[who.ID+1] != 1 || strings.Count(log, "ben files.close ben 2 connections") != 1 {
		t.Error(log)
	}
}

// TestFolders: who sees, makes, changes and deletes shared folders, and what of them is told to whom.
func TestFolders(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: folders that belong to several people need root")
	}
	l := apitest.New(t)
	ada, lea, ben, zed := l.Token(t, "ada", users.ScopeFull), l.Token(t, "lea", users.ScopeFull), l.Token(t, "ben", users.ScopeFull), l.Token(t, "zed", users.ScopeFull)
	for token, sees := range map[string]bool{ada: true, lea: true, zed: true, ben: false} {
		got := ask(t, l, token, "GET", "/folders", "").want(t, http.StatusOK, apitest.Dataset)
		if strings.Contains(got.body, apitest.Folder) != sees {
			t.Errorf("sees the folder: %v, want %v", !sees, sees)
		}
	}
	ask(t, l, zed, "GET", "/folders/"+apitest.Folder, "").want(t, http.StatusOK, `"yours":"write"`, `"manage":false`, `"bytes":3000000000`)
	ask(t, l, ada, "GET", "/folders/"+apitest.Folder, "").want(t, http.StatusOK, `"yours":"none"`, `"manage":true`)
	there := ask(t, l, ben, "GET", "/folders/"+apitest.Folder, "").want(t, http.StatusForbidden)
	if nothing := ask(t, l, ben, "GET", "/folders/none", ""); nothing.body != there.body || nothing.status != there.status {
		t.Errorf("ben is told whether a folder exists: %s, %s", there.body, nothing.body)
	}
	ask(t, l, ada, "GET", "/folders/none", "").want(t, http.StatusNotFound)

	ask(t, l, lea, "POST", "/folders", `{"name": "exercises", "kind": "hand-in", "groups": ["vision"]}`).want(t, http.StatusCreated, `"createdBy":"lea"`)
	ask(t, l, zed, "GET", "/folders/exercises", "").want(t, http.StatusOK, `"yours":"write"`)
	ask(t, l, lea, "POST", "/folders", `{"name": "mine", "kind": "dataset"}`).want(t, http.StatusForbidden)
	ask(t, l, lea, "POST", "/folders", `{"name": "mine", "kind": "group", "groups": ["others"]}`).want(t, http.StatusForbidden)
	ask(t, l, ada, "POST", "/folders", `{"name": "exercises", "kind": "dataset"}`).want(t, http.StatusConflict, "already")
	ask(t, l, ada, "POST", "/folders", `{"name": "archive", "kind": "host", "path": "/etc"}`).want(t, http.StatusUnprocessableEntity, "not shown")
	ask(t, l, ada, "POST", "/folders", `{"name": "x-1", "kind": "group", "groups": ["others"]}`).want(t, http.StatusUnprocessableEntity, "no group")
	ask(t, l, ada, "POST", "/folders", `{"name": "x-1", "kind": "group"}`).want(t, http.StatusUnprocessableEntity, "one group")

	ask(t, l, lea, "PATCH", "/folders/"+apitest.Folder, `{"guests": "none", "others": "read"}`).want(t, http.StatusOK, `"guests":"none"`, `"others":"read"`, "for the seminar")
	ask(t, l, ben, "GET", "/folders/"+apitest.Folder, "").want(t, http.StatusOK, `"yours":"read"`)
	ask(t, l, lea, "PATCH", "/folders/"+apitest.Dataset, `{"others": "none"}`).want(t, http.StatusForbidden)
	ask(t, l, ada, "PATCH", "/folders/"+apitest.Dataset, `{"others": "none"}`).want(t, http.StatusUnprocessableEntity, "Nobody would see it")
	ask(t, l, ada, "PATCH", "/folders/"+apitest.Dataset, `{"others": "none", "groups": ["vision"]}`).want(t, http.StatusOK, `"groups":["vision"]`)
	ask(t, l, ben, "GET", "/folders/"+apitest.Dataset, "").want(t, http.StatusForbidden)
	ask(t, l, ada, "PATCH", "/folders/"+apitest.Dataset, `{"others": "read", "groups": []}`).want(t, http.StatusOK, `"groups":[]`)

	ask(t, l, zed, "DELETE", "/folders/"+apitest.Folder, "").want(t, http.StatusForbidden)
	ask(t, l, lea, "DELETE", "/folders/"+apitest.Folder, "").want(t, http.StatusOK, `"purge"`, `"yours":"none"`)
	ask(t, l, lea, "DELETE", "/folders/"+apitest.Folder, "").want(t, http.StatusConflict)
	ask(t, l, zed, "GET", "/folders/"+apitest.Folder, "").want(t, http.StatusForbidden)
	ask(t, l, lea, "POST", "/folders/"+apitest.Folder+"/undelete", "").want(t, http.StatusOK)
	ask(t, l, lea, "POST", "/folders/"+apitest.Folder+"/undelete", "").want(t, http.StatusConflict)
	ask(t, l, zed, "GET", "/folders/"+apitest.Folder, "").want(t, http.StatusOK)
	log := recorded(t, l)
	for _, entry := range []string{"lea folder.add exercises hand-in: ", "lea folder.change vision-data group folder: ", "lea folder.delete vision-data", "lea folder.undelete vision-data"} {
		if strings.Count(log, entry) != 1 {
			t.Errorf("recorded %d times: %s", strings.Count(log, entry), entry)
		}
	}
}

// TestHome: what takes the room in one's own home, to be deleted there and nowhere else.
func TestHome(t *testing.T) {
	l := apitest.New(t)
	ben, lea := l.Token(t, "ben", users.ScopeFull), l.Token(t, "lea", users.ScopeFull)
	who, err := l.Users.ByHandle(t.Context(), "ben")
	if err != nil {
		t.Fatal(err)
	}
	home := l.Storage.Home(who.ID)
	odd := "raw \xff name"
	for _, name := range []string{"checkpoints/a", odd, "../beside"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(home, name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(home, name), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ask(t, l, ben, "GET", "/me/home", "").want(t, http.StatusOK, `"largest":[]`, `"over":false`)
	if _, err := l.DB.ExecContext(t.Context(), `INSERT INTO sizes (what, id, bytes, files, largest, at) VALUES ('home', ?, 49000000000, 17, '[{"path": "cmF3IP8gbmFtZQ==", "bytes": 31000000000}]', 1)`, who.ID); err != nil {
		t.Fatal(err)
	}
	type large struct{ Path, Encoded string }
	got := read[struct{ Largest []large }](t, ask(t, l, ben, "GET", "/me/home", "").want(t, http.StatusOK, `"bytes":49000000000`))
	if len(got.Largest) != 1 || got.Largest[0] != (large{"raw � name", "raw+%FF+name"}) {
		t.Fatalf("%+v", got)
	}
	ask(t, l, ben, "DELETE", "/me/home/files?path="+got.Largest[0].Encoded, "").want(t, http.StatusNoContent)
	ask(t, l, ben, "DELETE", "/me/home/files?path=checkpoints", "").want(t, http.StatusNoContent)
	ask(t, l, ben, "DELETE", "/me/home/files?path=checkpoints", "").want(t, http.StatusConflict, "not in your home")
	for _, path := range []string{"../beside", ".", "/", "shared/vision-data", "a/../../beside", "\x00"} {
		ask(t, l, ben, "DELETE", "/me/home/files?path="+url.QueryEscape(path), "").want(t, http.StatusConflict)
	}
	ask(t, l, ben, "DELETE", "/me/home/files", "").want(t, http.StatusUnprocessableEntity)
	left, err := os.ReadDir(home)
	if err != nil || len(left) != 0 {
		t.Errorf("left in the home: %v, %v", left, err)
	}
	if _, err := os.Stat(filepath.Join(filepath.Dir(home), "beside")); err != nil {
		t.Errorf("what lies beside it: %v", err)
	}
	ask(t, l, l.Token(t, "ada", users.ScopeRead), "GET", "/users/ben/home", "").want(t, http.StatusOK, `"bytes":49000000000`)
	ask(t, l, lea, "GET", "/users/ben/home", "").want(t, http.StatusForbidden)
	if log := recorded(t, l); strings.Count(log, "ben home.clear ben") != 2 {
		t.Error(log)
	}
}

// TestIdentities: outside accounts are listed and unlinked, one's own with the password only and never the last way in.
func TestIdentities(t *testing.T) {
	l := apitest.New(t)
	ada, ben, zed := l.Token(t, "ada", users.ScopeFull), l.Token(t, "ben", users.ScopeFull), l.Token(t, "zed", users.ScopeFull)
	for _, handle := range []string{"ben", "zed"} {
		who, err := l.Users.ByHandle(t.Context(), handle)
		if err == nil {
			err = l.Users.LinkOutside(t.Context(), who.ID, users.Outside{Provider: "university", Title: "Example University", Realm: "https://id.example.org", Subject: handle, Username: handle + "-there"})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	type mine struct {
		Identities []struct{ ID int64 }
		Linkable   []struct{ Name, Page string }
	}
	own := read[mine](t, ask(t, l, ben, "GET", "/me/identities", "").want(t, http.StatusOK, "ben-there", `"title":"Example University"`, `"hasPassword":true`))
	if len(own.Linkable) != 1 || own.Linkable[0].Page != "https://lab.example/account/identities/directory" {
		t.Errorf("%+v", own)
	}
	path := "/me/identities/" + strconv.FormatInt(own.Identities[0].ID, 10) + "/unlink"
	password := `{"password": "` + apitest.Password("ben") + `"}`
	ask(t, l, ben, "POST", path, `{"password": "not this one at all"}`).want(t, http.StatusForbidden)
	others := read[mine](t, ask(t, l, zed, "GET", "/me/identities", ""))
	theirs := "/me/identities/" + strconv.FormatInt(others.Identities[0].ID, 10) + "/unlink"
	ask(t, l, ben, "POST", theirs, password).want(t, http.StatusNotFound)
	ask(t, l, zed, "POST", theirs, `{"password": "x"}`).want(t, http.StatusConflict, "page of your account")
	ask(t, l, ben, "POST", path, password).want(t, http.StatusNoContent)
	ask(t, l, ben, "POST", path, password).want(t, http.StatusNotFound)

	ask(t, l, ada, "GET", "/users/zed/identities", "").want(t, http.StatusOK, "zed-there", `"roleByHand":true`)
	ask(t, l, ada, "POST", "/users/zed/role-by-rules", "").want(t, http.StatusOK)
	ask(t, l, ada, "GET", "/users/zed/identities", "").want(t, http.StatusOK, `"roleByHand":false`)
	ask(t, l, ada, "POST", "/users/ada/role-by-rules", "").want(t, http.StatusConflict, "yourself")
	ask(t, l, ada, "DELETE", "/users/zed/identities/"+strconv.FormatInt(others.Identities[0].ID, 10), "").want(t, http.StatusNoContent)
	ask(t, l, ada, "GET", "/users/zed/identities", "").want(t, http.StatusOK, `"identities":[]`)
	log := recorded(t, l)
	for _, entry := range []string{"ben identity.unlink ben ben-there at university", "ada identity.unlink zed zed-there at university", "ada user.role-by-rules zed"} {
		if strings.Count(log, entry) != 1 {
			t.Errorf("recorded %d times: %s", strings.Count(log, entry), entry)
		}
	}
}

// A directory knows names and passwords that are not the lab's own.
type directory struct {
	people  map[string]string
	refused string // why the rules let nobody in, who is suspended for it
	away    bool
}

func (*directory) Title() string { return "Department account" }
func (d *directory) SignIn(_ context.Context, name, password string) (*users.Outside, error) {
	if d.away {
		return nil, errors.New("connection refused")
	}
	if d.people[name] != password {
		return nil, nil
	}
	return &users.Outside{Provider: "directory", Title: d.Title(), Realm: "ldap:ou=people", Subject: name, Username: name, Role: users.RoleMember, Create: true,
		Refused: d.refused, Suspend: d.refused != ""}, nil
}

// TestTokenWithADirectory: a password of a directory makes a token as one of the lab's own does. Whom the rules refuse is
// suspended here as on the page, and a directory that does not answer is said to.
func TestTokenWithADirectory(t *testing.T) {
	l := apitest.New(t)
	d := &directory{people: map[string]string{"zoe": "zoe's own password"}}
	l.Users.UseDirectories(d)
	body := `{"handle": "zoe", "password": "zoe's own password", "name": "x", "scope": "full"}`
	made := read[struct{ Secret string }](t, ask(t, l, "", "POST", "/tokens", body).want(t, http.StatusCreated))
	ask(t, l, made.Secret, "POST", "/me/ssh-keys", `{"key": "`+sshKey+`"}`).want(t, http.StatusCreated)
	d.away = true
	ask(t, l, "", "POST", "/tokens", body).want(t, http.StatusServiceUnavailable, "Department account", "try again")
	d.away, d.refused = false, "Your account is not in a group that may use this lab."
	ask(t, l, "", "POST", "/tokens", body).want(t, http.StatusForbidden, d.refused)
	if zoe, err := l.Users.ByHandle(t.Context(), "zoe"); err != nil || !zoe.Suspended {
		t.Errorf("%+v, %v", zoe, err)
	}
	ask(t, l, made.Secret, "GET", "/me", "").want(t, http.StatusUnauthorized)
	d.refused = ""
	ask(t, l, "", "POST", "/tokens", body).want(t, http.StatusConflict, "suspended")
	if log := recorded(t, l); strings.Count(log, "system user.suspend zoe") != 1 {
		t.Error(log)
	}
}
