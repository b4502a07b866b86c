package ctl

import (
	"context"
	"testing"

	"github.com/gpulab/gpulab/internal/users"
)

func (d *daemon) UserSSHKeys(_ context.Context, handle string) ([]users.SSHKey, error) {
	return []users.SSHKey{{ID: 3, Name: handle}}, nil
}

func (d *daemon) AddUserSSHKey(_ context.Context, handle string, k NewSSHKey) (users.SSHKey, error) {
	return users.SSHKey{ID: 4, Name: handle + " " + k.Name, Type: k.Key}, nil
}

func (d *daemon) RemoveUserSSHKey(_ context.Context, handle, which string) (users.SSHKey, error) {
	return users.SSHKey{Name: handle, Fingerprint: which}, nil
}

func TestSSHKeysOverTheSocket(t *testing.T) {
	_, c := serveDaemon(t, &daemon{})
	if list, err := c.UserSSHKeys(t.Context(), "ada"); err != nil || len(list) != 1 || list[0].Name != "ada" {
		t.Errorf("%+v, %v", list, err)
	}
	if k, err := c.AddUserSSHKey(t.Context(), "ada", NewSSHKey{Name: "laptop", Key: "ssh-ed25519 A"}); err != nil || k.Name != "ada laptop" || k.Type != "ssh-ed25519 A" {
		t.Errorf("%+v, %v", k, err)
	}
	// Fingerprints hold what has a meaning in an address.
	if k, err := c.RemoveUserSSHKey(t.Context(), "ada", "SHA256:a/b+c"); err != nil || k.Fingerprint != "SHA256:a/b+c" {
		t.Errorf("%+v, %v", k, err)
	}
}
