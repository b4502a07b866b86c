package config

import (
	"testing"
)

// No link to the pages leads to a port at which the lab serves something else.
func TestOtherPorts(t *testing.T) {
	cfg, err := Load(write(t, "servicePorts: 9500-9501\nnotebookPorts: 22000-22001\nfiles: {listen: \":2222\"}\n"))
	if err != nil {
		t.Fatal(err)
	}
	other := cfg.OtherPorts()
	for port, want := range map[int]bool{
		443: false, 8443: false, 9443: false, 80: true, 8444: true, 6443: true, 10250: true, 2222: true, 9500: true,
		9501: true, 22000: true, 22001: true, 22002: false,
	} {
		if got := other(port); got != want {
			t.Errorf("port %d: %v", port, got)
		}
	}
}
