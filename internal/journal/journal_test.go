package journal

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// inside tells a test that it runs with a journal's socket of its own.
const inside = "GPULAB_TEST_JOURNAL"

// withJournal runs the calling test again, in a mount namespace in which
// nothing listens at the journal's address but the test itself, with a standard
// error output that counts as the journal's. It is true there.
func withJournal(t *testing.T) bool {
	t.Helper()
	if os.Getenv(inside) != "" {
		return true
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	ends, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs := os.NewFile(uintptr(ends[0]), "ours"), os.NewFile(uintptr(ends[1]), "theirs")
	defer ours.Close()
	var stat syscall.Stat_t
	if err := syscall.Fstat(ends[1], &stat); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "unshare", "--mount", "sh", "-ec",
		`mount -t tmpfs none /run && mkdir -p /run/systemd/journal && exec "$0" -test.v -test.run "$1"`, os.Args[0], "^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), inside+"=yes", fmt.Sprintf("JOURNAL_STREAM=%d:%d", stat.Dev, stat.Ino))
	cmd.Stderr = theirs
	out, err := cmd.Output()
	_ = theirs.Close()
	t.Logf("%s", out)
	if err != nil {
		t.Fatal(err)
	}
	return false
}

// listen is the journal's end.
func listen(t *testing.T) *net.UnixConn {
	t.Helper()
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: "/run/systemd/journal/socket", Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// read takes one entry in the journal's own protocol.
func read(t *testing.T, conn *net.UnixConn) map[string]string {
	t.Helper()
	if err := conn.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 1<<20)
	n, err := conn.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	fields := map[string]string{}
	for data := buf[:n]; len(data) > 0; {
		line, rest, _ := bytes.Cut(data, []byte("\n"))
		if name, value, plain := strings.Cut(string(line), "="); plain {
			fields[name], data = value, rest
			continue
		}
		size := binary.LittleEndian.Uint64(rest)
		fields[string(line)], data = string(rest[8:8+size]), rest[8+size+1:]
	}
	return fields
}

func TestJournal(t *testing.T) {
	if !withJournal(t) {
		return
	}
	conn := listen(t)
	if !Listens() {
		t.Fatal("the journal is not seen")
	}
	log := slog.New(Handler(os.Stderr))
	for name, tc := range map[string]struct {
		write func()
		want  map[string]string
	}{
		"plain": {func() { log.Info("the lab is ready") }, map[string]string{
			"MESSAGE": "the lab is ready", "PRIORITY": "6", "SYSLOG_IDENTIFIER": "gpulab", "GPULAB_COMPONENT": "journal"}},
		"fields": {func() {
			log.Warn("a launch cannot go on yet", "launch", 7, "handle", "ben", "notebook", "play", "error", errors.New("no room: try later"))
		}, map[string]string{
			"MESSAGE":  `a launch cannot go on yet launch=7 handle=ben notebook=play error="no room: try later"`,
			"PRIORITY": "4", "GPULAB_LAUNCH": "7", "GPULAB_USER": "ben", "GPULAB_NOTEBOOK": "play", "GPULAB_ERROR": "no room: try later"}},
		"several lines": {func() { log.Error("helm", "err", errors.New("one\ntwo=2")) }, map[string]string{
			"MESSAGE": `helm err="one\ntwo=2"`, "PRIORITY": "3", "GPULAB_ERROR": "one\ntwo=2"}},
		"groups": {func() { log.With("a", 1).WithGroup("pod").With("name", "x").Info("m", slog.Group("on", "node", "box")) }, map[string]string{
			"MESSAGE": "m a=1 pod.name=x pod.on.node=box", "GPULAB_A": "1", "GPULAB_POD_NAME": "x", "GPULAB_POD_ON_NODE": "box"}},
		"a name that tries to be another field": {func() { log.Info("m", "x\nPRIORITY=0\n_UID", "y") }, map[string]string{
			"PRIORITY": "6", "GPULAB_X_PRIORITY_0__UID": "y"}},
		"no name longer than the journal takes": {func() { log.Info("m", strings.Repeat("n", 200), "y") }, map[string]string{
			"GPULAB_" + strings.Repeat("N", 57): "y"}},
	} {
		tc.write()
		got := read(t, conn)
		for field, want := range tc.want {
			if got[field] != want {
				t.Errorf("%s: %s is %q, want %q; all: %v", name, field, got[field], want, got)
			}
		}
	}
	log.Debug("nobody wants to know")
	log.Info("the end")
	if got := read(t, conn); got["MESSAGE"] != "the end" {
		t.Errorf("after what is for debugging comes %v", got)
	}
}

// A line too long for a datagram comes in a file, and is not lost.
func TestLongMessage(t *testing.T) {
	if !withJournal(t) {
		return
	}
	conn := listen(t)
	slog.New(Handler(os.Stderr)).Info("long", "text", strings.Repeat("x", 4<<20))
	_ = conn.SetReadDeadline(time.Now().Add(30 * time.Second))
	oob := make([]byte, 1024)
	n, oobn, _, _, err := conn.ReadMsgUnix(make([]byte, 10), oob)
	if err != nil || n != 0 || oobn == 0 {
		t.Errorf("%d bytes and %d beside them, %v; want a file", n, oobn, err)
	}
}

func TestFollow(t *testing.T) {
	if !withJournal(t) {
		return
	}
	conn := listen(t)
	file := filepath.Join(t.TempDir(), "k3s.log")
	write := func(flags int, text string) {
		t.Helper()
		f, err := os.OpenFile(file, flags|os.O_CREATE|os.O_WRONLY, 0o600)
		if err == nil {
			_, err = f.WriteString(text)
		}
		if err != nil {
			t.Fatal(err)
		}
		_ = f.Close()
	}
	write(os.O_APPEND, "of yesterday\n")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Follow(ctx, file, "k3s") }()
	time.Sleep(200 * time.Millisecond)
	want := func(message, priority string) {
		t.Helper()
		got := read(t, conn)
		if got["MESSAGE"] != message || got["PRIORITY"] != priority || got["SYSLOG_IDENTIFIER"] != "k3s" || got["GPULAB_COMPONENT"] != "k3s" {
			t.Errorf("%v, want %q with priority %s", got, message, priority)
		}
	}
	write(os.O_APPEND, "time=\"2026-03-02\" level=info msg=\"Starting k3s\"\n\nW0302 10:20:30.123456 slow\nE0302 10:20:30.1 half a")
	want(`time="2026-03-02" level=info msg="Starting k3s"`, "6")
	want("W0302 10:20:30.123456 slow", "4")
	write(os.O_APPEND, " line\n")
	want("E0302 10:20:30.1 half a line", "3")
	write(os.O_TRUNC, "I0302 10:20:31.1 emptied\n") // as one that has grown too large is
	want("I0302 10:20:31.1 emptied", "6")
	if err := os.Rename(file, file+".1"); err != nil {
		t.Fatal(err)
	}
	write(os.O_APPEND, "level=fatal msg=bye\n")
	want("level=fatal msg=bye", "2")
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// Without a journal the log is text, as it has always been, with the part of
// gpulab it is from.
func TestText(t *testing.T) {
	t.Setenv("JOURNAL_STREAM", "")
	var out bytes.Buffer
	log := slog.New(Handler(&out))
	log.With("a", 1).Warn("slow", "err", errors.New("no room"))
	if got := out.String(); !strings.HasSuffix(got, ` level=WARN msg=slow a=1 err="no room" component=journal`+"\n") {
		t.Errorf("%q", got)
	}
	if err := Follow(t.Context(), "/nowhere", "k3s"); err != nil {
		t.Error(err)
	}
}
