package embedk8s

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const podUID = "25a39373-04da-4295-9e94-e73482d902c9"

// logBench is a folder of logs with one pod in it.
type logBench struct {
	*PodBounds
	dir string // of the container
	now time.Time
}

func newLogBench(t *testing.T) *logBench {
	t.Helper()
	logs := t.TempDir()
	dir := filepath.Join(logs, "user-ada_job-7_"+podUID, "job")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	b := &PodBounds{logs: logs, cgroups: func() []string { return nil }}
	return &logBench{PodBounds: b, dir: dir, now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
}

// write makes a log of that size, as old as that.
func (b *logBench) write(t *testing.T, name string, size int, age time.Duration) {
	t.Helper()
	path := filepath.Join(b.dir, name)
	if err := os.WriteFile(path, bytes.Repeat([]byte("x"), size), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(path, b.now.Add(-age), b.now.Add(-age)); err != nil {
		t.Fatal(err)
	}
}

func (b *logBench) size(t *testing.T, name string) int64 {
	t.Helper()
	info, err := os.Stat(filepath.Join(b.dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

func TestPodLogsAreBounded(t *testing.T) {
	const mib = 1 << 20
	t.Run("what the kubelet keeps stays", func(t *testing.T) {
		b := newLogBench(t)
		b.write(t, "0.log.20260102-030405.gz", 1*mib, 2*time.Minute)
		b.write(t, "0.log.20260102-030410", 12*mib, time.Minute)
		b.write(t, "0.log", 11*mib, 0)
		if _, err := b.look(b.now); err != nil {
			t.Fatal(err)
		}
		if got := b.size(t, "0.log.20260102-030405.gz") + b.size(t, "0.log.20260102-030410") + b.size(t, "0.log"); got != 24*mib {
			t.Errorf("%d bytes are left", got)
		}
	})
	t.Run("what was rotated goes first, and earlier runs of the container before", func(t *testing.T) {
		b := newLogBench(t)
		b.write(t, "0.log", 20*mib, 3*time.Minute) // of the run before
		b.write(t, "1.log.20260102-030410", 30*mib, time.Minute)
		b.write(t, "1.log", 9*mib, 0)
		if _, err := b.look(b.now); err != nil {
			t.Fatal(err)
		}
		if was, rotated, current := b.size(t, "0.log"), b.size(t, "1.log.20260102-030410"), b.size(t, "1.log"); was > 200 || rotated != 30*mib || current != 9*mib {
			t.Errorf("%d, %d and %d bytes are left", was, rotated, current)
		}
	})
	t.Run("a container that writes goes on in the emptied file", func(t *testing.T) {
		b := newLogBench(t)
		b.write(t, "0.log", MaxContainerLog+1, 0)
		writer, err := os.OpenFile(filepath.Join(b.dir, "0.log"), os.O_WRONLY|os.O_APPEND, 0) // as containerd
		if err != nil {
			t.Fatal(err)
		}
		defer writer.Close()
		fast, err := b.look(b.now)
		if err != nil || !fast {
			t.Fatalf("fast: %t; %v", fast, err)
		}
		if _, err := writer.WriteString("2026-01-02T03:04:06Z stdout F more\n"); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(filepath.Join(b.dir, "0.log"))
		lines := strings.Split(string(data), "\n")
		if err != nil || len(lines) != 3 || lines[1] != "2026-01-02T03:04:06Z stdout F more" ||
			lines[0] != "2026-01-02T03:04:05Z stdout F [gpulab left out 41943041 bytes here: the output came too fast to be kept]" {
			t.Errorf("%q %v", data, err)
		}
		if fast, err := b.look(b.now.Add(time.Second)); fast || err != nil {
			t.Errorf("a quiet one: %t %v", fast, err)
		}
	})
	t.Run("nothing outside of the folder is touched", func(t *testing.T) {
		b := newLogBench(t)
		other := filepath.Join(t.TempDir(), "other")
		if err := os.WriteFile(other, make([]byte, MaxContainerLog+1), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(other, filepath.Join(b.dir, "0.log")); err != nil {
			t.Fatal(err)
		}
		_, err := b.look(b.now)
		if info, statErr := os.Stat(other); err != nil || statErr != nil || info.Size() != MaxContainerLog+1 {
			t.Error(err, statErr)
		}
	})
	t.Run("a machine without pods", func(t *testing.T) {
		b := &PodBounds{logs: filepath.Join(t.TempDir(), "none")}
		if fast, err := b.look(time.Now()); fast || err != nil {
			t.Error(fast, err)
		}
	})
}

// TestManyPodsShareOneWeight: one person's many pods do not outweigh another's single one.
func TestManyPodsShareOneWeight(t *testing.T) {
	uid := func(n string) string { return strings.Replace(podUID, "25", n, 1) }
	pods := []loggedPod{
		{"user-ada", uid("01")}, {"user-ada", uid("02")}, {"user-ada", uid("03")}, {"user-ada", uid("04")},
		{"user-ben", uid("11")}, {"gpulab", uid("21")}, {"user-ada", uid("05")}, // the last one has ended
	}
	for _, c := range []struct {
		name, file, pattern string
		own, quarter        string
	}{
		{"version 1", "cpu.shares", "kubepods/burstable/podUID", "102", "26"},
		{"version 2 below systemd", "cpu.weight", "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podUID.slice", "17", "4"},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := t.TempDir()
			first, _, _ := strings.Cut(c.pattern, "/")
			base := filepath.Join(root, first)
			group := func(p loggedPod) string {
				id := p.uid
				if strings.Contains(c.pattern, "slice") {
					id = strings.ReplaceAll(id, "-", "_")
				}
				return filepath.Join(root, strings.Replace(c.pattern, "UID", id, 1))
			}
			set := func(dir, value string) {
				t.Helper()
				if err := os.MkdirAll(dir, 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(dir, c.file), []byte(value+"\n"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want := func(p loggedPod, value string) {
				t.Helper()
				if data, err := os.ReadFile(filepath.Join(group(p), c.file)); err != nil || strings.TrimSpace(string(data)) != value {
					t.Errorf("%s %s has %q, want %s: %v", p.namespace, p.uid, data, value, err)
				}
			}
			set(base, "1000")
			for _, p := range pods[:6] {
				set(group(p), c.own)
				set(filepath.Join(group(p), "aa"), "2") // its sandbox
				set(filepath.Join(group(p), "bb"), c.own)
			}
			b := &PodBounds{cgroups: func() []string { return []string{filepath.Join(root, "memory"), base} }}
			for range 2 { // the second time, what it wrote itself is there
				if err := b.share(pods); err != nil {
					t.Fatal(err)
				}
				for _, p := range pods[:4] {
					want(p, c.quarter)
				}
				want(pods[4], c.own)
				want(pods[5], c.own)
			}
			for _, p := range pods[1:4] {
				if err := os.RemoveAll(group(p)); err != nil {
					t.Fatal(err)
				}
			}
			if err := b.share(pods); err != nil {
				t.Fatal(err)
			}
			want(pods[0], c.own)
		})
	}
}
