package api_test

import (
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"math/big"
	"net/http"
	"testing"

	"golang.org/x/crypto/ssh"

	"github.com/gpulab/gpulab/internal/api/apitest"
	"github.com/gpulab/gpulab/internal/users"
)

// TestDiskIsFull: what cannot be written for want of room is said as that.
func TestDiskIsFull(t *testing.T) {
	l := apitest.New(t)
	ben := l.Token(t, "ben", users.ScopeFull)
	limit := func(pages string) {
		l.DB.SetMaxOpenConns(1) // the limit is a connection's
		if _, err := l.DB.ExecContext(t.Context(), "PRAGMA max_page_count = "+pages); err != nil {
			t.Fatal(err)
		}
	}
	add := func() answer { // something long
		modulus := make([]byte, 1<<10)
		_, _ = rand.Read(modulus)
		key, err := ssh.NewPublicKey(&rsa.PublicKey{N: new(big.Int).SetBytes(modulus), E: 65537})
		if err != nil {
			t.Fatal(err)
		}
		body, err := json.Marshal(map[string]string{"key": string(ssh.MarshalAuthorizedKey(key))})
		if err != nil {
			t.Fatal(err)
		}
		return ask(t, l, ben, "POST", "/me/ssh-keys", string(body))
	}
	limit("1") // as many as there are
	got := add()
	for range users.SSHKeysPerUser {
		if got.status != http.StatusCreated {
			break
		}
		got = add() // a page had room
	}
	got.want(t, http.StatusInsufficientStorage, "disk is full", "Nothing was changed")
	ask(t, l, ben, "GET", "/me/ssh-keys", "").want(t, http.StatusOK)
	limit("1000000")
	add().want(t, http.StatusCreated)
}
