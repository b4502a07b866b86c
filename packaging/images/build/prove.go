package main

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// scripts are run inside the images they are named after.
//
//go:embed proofs
var scripts embed.FS

// proofs try an image in an unpacked root of it, by the image's name.
var proofs = map[string]func(context.Context, *builder, builtImage, root) error{
	"notebook":             proveNotebook,
	"hub":                  proveHub,
	"pause":                provePause,
	"coredns":              proveCoreDNS,
	"kueue":                proveKueue,
	"packages":             provePackages,
	"nvidia-device-plugin": proveNVIDIA,
}

// prove unpacks an image and runs its proof.
func (b *builder) prove(ctx context.Context, img builtImage) error {
	proof, ok := proofs[img.spec.name]
	if !ok {
		return errors.New("nothing proves that it works")
	}
	r, err := b.root(img.layers)
	if err != nil {
		return err
	}
	defer os.RemoveAll(r.dir)
	for _, mountpoint := range []string{"proc", "dev", "tmp", "run"} {
		if err := os.MkdirAll(filepath.Join(r.dir, mountpoint), 0o755); err != nil {
			return err
		}
	}
	return proof(ctx, b, img, r)
}

// inImage runs a program as the image's entrypoint would, without a network.
func inImage(ctx context.Context, img builtImage, r root, call invocation) (string, error) {
	config, err := img.img.ConfigFile()
	if err != nil {
		return "", err
	}
	var log bytes.Buffer
	call.log = &log
	call.env = append(append([]string{}, config.Config.Env...), call.env...)
	if call.user == "" {
		call.user = config.Config.User
	}
	if err := r.run(ctx, call); err != nil {
		lines := strings.Split(strings.TrimSpace(log.String()), "\n")
		return "", fmt.Errorf("%s: %w\n    %s", call.args[0], err, strings.Join(lines[max(0, len(lines)-15):], "\n    "))
	}
	return log.String(), nil
}

// scriptDir writes the proofs' scripts and a wheel to install into a folder
// that everybody may read.
func (b *builder) scriptDir() (string, error) {
	dir, err := b.cache.temp("proof")
	if err != nil {
		return "", err
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return "", err
	}
	entries, err := scripts.ReadDir("proofs")
	if err != nil {
		return "", err
	}
	for _, e := range entries {
		data, err := scripts.ReadFile("proofs/" + e.Name())
		if err != nil {
			return "", err
		}
		if err := os.WriteFile(filepath.Join(dir, e.Name()), data, 0o644); err != nil {
			return "", err
		}
	}
	return dir, writeWheel(dir)
}

// proveNotebook is a person's two sessions: one home, two containers, a user ID
// that the image knows nothing of.
func proveNotebook(ctx context.Context, b *builder, img builtImage, r root) error {
	dir, err := b.scriptDir()
	if err != nil {
		return err
	}
	home, err := b.cache.temp("home")
	if err != nil {
		return err
	}
	if err := os.Chown(home, 20001, 20001); err != nil {
		return err
	}
	config, err := img.img.ConfigFile()
	if err != nil {
		return err
	}
	for _, session := range []string{"first", "again"} {
		_, err := inImage(ctx, img, r, invocation{
			args: append(append([]string{}, config.Config.Entrypoint...), "/bin/bash", "/proof/notebook.sh", session),
			env:  []string{"HOME=/home/alice", "JUPYTERHUB_USER=alice", "GPULAB_USER_NAME=Alice \"A\" Liddell", "GPULAB_USER_EMAIL=alice@example.org"},
			user: "20001:20001",
			bind: []bind{{from: home, to: "/home/alice", write: true}, {from: dir, to: "/proof"}},
		})
		if err != nil {
			return fmt.Errorf("%s session: %w", session, err)
		}
	}
	return nil
}

func proveHub(ctx context.Context, b *builder, img builtImage, r root) error {
	dir, err := b.scriptDir()
	if err != nil {
		return err
	}
	_, err = inImage(ctx, img, r, invocation{args: []string{"/bin/sh", "/proof/hub.sh"}, bind: []bind{{from: dir, to: "/proof"}}})
	return err
}

// provePause starts it and asks it to end, as a kubelet does.
func provePause(ctx context.Context, _ *builder, _ builtImage, r root) error {
	cmd := exec.CommandContext(ctx, filepath.Join(r.dir, "pause"))
	if err := cmd.Start(); err != nil {
		return err
	}
	time.Sleep(200 * time.Millisecond)
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("it did not stay: %w", err)
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("asked to end: %w", err)
	}
	return nil
}

// provePackages asks a running cache for a page that another index has.
func provePackages(ctx context.Context, _ *builder, _ builtImage, r root) error {
	const page = "a page"
	index := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, page) }))
	defer index.Close()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	address := listener.Addr().String()
	listener.Close()
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	var log bytes.Buffer
	cmd := exec.CommandContext(ctx, filepath.Join(r.dir, "packages"), "-listen", address, "-dir", "/tmp", "-index", index.URL+"/simple", "-models-listen", "127.0.0.1:0", "-models-dir", "/tmp")
	cmd.Stdout, cmd.Stderr = &log, &log
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65532, Gid: 65532}}
	cmd.SysProcAttr.Chroot, cmd.Path, cmd.Dir = r.dir, "/packages", "/"
	if err := cmd.Start(); err != nil {
		return err
	}
	defer func() { cancel(); _ = cmd.Wait() }()
	for {
		response, err := http.Get("http://" + address + "/simple/proof/")
		if err == nil {
			body, err := io.ReadAll(response.Body)
			response.Body.Close()
			if err == nil && string(body) == page {
				return nil
			}
			return errors.Join(fmt.Errorf("the cache answered %s %q", response.Status, body), err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the cache does not answer: %w\n    %s", err, log.String())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// proveCoreDNS asks a running one for a name that only its configuration knows.
func proveCoreDNS(ctx context.Context, _ *builder, _ builtImage, r root) error {
	listener, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	address := listener.LocalAddr().String()
	listener.Close()
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	var log bytes.Buffer
	cmd := exec.CommandContext(ctx, filepath.Join(r.dir, "coredns"), "-conf", "stdin")
	cmd.Stdin = strings.NewReader(".:" + port + " {\n bind 127.0.0.1\n errors\n cache 30\n loadbalance\n hosts {\n  192.0.2.7 proof.gpulab\n }\n}\n")
	cmd.Stdout, cmd.Stderr = &log, &log
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65532, Gid: 65532}}
	// The unpacked root lies below a folder that only root may enter.
	cmd.SysProcAttr.Chroot, cmd.Path, cmd.Dir = r.dir, "/coredns", "/"
	if err := cmd.Start(); err != nil {
		return err
	}
	resolver := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", address)
	}}
	for {
		var answers []string
		if answers, err = resolver.LookupHost(ctx, "proof.gpulab"); err == nil && len(answers) == 1 && answers[0] == "192.0.2.7" {
			break
		}
		if ctx.Err() != nil {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	if stopErr := cmd.Process.Kill(); stopErr != nil {
		return stopErr
	}
	_ = cmd.Wait() // killed, and that is all it can say
	if err != nil {
		return fmt.Errorf("no answer: %w: %s", err, log.String())
	}
	return nil
}

// proveKueue has it list its flags: without a cluster it can do no more.
func proveKueue(ctx context.Context, _ *builder, img builtImage, r root) error {
	said, err := inImage(ctx, img, r, invocation{args: []string{"/manager", "--help"}})
	if err == nil && !strings.Contains(said, "visibility-server-port") {
		err = fmt.Errorf("it knows nothing of the line's order: %q", said)
	}
	return err
}

// proveNVIDIA starts each program where there is neither a GPU nor a driver:
// the dynamic linker must be content with the image alone. Links of Debian's driver
// have to lead on below the machine's root.
func proveNVIDIA(ctx context.Context, _ *builder, img builtImage, r root) error {
	for _, program := range []string{"nvidia-device-plugin", "gpu-feature-discovery", "config-manager", "mps-control-daemon"} {
		if _, err := inImage(ctx, img, r, invocation{args: []string{"/usr/bin/" + program, "--help"}}); err != nil {
			return err
		}
	}
	for _, folder := range []string{"etc/alternatives", "usr/lib/nvidia", "usr/lib/x86_64-linux-gnu/nvidia"} {
		if to, err := os.Readlink(filepath.Join(r.dir, folder)); err != nil || to != "/driver-root/"+folder {
			return fmt.Errorf("/%s leads to %q: %w", folder, to, err)
		}
	}
	return nil
}

// writeWheel makes a small Python package with a command, so that installing one
// can be tried without a network.
func writeWheel(dir string) error {
	const info = "gpulab_proof-1.0.dist-info/"
	files := []struct{ name, content string }{
		{"gpulab_proof.py", "def main():\n    print('proven')\n"},
		{info + "METADATA", "Metadata-Version: 2.1\nName: gpulab-proof\nVersion: 1.0\n"},
		{info + "WHEEL", "Wheel-Version: 1.0\nGenerator: gpulab\nRoot-Is-Purelib: true\nTag: py3-none-any\n"},
		{info + "entry_points.txt", "[console_scripts]\ngpulab-proof = gpulab_proof:main\n"},
	}
	var record strings.Builder
	for _, f := range files {
		sum := sha256.Sum256([]byte(f.content))
		fmt.Fprintf(&record, "%s,sha256=%s,%d\n", f.name, base64.RawURLEncoding.EncodeToString(sum[:]), len(f.content))
	}
	record.WriteString(info + "RECORD,,\n")
	files = append(files, struct{ name, content string }{info + "RECORD", record.String()})

	var data bytes.Buffer
	archive := zip.NewWriter(&data)
	for _, f := range files {
		w, err := archive.Create(f.name)
		if err != nil {
			return err
		}
		if _, err := w.Write([]byte(f.content)); err != nil {
			return err
		}
	}
	if err := archive.Close(); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "gpulab_proof-1.0-py3-none-any.whl"), data.Bytes(), 0o644)
}
