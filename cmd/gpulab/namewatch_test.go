package main

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpulab/gpulab/internal/config"
	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/doctor"
)

// status tells when names do not resolve, and when they do again; it asks a server that
// does not work more often.
func TestNameWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		found := []doctor.Finding{
			{State: doctor.Warn, Seen: "The name server 192.0.2.53 does not answer."},
			{State: doctor.Warn, Seen: "The name server 192.0.2.54 does not answer."},
		}
		var w nameWatch
		if c := w.component(); c != nil {
			t.Errorf("before anybody asked: %+v", c)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		asked := 0
		go func() { _ = w.run(ctx, func(context.Context) []doctor.Finding { asked++; return found }) }()
		synctest.Wait()
		c := w.component()[0]
		if c.Name != doctor.NamesPart || c.State != ctl.Warning || c.Detail != "The name server 192.0.2.53 does not answer. The name server 192.0.2.54 does not answer" ||
			!strings.Contains(c.NextStep, "gpulab doctor resolver") {
			t.Errorf("%+v", c)
		}
		found = []doctor.Finding{{State: doctor.OK, Seen: "Name servers that notebooks can use: 192.0.2.53."}}
		time.Sleep(namesRetry)
		synctest.Wait()
		if c := w.component()[0]; c.State != ctl.OK || c.NextStep != "" || asked != 2 {
			t.Errorf("asked %d times: %+v", asked, c)
		}
		time.Sleep(namesRetry)
		synctest.Wait()
		if asked != 2 {
			t.Errorf("a server that works was asked %d times", asked)
		}
	})
}

// A name that pods look up: the host of the lab's own index.
func TestOutsideName(t *testing.T) {
	for index, want := range map[string]string{
		"": "", "https://pypi.example.org:8443/simple": "pypi.example.org", "http://192.0.2.9/simple": "", "https://[2001:db8::1]/simple": "",
	} {
		cfg := config.Config{Packages: config.Packages{Index: index}}
		if got := machineOptions(cfg).Outside; got != want {
			t.Errorf("with the index %q: %q, want %q", index, got, want)
		}
	}
}
