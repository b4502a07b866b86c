package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestSnapshot makes one thing of every kind and looks whether it is seen, and
// that it is not once it has been taken away.
func TestSnapshot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("test hosts need root")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	l := New(t)
	before := l.Snapshot(ctx)

	l.MustRun(ctx, "sh", "-ec", `
		echo x >/etc/gl-file; echo y >>/etc/hostname; mkdir -p /var/lib/gpulab/gl-data
		mount -t tmpfs gl /mnt; mkdir /run/gl-run
		ip link add gl-dummy type bridge; ip address add 192.0.2.1/24 dev gl-dummy; ip link set gl-dummy up
		iptables -N GL-CHAIN; iptables -A INPUT -j GL-CHAIN; ip6tables -N GL-CHAIN
		mkdir /sys/fs/cgroup/*/gl-group 2>/dev/null || mkdir /sys/fs/cgroup/gl-group
		ipset create gl-set hash:ip`)
	daemon := l.Command(ctx, "python3", "-c", "import time; print(flush=True); time.sleep(60)")
	ready, err := daemon.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := ready.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}

	added := before.Added(l.Snapshot(ctx))
	for _, want := range []string{
		"files: /etc/gl-file", "files: /etc/hostname (changed)", "files: /var/lib/gpulab/gl-data",
		"mounts: /mnt /", "run files: /run/gl-run", "interfaces: gl-dummy:", "addresses: gl-dummy 192.0.2.1/24",
		"iptables: :GL-CHAIN -", "iptables: -A INPUT -j GL-CHAIN", "ip6tables: :GL-CHAIN -", "ipsets: gl-set",
		"/gl-group", "processes: python3",
	} {
		if !slices.ContainsFunc(added, func(line string) bool { return strings.Contains(line, want) }) {
			t.Errorf("not seen: %s", want)
		}
	}

	_ = daemon.Cancel()
	_ = daemon.Wait()
	l.MustRun(ctx, "sh", "-ec", `
		rm -r /etc/gl-file /var/lib/gpulab/gl-data /run/gl-run; sed -i '/^y$/d' /etc/hostname
		umount /mnt; ip link del gl-dummy; ipset destroy gl-set
		iptables -D INPUT -j GL-CHAIN; iptables -X GL-CHAIN; ip6tables -X GL-CHAIN
		rmdir /sys/fs/cgroup/*/gl-group 2>/dev/null || rmdir /sys/fs/cgroup/gl-group`)
	if left := before.Added(l.Snapshot(ctx)); len(left) > 0 {
		t.Errorf("seen although it was taken away:\n%s", strings.Join(left, "\n"))
	}
}

// TestHost checks what tests rely on: the host is apart from this machine in
// every way, and its changes are not this machine's.
func TestHost(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("test hosts need root")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	l := New(t)

	if got := l.MustRun(ctx, "ip", "-brief", "address", "show", "eth0"); !strings.Contains(got, Address+"/24") {
		t.Errorf("eth0 is %q, want the address %s", got, Address)
	}
	if got := l.MustRun(ctx, "cat", "/proc/1/comm"); got != "bash\n" {
		t.Errorf("process 1 is %q, want the host's own", got)
	}
	for line := range strings.Lines(l.MustRun(ctx, "cat", "/proc/self/cgroup")) {
		if strings.Contains(line, "..") {
			t.Errorf("a command runs outside of the host's control groups: %s", line)
		}
	}
	l.MustRun(ctx, "sh", "-c", "echo x >/etc/gl-test && mkdir /usr/share/gl-test")
	for _, path := range []string{"/etc/gl-test", "/usr/share/gl-test"} {
		if _, err := os.Stat(path); err == nil {
			t.Errorf("the host wrote %s on this machine", path)
		}
		if _, err := os.Stat(l.Path(path)); err != nil {
			t.Errorf("the host's own file is not seen: %v", err)
		}
	}
	if code := l.Run(ctx, "sh", "-c", "exit 7").Code; code != 7 {
		t.Errorf("exit code %d, want 7", code)
	}

	l.WriteFile("/srv/www/index.html", "hello")
	server := l.Command(ctx, "python3", "-m", "http.server", "--directory", "/srv/www", "80")
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	client := l.HTTPClient(nil)
	for {
		response, err := client.Get("http://" + Address + "/")
		if err == nil && response.StatusCode == http.StatusOK {
			body, _ := io.ReadAll(response.Body)
			response.Body.Close()
			if string(body) != "hello" {
				t.Errorf("got %q from the host", body)
			}
			break
		}
		if ctx.Err() != nil {
			t.Fatalf("the host's server did not answer: %v", err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// A test that is killed while its host begins reads nothing and says nothing any more. Nothing of the host is left.
func TestHostOfAKilledTest(t *testing.T) {
	name := fmt.Sprintf("gl-%d-killed", os.Getpid())
	dir := filepath.Join("/var/tmp", name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	script := filepath.Join(dir, "host.sh")
	if err := os.WriteFile(script, []byte(hostScript), 0o755); err != nil {
		t.Fatal(err)
	}
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("bash", script, name, dir, programs(t))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Stdout, cmd.Stderr = in, in
	if err := errors.Join(out.Close(), cmd.Start(), in.Close()); err != nil {
		t.Fatal(err)
	}
	ended := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
	_ = cmd.Wait()
	if !ended.Stop() {
		t.Error("the host's script does not end")
	}
	if left, err := exec.Command("pgrep", "-af", name).Output(); err == nil {
		t.Errorf("processes are left:\n%s", left)
	}
	groups, _ := filepath.Glob("/sys/fs/cgroup/*/" + name)
	for _, path := range append(groups, dir) {
		if _, err := os.Stat(path); err == nil {
			t.Errorf("%s is left", path)
		}
	}
}
