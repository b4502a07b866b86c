package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpulab/gpulab/internal/config"
	"github.com/gpulab/gpulab/internal/ctl"
)

// systemdHost is a machine with a systemd that writes down what it is told.
func systemdHost(t *testing.T) (s systemd, told func() string) {
	t.Helper()
	root := t.TempDir()
	for _, dir := range []string{"run/systemd/system", ownUnits, packagedUnits, "bin"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	log := filepath.Join(root, "told")
	script := "#!/bin/sh\necho \"$*\" >>" + log + "\n"
	if err := os.WriteFile(filepath.Join(root, "bin/systemctl"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", filepath.Join(root, "bin")+":"+os.Getenv("PATH"))
	return systemd{root}, func() string {
		data, _ := os.ReadFile(log)
		_ = os.Remove(log)
		return strings.TrimSpace(string(data))
	}
}

func (s systemd) unit(t *testing.T, dir, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(s.root, dir, name))
	if os.IsNotExist(err) {
		return ""
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

const startCommands = "daemon-reload\n--quiet reenable gpulab.service\nrestart gpulab.service"

func TestUnitsOfAHandBuiltProgram(t *testing.T) {
	s, told := systemdHost(t)
	if !s.runs() || s.known() {
		t.Fatalf("runs %v, known %v", s.runs(), s.known())
	}
	how := invocation{"/src/bin/gpulab", "/etc/lab.yaml", "/run/lab.sock"}
	if err := s.start(t.Context(), how); err != nil {
		t.Fatal(err)
	}
	if got := told(); got != startCommands {
		t.Errorf("systemd was told:\n%s", got)
	}
	if unit := s.unit(t, ownUnits, serviceUnit); !strings.Contains(unit, "\nExecStart=/src/bin/gpulab serve --config /etc/lab.yaml --socket /run/lab.sock\n") {
		t.Errorf("the unit:\n%s", unit)
	}
	if unit := s.unit(t, ownUnits, podsUnit); !strings.Contains(unit, "\nExecStop=/src/bin/gpulab end-pods --config /etc/lab.yaml\n") {
		t.Errorf("the unit of pods:\n%s", unit)
	}
	if err := s.remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, want := told(), "--quiet disable --now gpulab.service\nstop gpulab-pods.service\ndaemon-reload"; got != want {
		t.Errorf("systemd was told:\n%s", got)
	}
	if s.known() || s.unit(t, ownUnits, podsUnit) != "" {
		t.Error("a unit is left")
	}
	if err := s.remove(t.Context()); err != nil || told() != "" {
		t.Errorf("removed again: %v, and systemd was told something", err)
	}
}

// The units of the package serve the package's program as they are; one that was
// built by hand goes before them, until the package's is started again.
func TestUnitsOfThePackage(t *testing.T) {
	s, told := systemdHost(t)
	packaged := filepath.Join(s.root, packagedUnits, serviceUnit)
	if err := os.WriteFile(packaged, []byte("the package's"), 0o644); err != nil {
		t.Fatal(err)
	}
	usual := invocation{packagedProgram, config.DefaultPath, ctl.DefaultSocket}
	for _, c := range []struct {
		how invocation
		own bool
	}{
		{usual, false},
		{invocation{"/src/bin/gpulab", usual.Config, usual.Socket}, true},
		{usual, false},
		{invocation{usual.Exe, "/etc/other.yaml", usual.Socket}, true},
	} {
		if err := s.start(t.Context(), c.how); err != nil {
			t.Fatal(err)
		}
		if got := told(); got != startCommands {
			t.Errorf("%v: systemd was told:\n%s", c.how, got)
		}
		for _, name := range []string{serviceUnit, podsUnit} {
			if own := s.unit(t, ownUnits, name) != ""; own != c.own {
				t.Errorf("%v: %s of its own: %v", c.how, name, own)
			}
		}
	}
	if err := s.remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(told(), "--quiet disable --now gpulab.service\n") || s.unit(t, packagedUnits, serviceUnit) != "the package's" {
		t.Error("the package's unit was not disabled, or not kept")
	}
}

func TestSystemctlThatFails(t *testing.T) {
	s, _ := systemdHost(t)
	script := "#!/bin/sh\necho 'Unit gpulab.service is masked.' >&2\nexit 1\n"
	if err := os.WriteFile(filepath.Join(s.root, "bin/systemctl"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	err := s.start(t.Context(), invocation{Exe: "/src/bin/gpulab"})
	if err == nil || !strings.Contains(err.Error(), "systemctl daemon-reload") || !strings.Contains(err.Error(), "is masked") {
		t.Errorf("%v", err)
	}
}
