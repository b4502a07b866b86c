package webui_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/gpulab/gpulab/internal/webui"
)

// fakeDoor is a door for files with connections of ada's.
type fakeDoor struct {
	mu   sync.Mutex
	open []webui.FileConnection
}

func (f *fakeDoor) door() *webui.FileDoor {
	return &webui.FileDoor{
		Port: 2022, HostKey: "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIKx", Fingerprint: "SHA256:uNiVztksCsDhcc0u9e8BrrQXVUpKZIDTMczCvj3tD2s",
		Open: func(userID int64) []webui.FileConnection {
			f.mu.Lock()
			defer f.mu.Unlock()
			if userID != 1 {
				return nil
			}
			return f.open
		},
		Close: func(userID int64) int {
			f.mu.Lock()
			defer f.mu.Unlock()
			if userID != 1 {
				return 0
			}
			n := len(f.open)
			f.open = nil
			return n
		},
	}
}

func publicKey(t testing.TB) string {
	t.Helper()
	public, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ssh.NewPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key)))
}

func TestBringFilesIn(t *testing.T) {
	l := newLab(t)
	l.door.open = []webui.FileConnection{{Since: time.Now().Add(-5 * time.Minute), Remote: "192.0.2.7", Client: "OpenSSH_9.2", Way: "the <b>password</b>"}}
	c := l.client(t, "ada")
	address := strings.TrimPrefix(l.server.URL, "https://")
	page := c.get("/account")
	page.want(t, http.StatusOK, "Bring files in", "gpulab login https://"+address, "gpulab cp -r ./data lab:data", "sftp -P 2022 ada@127.0.0.1", "reput -R data",
		"port=2022,user=ada", "SHA256:uNiVztksCsDhcc0u9e8BrrQXVUpKZIDTMczCvj3tD2s", "No SSH keys", "OpenSSH_9.2", "192.0.2.7", "5 min", "&lt;b&gt;password")
	c.get("/").want(t, http.StatusOK, `href="/account#files"`)
	if body := l.client(t, "ben").get("/account").body; strings.Contains(body, "OpenSSH_9.2") {
		t.Error("others see what somebody has open")
	}
	l.client(t, "ben").post("/account", "/account/files/close", nil).want(t, http.StatusSeeOther)
	c.post("/account", "/account/files/close", nil).want(t, http.StatusSeeOther)
	c.get("/account?done=files-closed").want(t, http.StatusOK, "All connections for files are closed")
	if body := c.get("/account").body; strings.Contains(body, "OpenSSH_9.2") {
		t.Error("it is open still")
	}
	if got := actions(t, l); got != "ada files.close ada" {
		t.Error(got)
	}
}

func TestOwnSSHKeys(t *testing.T) {
	l := newLab(t)
	c := l.client(t, "ben")
	key := publicKey(t)
	const private = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAA\n-----END OPENSSH PRIVATE KEY-----"
	got := c.post("/account", "/account/ssh-keys", url.Values{"key": {private}})
	got.want(t, http.StatusUnprocessableEntity, "This is a private key", `aria-invalid="true"`)
	if strings.Contains(got.body, "b3BlbnNzaC1rZXktdjEAAAAA") {
		t.Error("the page repeats a private key")
	}
	c.post("/account", "/account/ssh-keys", url.Values{"key": {"ssh-ed25519 <i>"}, "name": {"lap<top>"}}).want(t, http.StatusUnprocessableEntity, "no public key", "lap&lt;top&gt;", "ssh-ed25519 &lt;i&gt;")
	c.post("/account", "/account/ssh-keys", url.Values{"key": {key + " ben@laptop"}}).want(t, http.StatusSeeOther)
	c.post("/account", "/account/ssh-keys", url.Values{"key": {key}}).want(t, http.StatusUnprocessableEntity, "has this key already")
	c.get("/account?done=ssh-key").want(t, http.StatusOK, "ben@laptop", "SHA256:", "never", "The SSH key is added")
	lea := l.client(t, "lea")
	lea.post("/account", "/account/ssh-keys/1/remove", nil).want(t, http.StatusSeeOther)
	if n := l.users.count(t, "ssh_keys"); n != 1 {
		t.Error("somebody else removed it")
	}
	c.post("/account", "/account/ssh-keys/1/remove", nil).want(t, http.StatusSeeOther)
	c.post("/account", "/account/ssh-keys/1/remove", nil).want(t, http.StatusSeeOther) // twice is no error
	if n := l.users.count(t, "ssh_keys"); n != 0 {
		t.Error("it is still there")
	}
	if got := actions(t, l); got != "ben ssh-key.add ben, ben ssh-key.remove ben" {
		t.Error(got)
	}
}

// A lab without the door says so, and what to do instead.
func TestNoDoorForFiles(t *testing.T) {
	l := newLabWith(t, func(c *webui.Config) { c.Files = nil })
	c := l.client(t, "ben")
	page := c.get("/account")
	page.want(t, http.StatusOK, "This lab takes no files over SFTP", "upload button")
	if strings.Contains(page.body, "gpulab cp") || strings.Contains(page.body, "/account/ssh-keys") {
		t.Error("it offers what is not there")
	}
}
