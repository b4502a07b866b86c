package doctor

import (
	"context"
	"errors"
	"testing"
	"time"
)

func TestDaemon(t *testing.T) {
	bare := machine(t, nil)
	lab := machine(t, map[string]string{"/var/lib/gpulab/identity.json": "{}"})
	booted := machine(t, map[string]string{"/var/lib/gpulab/identity.json": "{}", "/run/systemd/system/x": ""})

	finds(t, bare, "daemon", labSays(Lab{}, ErrNoDaemon), OK, "`gpulab init`")
	finds(t, lab, "daemon", labSays(Lab{}, ErrNoDaemon), Fail, "Run `gpulab init`")
	finds(t, booted, "daemon", labSays(Lab{}, ErrNoDaemon), Fail, "Run `systemctl start gpulab`")
	finds(t, lab, "daemon", labSays(Lab{}, ErrNotAllowed), Unseen)
	finds(t, lab, "daemon", labSays(Lab{}, errors.New("the database is locked")), Fail, "the database is locked", "`gpulab logs`")
	opts := labSays(Lab{Version: "1.2"}, nil)
	finds(t, lab, "daemon", opts, OK, "gpulab 1.2 runs")
	opts.Version = "1.3"
	finds(t, lab, "daemon", opts, Warn, "gpulab 1.2 runs, but 1.3 is installed.")
}

// TestDaemonHangs: it answers nobody, and everything that needs its answer says
// so or nothing, in time.
func TestDaemonHangs(t *testing.T) {
	h := machine(t, map[string]string{"/var/lib/gpulab/identity.json": "{}"})
	opts := Options{DataDir: "/var/lib/gpulab", Socket: "/run/gpulab/gpulab.sock", Limit: 200 * time.Millisecond, Ask: func(ctx context.Context) (Lab, error) {
		<-ctx.Done()
		return Lab{}, ctx.Err()
	}}
	finds(t, h, "daemon", opts, Fail, "does not answer", "`kill -KILL $(cat /run/gpulab/gpulab.sock.pid); gpulab init`")
	for _, name := range []string{"components", "gpus", "pages"} {
		if found := look(t, h, name, opts); len(found) != 0 {
			t.Errorf("%s: %v", name, found)
		}
	}
}
