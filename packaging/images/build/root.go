package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpulab/gpulab/packaging/gobuild"
)

// root is an unpacked stack of layers that programs can be run in.
type root struct{ dir string }

// bind makes a file or folder of this machine visible in a root.
type bind struct {
	from, to string // to is a path in the root
	write    bool
}

// invocation is one program run in a root.
type invocation struct {
	args []string
	env  []string // besides PATH, HOME and LANG; nothing else is inherited
	user string   // "uid:gid", or "" for root
	bind []bind
	// network gives it this machine's network, resolver and trusted CAs;
	// without it there is a loopback interface and nothing else.
	network bool
	log     io.Writer
}

// enter is the program that readies a root's mounts and runs something in it.
// It gets a mount and PID namespace of its own, so that nothing it mounts or
// starts outlives it, however it ends. $1 is the root, then triples FROM TO
// MODE, then "--", the program's environment, and the program.
const enter = `set -eu
root=$1; shift
mount -t proc proc "$root/proc"
mount -t tmpfs -o mode=1777 tmp "$root/tmp"
mount -t tmpfs -o mode=0755 run "$root/run"
mount -t tmpfs -o mode=0755 dev "$root/dev"
for d in null zero full random urandom tty; do : >"$root/dev/$d"; mount --bind "/dev/$d" "$root/dev/$d"; done
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t tmpfs -o mode=1777 shm "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666,mode=0620 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"; ln -s /proc/self/fd "$root/dev/fd"
while [ "$1" != -- ]; do
  if [ -d "$1" ]; then mkdir -p "$root$2"; else mkdir -p "$root${2%/*}"; [ -e "$root$2" ] || : >"$root$2"; fi
  mount --bind "$1" "$root$2"
  [ "$3" = write ] || mount -o remount,bind,ro "$root$2"
  shift 3
done
shift
cd /
exec env -i "$@"
`

// caBundle is where a root sees the CAs that this machine trusts for downloads.
const caBundle = "/run/build/ca.crt"

// run runs a program in r and fails with its exit status.
func (r root) run(ctx context.Context, call invocation) error {
	env := append([]string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME=/root", "LANG=C.UTF-8", "PYTHONHASHSEED=0",
		fmt.Sprintf("SOURCE_DATE_EPOCH=%d", epoch.Unix()),
	}, call.env...)
	args := []string{"--mount", "--pid", "--ipc", "--fork", "--kill-child", "--propagation", "private"}
	binds, script := call.bind, enter
	if call.network {
		networkBinds, networkEnv := network()
		binds = append(slices.Clone(binds), networkBinds...)
		env = append(env, networkEnv...)
	} else {
		args, script = append(args, "--net"), "ip link set lo up\n"+enter
	}
	args = append(args, "/bin/sh", "-c", script, "enter", r.dir)
	for _, b := range binds {
		mode := "read"
		if b.write {
			mode = "write"
		}
		args = append(args, b.from, b.to, mode)
	}
	chroot, err := exec.LookPath("chroot")
	if err != nil {
		return err
	}
	args = append(append(args, "--"), env...)
	args = append(args, chroot)
	if call.user != "" {
		args = append(args, "--userspec="+call.user, "--groups=")
	}
	args = append(append(args, r.dir), call.args...)
	return execute(ctx, call.log, os.Environ(), "unshare", args...)
}

// network is what a program in a root needs to reach a package index the way
// this machine does: resolver, CAs and the settings of pip.
func network() ([]bind, []string) {
	binds := []bind{{from: "/etc/resolv.conf", to: "/etc/resolv.conf"}}
	var env []string
	for _, file := range []string{os.Getenv("PIP_CERT"), os.Getenv("SSL_CERT_FILE"), "/etc/ssl/certs/ca-certificates.crt"} {
		if file == "" {
			continue
		}
		if _, err := os.Stat(file); err == nil {
			binds = append(binds, bind{from: file, to: caBundle})
			env = append(env, "PIP_CERT="+caBundle, "SSL_CERT_FILE="+caBundle)
			break
		}
	}
	for _, name := range []string{"PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_TRUSTED_HOST", "PIP_DEFAULT_TIMEOUT",
		"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"} {
		if value, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+value)
		}
	}
	return binds, env
}

// root unpacks layers into a new temporary folder; the caller removes it.
func (b *builder) root(layers []layer) (root, error) {
	dir, err := b.cache.temp("root")
	if err != nil {
		return root{}, err
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return root{}, err
	}
	for _, l := range layers {
		if err := unpack(l.path, dir); err != nil {
			os.RemoveAll(dir)
			return root{}, fmt.Errorf("unpacking %s: %w", l.Created, err)
		}
	}
	return root{dir: dir}, nil
}

// execute runs a program of this machine, its output in log. When ctx ends it is
// asked to stop, with everything it started.
func execute(ctx context.Context, log io.Writer, env []string, name string, args ...string) error {
	cmd := gobuild.Command(ctx, name, args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = env, log, log
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("%s: %w", filepath.Base(name), err)
	}
	return nil
}

// output runs a program of this machine and returns what it prints.
func output(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	out, err := cmd.Output()
	if err != nil {
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(string(exit.Stderr)))
		}
		return "", fmt.Errorf("%s: %w", name, err)
	}
	return strings.TrimSpace(string(out)), nil
}

func have(program string) bool {
	_, err := exec.LookPath(program)
	return err == nil
}
