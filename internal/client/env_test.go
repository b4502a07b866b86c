package client

import "testing"

// TestEnv: whoever works in a lab sees its environments.
func TestEnv(t *testing.T) {
	s := newServer(t)
	a := signedIn(t, s)
	a.wants(t, []string{"env"}, "This lab has no environments yet.")
	a.wants(t, []string{"env", "--json"}, `"environments": []`)
	s.Environments.Make(t, "small", "1", "Small")
	a.wants(t, []string{"env"}, "small/1", "Small", "CUDA 12.0", "3.11")
}
