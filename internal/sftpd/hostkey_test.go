package sftpd

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestHostKey(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tls", "ssh-host-key")
	first, err := LoadHostKey(path)
	if err != nil {
		t.Fatal(err)
	}
	again, err := LoadHostKey(path)
	if err != nil || !bytes.Equal(first.PublicKey().Marshal(), again.PublicKey().Marshal()) {
		t.Fatalf("another key the second time: %v", err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if list, err := os.ReadDir(filepath.Dir(path)); err != nil || len(list) != 1 {
		t.Errorf("left beside it: %v, %v", list, err)
	}
	if id := IdentityOf(first); !strings.HasPrefix(id.Key, "ssh-ed25519 AAAA") || !strings.HasPrefix(id.Fingerprint, "SHA256:") || strings.ContainsAny(id.Key, "\n") {
		t.Errorf("%+v", id)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadHostKey(path); err == nil || !strings.Contains(err.Error(), "read by others") {
		t.Errorf("a key that others can read: %v", err)
	}
	if err := os.WriteFile(path, []byte("-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadHostKey(path); err == nil || !strings.Contains(err.Error(), "backup") {
		t.Errorf("a damaged key: %v", err)
	}
}

func TestNamesOfFolders(t *testing.T) {
	for name, ok := range map[string]bool{"class": true, "hand in": true, "ä": true, ".hidden": true, "": false, ".": false, "..": false, "a/b": false, "/etc": false, "a\x00b": false} {
		if properName(name) != ok {
			t.Errorf("%q: %v", name, !ok)
		}
	}
}

// A name that is no UTF-8 comes as bytes.
func TestSumOfANameInBytes(t *testing.T) {
	dir, name := t.TempDir(), "caf\xe9.csv"
	if err := os.WriteFile(filepath.Join(dir, name), []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	in, err := json.Marshal(SumRequest{Path: name, Bytes: []byte(name)})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := serveSums(bytes.NewReader(in), &out, &files{home: dir}); err != nil || !strings.Contains(out.String(), "982d9e3eb996f559e633f4d194def3761d909f5a3b647d1a851fead67c32c9d1") {
		t.Errorf("%v: %s", err, out.String())
	}
}

// Whatever a program sends for checksums, the answer is one line of JSON for each request, and an end.
func FuzzSums(f *testing.F) {
	dir := f.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a"), []byte("text"), 0o644); err != nil {
		f.Fatal(err)
	}
	f.Add(`{"path":"a"}` + "\n" + `{"path":"/nothing"}`)
	f.Add(`{"path":"../../..`)
	f.Add(`[1,2]`)
	f.Add(strings.Repeat(" ", 70000) + `{}`)
	f.Fuzz(func(t *testing.T, in string) {
		var out bytes.Buffer
		if err := serveSums(strings.NewReader(in), &out, &files{home: dir}); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(out.String()) {
			var reply SumReply
			if err := json.Unmarshal([]byte(line), &reply); err != nil || (reply.SHA256 == "") == (reply.Error == "") {
				t.Fatalf("%q: %v", line, err)
			}
		}
	})
}
