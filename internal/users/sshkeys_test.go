package users

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"encoding/pem"
	"errors"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"
)

// newSSHKey makes a public key and its line.
func newSSHKey(t testing.TB, comment string) (ssh.PublicKey, string) {
	t.Helper()
	public, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ssh.NewPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	return key, strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key))) + " " + comment
}

func TestSSHKeys(t *testing.T) {
	s, _ := newTest(t)
	ada, eve := create(t, s, "ada", RoleMember), create(t, s, "eve", RoleMember)
	key, line := newSSHKey(t, "ada@laptop")
	added, err := s.AddSSHKey(t.Context(), ada.ID, "", "\n"+line+"\r\n")
	if err != nil {
		t.Fatal(err)
	}
	if added.Name != "ada@laptop" || added.Type != "ssh-ed25519" || added.Fingerprint != ssh.FingerprintSHA256(key) {
		t.Errorf("%+v", added)
	}
	_, err = s.AddSSHKey(t.Context(), ada.ID, "again", line)
	wantErr(t, err, ErrSSHKeyTaken)
	if _, err := s.AddSSHKey(t.Context(), eve.ID, "a shared computer", line); err != nil {
		t.Errorf("two people with one key: %v", err)
	}
	list, err := s.SSHKeys(t.Context(), ada.ID)
	if err != nil || len(list) != 1 || list[0] != added {
		t.Fatalf("%+v, %v", list, err)
	}
	_, err = s.RemoveSSHKey(t.Context(), eve.ID, added.ID)
	wantErr(t, err, ErrSSHKeyNotFound)
	if gone, err := s.RemoveSSHKey(t.Context(), ada.ID, added.ID); err != nil || gone.Fingerprint != added.Fingerprint {
		t.Fatal(gone, err)
	}
	for range SSHKeysPerUser {
		_, line := newSSHKey(t, "x")
		if _, err := s.AddSSHKey(t.Context(), ada.ID, "", line); err != nil {
			t.Fatal(err)
		}
	}
	_, err = s.AddSSHKey(t.Context(), ada.ID, "", line)
	wantErr(t, err, ErrSSHKeyLimit)
}

func TestSSHKeysThatAreRefused(t *testing.T) {
	s, _ := newTest(t)
	ada := create(t, s, "ada", RoleMember)
	_, line := newSSHKey(t, "x")
	_, other := newSSHKey(t, "y")
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(private, "")
	if err != nil {
		t.Fatal(err)
	}
	weak, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	weakKey, err := ssh.NewPublicKey(&weak.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	for what, tc := range map[string]struct{ text, says string }{
		"nothing":     {" \n", "Paste the public key"},
		"private":     {string(pem.EncodeToMemory(block)), "private key"},
		"two":         {line + "\n" + other, "one key at a time"},
		"no key":      {"hello", "no public key"},
		"options":     {`command="/bin/sh" ` + line, "without them"},
		"from":        {`from="10.0.0.0/8" ` + line, "without them"},
		"long":        {"ssh-ed25519 " + strings.Repeat("A", 20<<10), "one line"},
		"a weak one":  {string(ssh.MarshalAuthorizedKey(weakKey)), "1024 bits"},
		"cut in half": {line[:40], "no public key"},
	} {
		_, err := s.AddSSHKey(t.Context(), ada.ID, "laptop", tc.text)
		wantErr(t, err, ErrSSHKeyInvalid)
		if !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, err = s.AddSSHKey(t.Context(), ada.ID, "a\x1b[2J", line)
	wantErr(t, err, ErrSSHKeyInvalid)
}

// What an account loses, its keys are among.
func TestSSHKeysEnd(t *testing.T) {
	s, _ := newTest(t)
	create(t, s, "root-admin", RoleAdmin)
	for what, end := range map[string]func(User) error{
		"removed": func(u User) error { return s.Remove(t.Context(), u.ID) },
		"a new password by a link": func(u User) error {
			token, err := s.CreateLink(t.Context(), Link{Purpose: PurposePassword, UserID: &u.ID}, 0)
			if err == nil {
				_, err = s.RedeemLink(t.Context(), token, "", "", "violet tractor 92 hums")
			}
			return err
		},
	} {
		u := create(t, s, "u-"+strings.ReplaceAll(what, " ", "-")[:5], RoleMember)
		key, line := newSSHKey(t, "x")
		if _, err := s.AddSSHKey(t.Context(), u.ID, "", line); err != nil {
			t.Fatal(err)
		}
		if ok, err := s.KeyForFiles(t.Context(), u.Handle, key.Marshal()); err != nil || !ok {
			t.Fatal(ok, err)
		}
		if err := end(u); err != nil {
			t.Fatal(err)
		}
		if list, err := s.SSHKeys(t.Context(), u.ID); err != nil || len(list) != 0 {
			t.Errorf("%s: %+v, %v", what, list, err)
		}
		if ok, err := s.KeyForFiles(t.Context(), u.Handle, key.Marshal()); err != nil || ok {
			t.Errorf("%s: the key still opens: %v, %v", what, ok, err)
		}
	}
}

func FuzzParseSSHKey(f *testing.F) {
	_, line := newSSHKey(f, "ada@laptop")
	f.Add(line)
	f.Add(`no-pty,command="x" ` + line)
	f.Add("ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAAAgQ== x")
	f.Fuzz(func(t *testing.T, text string) {
		key, comment, err := parseSSHKey(text)
		if err != nil {
			if !errors.Is(err, ErrSSHKeyInvalid) {
				t.Fatalf("%q: %v", text, err)
			}
			return
		}
		// What is kept of it reads as the same key again, alone on its line.
		again, _, options, rest, err := ssh.ParseAuthorizedKey([]byte(marshalSSHKey(key)))
		if err != nil || len(options) > 0 || len(rest) > 0 || string(again.Marshal()) != string(key.Marshal()) {
			t.Fatalf("%q (%q) was kept as %q", text, comment, marshalSSHKey(key))
		}
	})
}
