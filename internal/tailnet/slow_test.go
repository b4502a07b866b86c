package tailnet_test

import (
	"crypto/tls"
	"path/filepath"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/tailnet"
	"github.com/gpulab/gpulab/internal/tailnet/tailnettest"
)

// late is by how much a slow control server's answers are late.
const late = 2 * time.Second

// quickly fails a test where something takes long that somebody waits for.
func quickly(t *testing.T, what string, most time.Duration, do func() error) {
	t.Helper()
	began := time.Now()
	if err := do(); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	if took := time.Since(began); took > most {
		t.Errorf("%s takes %s", what, took)
	}
}

// TestSlowControlServer: the lab gets in all the same, nobody waits for it meanwhile, and it is turned off and leaves at
// any moment.
func TestSlowControlServer(t *testing.T) {
	control := tailnettest.Start(t, "127.0.0.1", "0")
	slow := control.Slow(t, late)
	l := newLab(t, filepath.Join(t.TempDir(), "tailnet"))
	told := false
	up := func() error { return l.Up(t.Context(), tailnet.UpRequest{LoginServer: slow}) }
	down := func() error { return l.Down(t.Context()) }

	quickly(t, "turning it on", late/2, up)
	began := time.Now()
	if st := l.Status(); st.State != tailnet.Starting {
		t.Errorf("turned on, it is %+v", st)
	}
	quickly(t, "the lab's own certificate", time.Second/10, func() error {
		_, err := l.GetCertificate(&tls.ClientHelloInfo{ServerName: "localhost"})
		return err
	})
	quickly(t, "turning it off before it is in", 10*time.Second, down)
	if st := l.Status(); st.State != tailnet.Off {
		t.Errorf("turned off, it is %+v", st)
	}
	quickly(t, "turning it on again", late/2, up)
	if st := l.waitState(t, tailnet.Up); st.Name == "" || len(st.Problems) > 0 {
		t.Errorf("it is in after %s: %+v", time.Since(began), st)
	}
	if took := time.Since(began); took < late {
		t.Errorf("the control server is not slow: %s", took)
	}
	logout := func() (err error) {
		told, err = l.Logout(t.Context())
		return err
	}
	quickly(t, "leaving", 10*time.Second, logout)
	if !told {
		t.Error("the control server does not know that the lab has left")
	}
	quickly(t, "joining anew", late/2, up)
	quickly(t, "leaving before it is in", 20*time.Second, logout) // told or not
	if st := l.Status(); st.State != tailnet.Off || st.Known {
		t.Errorf("after it has left: %+v", st)
	}
}
