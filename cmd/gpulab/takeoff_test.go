package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpulab/gpulab/internal/config"
)

// A unit of another lab's is neither stopped nor removed.
func TestWhichLabAUnitServes(t *testing.T) {
	s, _ := systemdHost(t)
	if s.serves(config.DefaultPath) {
		t.Error("there is no unit")
	}
	mustDo(t, s.start(t.Context(), invocation{"/src/bin/gpulab", "/etc/lab/lab.yaml", "/run/lab.sock"}))
	for path, want := range map[string]bool{
		"/etc/lab/lab.yaml": true, "/etc/lab/../lab/lab.yaml": true, config.DefaultPath: false,
	} {
		if got := s.serves(path); got != want {
			t.Errorf("%s: %v", path, got)
		}
	}
}

func TestConfigurationOfAGpulab(t *testing.T) {
	for args, want := range map[string]string{
		"gpulab serve": config.DefaultPath,
		"/usr/bin/gpulab serve --config /a --socket x": "/a",
		"gpulab --config=/b serve":                     "/b",
		"gpulab agent":                                 config.DefaultPath,
		"sleep 60":                                     "",
	} {
		if got := configAmong(strings.Fields(args)); got != want {
			t.Errorf("%s: %q", args, got)
		}
	}
}

// The gpulab of another lab is not stopped because its socket is the usual one.
func TestAGpulabOfAnotherLabGoesOn(t *testing.T) {
	dir := t.TempDir()
	a := &app{configPath: filepath.Join(dir, "other.yaml"), socket: filepath.Join(dir, "s")}
	unlock, err := lockDaemon(a.socket + ".pid") // the number is this test's, which serves nothing
	mustDo(t, err)
	defer unlock()
	if err := a.mayEnd(config.Config{DataDir: dir}); err != nil {
		t.Error(err)
	}
	if got := configOf(os.Getpid()); got != "" {
		t.Errorf("this test has the configuration %q", got)
	}
}

func TestWhoseExports(t *testing.T) {
	for list, want := range map[string]bool{
		"": true, "# exportfs has not read this yet\n": true,
		"/srv/lab/homes 10.0.0.2(rw)\n":                                      true,
		"\"/srv/lab/homes\" 10.0.0.2(rw)\n":                                  true,
		"/var/lib/gpulab/homes 10.0.0.2(rw)\n/srv/labs/homes 10.0.0.2(rw)\n": false,
	} {
		if got := exportsOf(list, "/srv/lab"); got != want {
			t.Errorf("%q: %v", list, got)
		}
	}
}
