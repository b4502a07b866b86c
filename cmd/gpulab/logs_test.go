package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// buffer is what a command has written so far.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// TestLogsOfAComponent: the last lines of one part of gpulab, and what follows.
func TestLogsOfAComponent(t *testing.T) {
	path := filepath.Join(t.TempDir(), "gpulab.log")
	write := func(text string) {
		t.Helper()
		f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err == nil {
			_, err = f.WriteString(text)
		}
		if err != nil {
			t.Fatal(err)
		}
		_ = f.Close()
	}
	write("level=INFO msg=1 component=charts\nlevel=INFO msg=2 component=gpulab\nlevel=INFO msg=3 component=charts\n" +
		"level=INFO msg=\"component=charts is said\" component=users\nlevel=INFO msg=4 component=charts\nlevel=INFO msg=5 comp")
	var out buffer
	if err := showComponent(t.Context(), &out, path, logsOptions{lines: 2, component: "charts"}); err != nil {
		t.Fatal(err)
	}
	if want := "level=INFO msg=3 component=charts\nlevel=INFO msg=4 component=charts\n"; out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	var followed buffer
	go func() {
		defer close(done)
		_ = showComponent(ctx, &followed, path, logsOptions{lines: 1, follow: true, component: "charts"})
	}()
	for end := time.Now().Add(30 * time.Second); !strings.Contains(followed.String(), "msg=4"); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("what is there is not shown: %q", followed.String())
		}
	}
	write("onent=charts\nlevel=INFO msg=6 component=gpulab\nlevel=INFO msg=7 component=charts\n")
	for end := time.Now().Add(30 * time.Second); !strings.Contains(followed.String(), "msg=7"); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("what follows is not shown: %q", followed.String())
		}
	}
	cancel()
	<-done
	if got := followed.String(); !strings.HasSuffix(got, "msg=4 component=charts\nlevel=INFO msg=5 component=charts\nlevel=INFO msg=7 component=charts\n") || strings.Contains(got, "msg=6") {
		t.Errorf("%q", got)
	}
}

func TestLogsOptions(t *testing.T) {
	for part, o := range map[string]logsOptions{"k3s": {component: "charts"}, "gpulab": {component: "A=B"}, "probe": {lines: -1}} {
		if err := o.check(part); err == nil {
			t.Errorf("%s %+v is accepted", part, o)
		}
	}
	o := logsOptions{lines: 5, component: "charts", follow: true}
	if err := o.check("gpulab"); err != nil {
		t.Error(err)
	}
	if got := strings.Join(o.journalctl(), " "); got != "-u gpulab -o short-iso --no-hostname -n 5 -f GPULAB_COMPONENT=charts" {
		t.Errorf("journalctl %s", got)
	}
}
