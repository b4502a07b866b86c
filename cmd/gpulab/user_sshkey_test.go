package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpulab/gpulab/internal/audit"
	"github.com/gpulab/gpulab/internal/users"
)

const aPublicKey = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAyY9NOoi6ZOoLSEvCTLgf0HqcNGA744m/TX4l5InxH8 ben@laptop\n"

func TestSSHKeyCommands(t *testing.T) {
	p, _, do, refused := commandLab(t)
	dir := t.TempDir()
	public, private := filepath.Join(dir, "key.pub"), filepath.Join(dir, "key")
	for name, text := range map[string]string{public: aPublicKey, private: "-----BEGIN OPENSSH PRIVATE KEY-----\nsecret\n"} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	says(t, do("user ssh-key list ben"), "ben has no SSH keys", "gpulab user ssh-key add ben FILE")
	says(t, do("user ssh-key add ben "+public), "ben can bring files in and out with the key 1", `"ben@laptop"`, "SHA256:")
	refused("user ssh-key add ben "+public, exitFailure, "key already")
	refused("user ssh-key add ben "+private, exitFailure, "private key")
	refused("user ssh-key add ben "+filepath.Join(dir, "none"), exitFailure, "no such file")
	refused("user ssh-key add nobody "+public, exitFailure, "There is no such user")
	says(t, do("user ssh-key list ben"), "FINGERPRINT", "ssh-ed25519", "never")
	var keys []users.SSHKey
	if err := json.Unmarshal([]byte(do("user ssh-key list ben --json")), &keys); err != nil || len(keys) != 1 || keys[0].Name != "ben@laptop" {
		t.Fatalf("%+v, %v", keys, err)
	}
	refused("user ssh-key remove ben 99", exitFailure, "gpulab user ssh-key list ben")
	refused("user ssh-key remove ada 1", exitFailure, "ada has no SSH key 1")
	says(t, do("user ssh-key remove ben "+keys[0].Fingerprint), "of ben is removed")
	says(t, do("user ssh-key add ben "+public+" --name laptop --json"), `"name": "laptop"`)
	says(t, do("user ssh-key remove ben 2 --json"), `"id": 2`)

	entries, err := p.AuditLog().List(t.Context(), audit.Filter{Person: "ben", Limit: 10})
	if err != nil {
		t.Fatal(err)
	}
	var log []string
	for _, e := range entries {
		log = append(log, e.Actor+" "+e.Action)
	}
	if got := strings.Join(log, ", "); !strings.HasPrefix(got, "root ssh-key.remove, root ssh-key.add, root ssh-key.remove, root ssh-key.add") {
		t.Error(got)
	}
}

// A key may come from the input.
func TestSSHKeyFromInput(t *testing.T) {
	if got, err := readSSHKey(strings.NewReader(aPublicKey), "-"); err != nil || got+"\n" != aPublicKey {
		t.Errorf("%q, %v", got, err)
	}
}
