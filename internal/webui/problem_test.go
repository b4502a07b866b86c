package webui_test

import (
	"crypto/rand"
	"crypto/rsa"
	"math/big"
	"net/http"
	"net/url"
	"testing"

	"golang.org/x/crypto/ssh"

	"github.com/gpulab/gpulab/internal/users"
)

// TestDiskIsFull: what cannot be written for want of room is said as that, and
// the lab goes on when there is room again.
func TestDiskIsFull(t *testing.T) {
	l := newLab(t)
	c := l.client(t, "ben")
	limit := func(pages string) {
		l.users.db.SetMaxOpenConns(1) // the limit is a connection's
		l.users.exec(t, "PRAGMA max_page_count = "+pages)
	}
	add := func() answer { // something long
		modulus := make([]byte, 1<<10)
		_, _ = rand.Read(modulus)
		key, err := ssh.NewPublicKey(&rsa.PublicKey{N: new(big.Int).SetBytes(modulus), E: 65537})
		if err != nil {
			t.Fatal(err)
		}
		return c.post("/account", "/account/ssh-keys", url.Values{"key": {string(ssh.MarshalAuthorizedKey(key))}})
	}
	limit("1") // as many as there are
	got := add()
	for range users.SSHKeysPerUser {
		if got.status != http.StatusSeeOther {
			break
		}
		got = add() // a page had room
	}
	got.want(t, http.StatusInsufficientStorage, "disk is full", "Nothing was changed", "gpulab disk")
	c.get("/account").want(t, http.StatusOK)
	limit("1000000")
	add().want(t, http.StatusSeeOther)
}
