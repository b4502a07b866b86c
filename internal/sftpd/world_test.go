package sftpd

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pkg/sftp"
	"golang.org/x/crypto/ssh"

	"github.com/gpulab/gpulab/internal/store"
	"github.com/gpulab/gpulab/internal/users"
)

// childProgram serves sessions; it is built without cgo, as gpulab is.
var childProgram string

func TestMain(m *testing.M) {
	if os.Getenv("SFTPD_TEST_SERVER") != "" {
		os.Exit(serveToBeKilled())
	}
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "gpulab-sftpd-")
		if err == nil {
			defer func() { _ = os.RemoveAll(dir) }()
			childProgram = filepath.Join(dir, "child")
			build := exec.Command("go", "build", "-o", childProgram, "./testdata/child")
			build.Env = append(os.Environ(), "CGO_ENABLED=0")
			build.Stderr = os.Stderr
			err = build.Run()
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return m.Run()
	}())
}

const password = "violet tractor 91 hums"

// world is a server over real accounts, with homes on disk.
type world struct {
	t       testing.TB
	dir     string
	people  *users.Service
	server  *Server
	address string
	hostKey ssh.Signer

	mu     sync.Mutex
	shared map[int64][]Place // beside the home
	full   bool
	log    *logged
}

// logged is what the server logs.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func newWorld(t testing.TB, limits Limits) *world {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("sessions run under the UIDs of their people: run the test as root")
	}
	dir := t.TempDir()
	st, err := store.Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	w := &world{t: t, dir: dir, people: users.New(st.DB()), shared: map[int64][]Place{}, log: &logged{}}
	if w.hostKey, err = LoadHostKey(filepath.Join(dir, "tls", "ssh-host-key")); err != nil {
		t.Fatal(err)
	}
	if limits.Recheck == 0 {
		limits.Recheck = 100 * time.Millisecond
	}
	w.server, err = New(Config{Accounts: w.people, Places: w.places, HostKey: w.hostKey, Command: []string{childProgram}, Limits: limits,
		Log: slog.New(slog.NewTextHandler(w.log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.address = ln.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.server.Serve(ctx, ln) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("serve: %v", err)
			}
		case <-time.After(time.Minute):
			t.Error("the server does not end")
		}
		if said := w.log.String(); said != "" {
			t.Errorf("the server complains:\n%s", said)
		}
	})
	return w
}

// person makes an account with a home.
func (w *world) person(handle string) users.User {
	w.t.Helper()
	u, err := w.people.Create(w.t.Context(), users.NewUser{Handle: handle})
	if err == nil {
		err = w.people.SetPassword(w.t.Context(), u.ID, password)
	}
	if err == nil {
		err = os.MkdirAll(w.home(u), 0o700)
	}
	if err == nil {
		err = os.Chown(w.home(u), u.UID, u.UID)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return u
}

func (w *world) home(u users.User) string {
	return filepath.Join(w.dir, "homes", strconv.FormatInt(u.ID, 10))
}

func (w *world) places(_ context.Context, u users.User) ([]Place, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]Place{{Path: w.home(u), ReadOnly: w.full}}, w.shared[u.ID]...), nil
}

// share shows somebody a folder beside their home.
func (w *world) share(u users.User, p Place) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.shared[u.ID] = append(w.shared[u.ID], p)
}

// folder makes a folder on disk.
func (w *world) folder(name string, uid, gid int, mode os.FileMode) string {
	w.t.Helper()
	path := filepath.Join(w.dir, name)
	err := errors.Join(os.MkdirAll(path, 0o755), os.Chown(path, uid, gid))
	if err := errors.Join(err, os.Chmod(path, mode)); err != nil {
		w.t.Fatal(err)
	}
	return path
}

// dial signs in with Go's client.
func (w *world) dial(handle, secret string) (*ssh.Client, error) {
	return ssh.Dial("tcp", w.address, &ssh.ClientConfig{User: handle, Auth: []ssh.AuthMethod{ssh.Password(secret)},
		HostKeyCallback: ssh.FixedHostKey(w.hostKey.PublicKey()), Timeout: 10 * time.Second})
}

func (w *world) connect(handle string) *ssh.Client {
	w.t.Helper()
	c, err := w.dial(handle, password)
	if err != nil {
		w.t.Fatalf("%s: %v", handle, err)
	}
	w.t.Cleanup(func() { _ = c.Close() })
	return c
}

// files opens somebody's files.
func (w *world) files(handle string) *sftp.Client {
	w.t.Helper()
	c, err := sftp.NewClient(w.connect(handle))
	if err != nil {
		w.t.Fatalf("%s: %v", handle, err)
	}
	w.t.Cleanup(func() { _ = c.Close() })
	return c
}

// write puts a small file.
func write(c *sftp.Client, path, text string) error {
	f, err := c.Create(path)
	if err != nil {
		return err
	}
	_, err = io.WriteString(f, text)
	return errors.Join(err, f.Close())
}

func read(c *sftp.Client, path string) (string, error) {
	f, err := c.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(f)
	return string(text), err
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !condition(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("it is not so: %s", what)
		}
	}
}

// children counts the processes that run the program of sessions.
func children(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, d := range list {
		if exe, err := os.Readlink("/proc/" + d.Name() + "/exe"); err == nil && exe == childProgram {
			n++
		}
	}
	return n
}

// openSSH runs a program of Debian's openssh-client against the server, with the password or a key.
func (w *world) openSSH(stdin, program string, args ...string) (output string, code int) {
	w.t.Helper()
	path, err := exec.LookPath(program)
	if err != nil {
		w.t.Fatalf("%v; apt-get install openssh-client", err)
	}
	host, port, _ := net.SplitHostPort(w.address)
	known := filepath.Join(w.dir, "known_hosts")
	line := fmt.Sprintf("[%s]:%s %s", host, port, ssh.MarshalAuthorizedKey(w.hostKey.PublicKey()))
	ask := filepath.Join(w.dir, "askpass")
	err = errors.Join(os.WriteFile(known, []byte(line), 0o600), os.WriteFile(ask, []byte("#!/bin/sh\necho '"+password+"'\n"), 0o700))
	if err != nil {
		w.t.Fatal(err)
	}
	options := []string{"-F", "none", "-o", "Port=" + port, "-o", "UserKnownHostsFile=" + known, "-o", "StrictHostKeyChecking=yes",
		"-o", "NumberOfPasswordPrompts=1", "-o", "ConnectTimeout=10"}
	if _, err := os.Stat(filepath.Join(w.dir, "key")); err == nil {
		options = append(options, "-o", "IdentityFile="+filepath.Join(w.dir, "key"), "-o", "PasswordAuthentication=no")
	}
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, append(options, args...)...)
	cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=" + w.dir, "SSH_ASKPASS=" + ask, "SSH_ASKPASS_REQUIRE=force", "DISPLAY=none", "LANG=C.UTF-8"}
	cmd.Dir = w.dir
	cmd.Stdin = strings.NewReader(stdin)
	text, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		w.t.Fatalf("%s: %v\n%s", program, err, text)
	}
	return string(text), cmd.ProcessState.ExitCode()
}

// sshKey makes a key for openSSH and adds it to somebody's account.
func (w *world) sshKey(u users.User) users.SSHKey {
	w.t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		w.t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(private, "")
	if err != nil {
		w.t.Fatal(err)
	}
	signer, err := ssh.NewSignerFromKey(private)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(w.dir, "key"), pem.EncodeToMemory(block), 0o600); err != nil {
		w.t.Fatal(err)
	}
	key, err := w.people.AddSSHKey(w.t.Context(), u.ID, "laptop", string(ssh.MarshalAuthorizedKey(signer.PublicKey())))
	if err != nil {
		w.t.Fatal(err)
	}
	return key
}

// cutter passes connections on to the server and cuts each after so many bytes from the client.
func cutter(t *testing.T, to string, after int64) (address string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	go func() {
		for {
			client, err := ln.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", to)
			if err != nil {
				_ = client.Close()
				return
			}
			go func() { _, _ = io.Copy(client, server) }()
			go func() {
				_, _ = io.CopyN(server, client, after)
				// As a network that is gone: nothing is said, and nothing more comes.
				_ = client.(*net.TCPConn).SetLinger(0)
				_ = server.(*net.TCPConn).SetLinger(0)
				_ = client.Close()
				_ = server.Close()
			}()
		}
	}()
	return ln.Addr().String()
}

// openAccounts let everybody in as one person.
type openAccounts struct{ user users.User }

func (a openAccounts) SignInForFiles(context.Context, string, string, string) (users.FilesAccess, error) {
	return users.FilesAccess{User: a.user, Way: "the password"}, nil
}
func (openAccounts) KeyForFiles(context.Context, string, []byte) (bool, error) { return false, nil }
func (a openAccounts) SignInForFilesByKey(context.Context, string, []byte, string) (users.FilesAccess, error) {
	return users.FilesAccess{User: a.user}, nil
}
func (openAccounts) StillForFiles(context.Context, users.FilesAccess) error { return nil }
func (openAccounts) OnSessionsEnded(func(int64, string))                    {}
func (openAccounts) OnSignedOutElsewhere(func(int64))                       {}

// serveToBeKilled is a server in a process of its own: it prints its address.
func serveToBeKilled() int {
	key, err := LoadHostKey(os.Getenv("SFTPD_TEST_KEY"))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	home := os.Getenv("SFTPD_TEST_SERVER")
	server, err := New(Config{Accounts: openAccounts{users.User{ID: 1, Handle: "ada", UID: 20000}}, HostKey: key, Command: []string{os.Getenv("SFTPD_TEST_CHILD")},
		Places: func(context.Context, users.User) ([]Place, error) { return []Place{{Path: home}}, nil }})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println(ln.Addr())
	_ = server.Serve(context.Background(), ln)
	return 0
}

// killable starts such a server and returns its address.
func (w *world) killable(u users.User) (*exec.Cmd, string) {
	w.t.Helper()
	self, err := os.Executable()
	if err != nil {
		w.t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), "SFTPD_TEST_SERVER="+w.home(u), "SFTPD_TEST_KEY="+filepath.Join(w.dir, "tls", "ssh-host-key"), "SFTPD_TEST_CHILD="+childProgram)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		w.t.Fatal(err)
	}
	return cmd, strings.TrimSpace(line)
}
