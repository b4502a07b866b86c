package doctor

import (
	"errors"
	"testing"
)

func TestScratch(t *testing.T) {
	h := machine(t, nil)
	with := func(err error, list ...Stray) Options {
		for i := range list {
			list[i].Dir, list[i].Part = "/var/log/pods", "/srv/lab/k3s/pod-logs"
		}
		return Options{DataDir: "/srv/lab", Strays: func() ([]Stray, error) { return list, err }}
	}
	finds(t, h, "scratch", with(nil), OK)
	finds(t, h, "scratch", with(errors.New("permission denied")), Warn, "permission denied", "sudo gpulab doctor scratch")
	finds(t, h, "scratch", with(nil, Stray{Here: true}), Warn, "lie in /var/log/pods, which is not on the disk of /srv/lab.", "Restart the machine")
	finds(t, h, "scratch", with(nil, Stray{Here: true, Kept: true}), Warn, "in /var/log/pods, which is not on the disk of /srv/lab, and others in /srv/lab/k3s/pod-logs.")
	finds(t, h, "scratch", with(nil, Stray{Kept: true}), Warn, "/var/log/pods does not show them")
	finds(t, h, "scratch", with(nil, Stray{Here: true}, Stray{Lost: true}), Warn, "was deleted", "may fail to start", "Restart the machine")
	finds(t, h, "scratch", with(nil, Stray{Here: true, Foreign: true}), Warn, "older than this lab", "while gpulab is stopped")
	if found := look(t, h, "scratch", Options{}); len(found) != 0 {
		t.Errorf("where nobody knows: %v", found)
	}
}
