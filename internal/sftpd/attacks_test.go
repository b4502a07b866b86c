package sftpd

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/gpulab/gpulab/internal/users"
)

// There is no way out of one's own places: what is elsewhere is not there at all.
func TestNoWayOut(t *testing.T) {
	w := newWorld(t, Limits{})
	ada, eve := w.person("ada"), w.person("eve")
	secret := filepath.Join(w.home(ada), "secret")
	if err := errors.Join(os.WriteFile(secret, []byte("ada's"), 0o666), os.Chmod(w.home(ada), 0o777)); err != nil {
		t.Fatal(err)
	}
	// Links that a notebook left in eve's home.
	for name, to := range map[string]string{"shadow": "/etc/shadow", "up": "../../../../etc/shadow", "other": secret, "proc": "/proc/1/root/etc/shadow",
		"self": "/proc/self/root", "dev": "/dev/mem", "home": filepath.Dir(w.home(ada)), "root": "/"} {
		if err := os.Symlink(to, filepath.Join(w.home(eve), name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo(filepath.Join(w.home(eve), "pipe"), 0o666); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mknod(filepath.Join(w.home(eve), "mem"), syscall.S_IFCHR|0o666, 1<<8|1); err != nil {
		t.Fatal(err)
	}
	c := w.files("eve")
	for _, path := range []string{"/etc/shadow", "/etc/passwd", "../../etc/shadow", "../../../../../../etc/shadow", "/home/ada", "/home/ada/secret", secret,
		"/proc", "/proc/self/root/etc/shadow", "/dev/null", "/sys", "/root", "/tmp", "/var/lib/gpulab", w.dir, "/home/eve/../ada", "//etc//shadow",
		"shadow", "up", "other", "proc", "self/etc/shadow", "self/proc", "dev", "home", "home/1/secret", "root/etc", "root/proc/1", "..\\..\\etc\\shadow", "/..", "/../etc/shadow"} {
		if text, err := read(c, path); err == nil {
			t.Errorf("%s can be read: %.40q", path, text)
		}
		if _, err := c.Stat(path); err == nil && path != "/.." {
			t.Errorf("%s is there", path)
		}
		if err := write(c, path, "x"); err == nil && !strings.HasPrefix(path, "..\\") {
			t.Errorf("%s can be written", path)
		}
		if err := c.Link(path, "stolen"); err == nil && !strings.Contains("shadow up other proc dev home root ..\\..\\etc\\shadow", path) { // links to the links themselves
			t.Errorf("%s can be linked to", path)
		}
		_ = c.Remove("stolen")
	}
	if list, err := c.ReadDir("/"); err != nil || len(list) != 1 || list[0].Name() != "home" {
		t.Errorf("the root holds %v, %v", list, err)
	}
	if list, err := c.ReadDir("/home"); err != nil || len(list) != 1 || list[0].Name() != "eve" {
		t.Errorf("/home holds %v, %v", list, err)
	}
	if text, err := os.ReadFile(secret); err != nil || string(text) != "ada's" {
		t.Errorf("ada's file is %q, %v", text, err)
	}
	// A pipe or device in the home is nothing to open, and nobody waits for it.
	began := time.Now()
	for _, path := range []string{"pipe", "mem"} {
		if _, err := read(c, path); err == nil {
			t.Errorf("%s can be read", path)
		}
		if err := write(c, path, "x"); err == nil {
			t.Errorf("%s can be written", path)
		}
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("a pipe held the session up for %s", took)
	}
	// New links lead nowhere either.
	if err := c.Symlink("/etc/shadow", "new"); err != nil {
		t.Error(err)
	}
	if _, err := read(c, "new"); err == nil {
		t.Error("a new link leads out")
	}
}

// Another's file on the same disk cannot be taken along by a hard link or a rename out of a shared folder.
func TestNoHardLinksOfOthers(t *testing.T) {
	w := newWorld(t, Limits{Recheck: time.Hour})
	ada, eve := w.person("ada"), w.person("eve")
	class := w.folder("folders/1", 0, 60010, 0o770|os.ModeSetgid)
	for _, u := range []users.User{ada, eve} {
		w.share(u, Place{Name: "class", Path: class, GID: 60010})
	}
	a := w.files("ada")
	if err := errors.Join(write(a, "shared/class/mine", "ada's"), a.Chmod("shared/class/mine", 0o600)); err != nil {
		t.Fatal(err)
	}
	e := w.files("eve")
	for what, err := range map[string]error{
		"link":               e.Link("shared/class/mine", "shared/class/eves"),
		"link into the home": e.Link("shared/class/mine", "eves"),
		"move into the home": e.PosixRename("shared/class/mine", "eves"),
		"chmod":              e.Chmod("shared/class/mine", 0o666),
		"chown":              e.Chown("shared/class/mine", eve.UID, eve.UID),
	} {
		if err == nil {
			t.Errorf("%s works with another's file", what)
		}
	}
	if _, err := read(e, "shared/class/mine"); err == nil {
		t.Error("eve reads it")
	}
}

// SSH is for files alone.
func TestNothingButFiles(t *testing.T) {
	w := newWorld(t, Limits{})
	ada := w.person("ada")
	w.sshKey(ada)
	for _, command := range [][]string{{"id"}, {"-tt", "id"}, {}, {"-s", "netconf"}, {"-A", "id"}, {"-X", "id"}} {
		args := append([]string{"-T"}, "ada@127.0.0.1")
		if len(command) == 2 {
			args = []string{command[0], "ada@127.0.0.1", command[1]}
		} else {
			args = append(args, command...)
		}
		if out, code := w.openSSH("", "ssh", args...); code == 0 || strings.Contains(out, "uid=") {
			t.Errorf("ssh %v: code %d\n%s", args, code, out)
		} else if strings.Contains(out, "panic") {
			t.Errorf("ssh %v:\n%s", args, out)
		}
	}
	listening, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listening.Close()
	if out, code := w.openSSH("", "ssh", "-o", "ExitOnForwardFailure=yes", "-R", "127.0.0.1:0:127.0.0.1:1", "-N", "ada@127.0.0.1"); code == 0 {
		t.Errorf("a remote forward was taken:\n%s", out)
	}
	if out, _ := w.openSSH("", "ssh", "-W", listening.Addr().String(), "ada@127.0.0.1"); !strings.Contains(out, "prohibited") {
		t.Errorf("a direct forward was taken:\n%s", out)
	}
	c := w.connect("ada")
	if conn, err := c.Dial("tcp", listening.Addr().String()); err == nil {
		_ = conn.Close()
		t.Error("a connection was forwarded")
	}
	if conn, err := c.Dial("unix", "/run/gpulab/gpulab.sock"); err == nil {
		_ = conn.Close()
		t.Error("a connection to a socket was forwarded")
	}
	if ln, err := c.Listen("tcp", "127.0.0.1:0"); err == nil {
		_ = ln.Close()
		t.Error("a port was opened")
	}
	for _, kind := range []string{"x11", "auth-agent@openssh.com", "tun@openssh.com", "direct-streamlocal@openssh.com", ""} {
		if ch, _, err := c.OpenChannel(kind, nil); err == nil {
			_ = ch.Close()
			t.Errorf("a channel %q was opened", kind)
		}
	}
	s, err := c.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	for name, payload := range map[string][]byte{
		"exec": ssh.Marshal(struct{ Command string }{"id"}), "shell": nil, "pty-req": ssh.Marshal(struct{ Term string }{"xterm"}), "auth-agent-req@openssh.com": nil,
		"x11-req": nil, "env": ssh.Marshal(struct{ Name, Value string }{"LD_PRELOAD", "/home/ada/evil.so"}),
		"subsystem": ssh.Marshal(struct{ Name string }{"sftp\x00"}), "": nil,
	} {
		if ok, err := s.SendRequest(name, true, payload); err != nil || ok {
			t.Errorf("%q was granted: %v %v", name, ok, err)
		}
	}
	// Broken payloads, and a second subsystem in one session.
	for _, payload := range [][]byte{nil, {0xff, 0xff, 0xff, 0xff}, {0, 0, 0, 9, 's'}} {
		if ok, err := s.SendRequest("subsystem", true, payload); err != nil || ok {
			t.Errorf("subsystem %x was granted: %v %v", payload, ok, err)
		}
	}
	sftp := ssh.Marshal(struct{ Name string }{"sftp"})
	if ok, err := s.SendRequest("subsystem", true, sftp); err != nil || !ok {
		t.Fatalf("sftp: %v %v", ok, err)
	}
	if ok, err := s.SendRequest("subsystem", true, sftp); err == nil && ok {
		t.Error("a second subsystem in one session")
	}
}

// Guessing is slowed down, refused and recorded, for names that there are and that there are not.
func TestBruteForce(t *testing.T) {
	w := newWorld(t, Limits{})
	w.person("ada")
	for i := range 12 {
		name := []string{"ada", "root", "nobody1"}[i%3]
		if c, err := w.dial(name, "guess"); err == nil {
			_ = c.Close()
			t.Fatalf("%s with a guess", name)
		}
	}
	for range 4 {
		if c, err := w.dial("ada", "guess"); err == nil {
			_ = c.Close()
			t.Fatal("in with a guess")
		}
	}
	if c, err := w.dial("ada", password); err == nil {
		_ = c.Close()
		t.Error("the right password is taken at once after many wrong ones")
	}
	if n, _, err := w.people.AuditLog().FailedSignIns(t.Context(), "ada", time.Time{}); err != nil || n == 0 {
		t.Errorf("%d failed sign-ins are recorded, %v", n, err)
	}
	// One connection has only so many tries.
	tries := 0
	_, err := ssh.Dial("tcp", w.address, &ssh.ClientConfig{User: "eve", HostKeyCallback: ssh.FixedHostKey(w.hostKey.PublicKey()),
		Auth: []ssh.AuthMethod{ssh.RetryableAuthMethod(ssh.PasswordCallback(func() (string, error) { tries++; return "guess", nil }), 1000)}})
	if err == nil || tries > maxTries {
		t.Errorf("%d tries in one connection: %v", tries, err)
	}
}

// Thousands of connections that say nothing keep nobody out, and are closed.
func TestManyConnections(t *testing.T) {
	w := newWorld(t, Limits{SignIn: 3 * time.Second})
	w.person("ada")
	var mu sync.Mutex
	var held []net.Conn
	defer func() {
		for _, c := range held {
			_ = c.Close()
		}
	}()
	var dialing sync.WaitGroup
	for range 20 {
		dialing.Go(func() {
			for range 150 {
				c, err := net.DialTimeout("tcp", w.address, 2*time.Second)
				if err != nil {
					continue
				}
				mu.Lock()
				held = append(held, c)
				mu.Unlock()
			}
		})
	}
	dialing.Wait()
	if len(held) < 2000 {
		t.Fatalf("only %d connections", len(held))
	}
	// From another address of the same machine.
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}, Timeout: 5 * time.Second}
	conn, err := dialer.Dial("tcp", w.address)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	c, _, _, err := ssh.NewClientConn(conn, w.address, &ssh.ClientConfig{User: "ada", Auth: []ssh.AuthMethod{ssh.Password(password)}, HostKeyCallback: ssh.FixedHostKey(w.hostKey.PublicKey())})
	if err != nil {
		t.Fatalf("somebody else is kept out: %v", err)
	}
	defer c.Close()
	t.Logf("signing in beside %d connections took %s", len(held), time.Since(began).Round(time.Millisecond))
	// All but those within the limit were closed at once, and these when their time was over.
	deadline := time.Now().Add(10 * time.Second)
	for _, c := range held {
		_ = c.SetReadDeadline(deadline)
		if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal("a connection that says nothing stays open")
		}
	}
}

// One that sends a byte now and then does not stay either.
func TestSlowHandshake(t *testing.T) {
	w := newWorld(t, Limits{SignIn: time.Second})
	c, err := net.Dial("tcp", w.address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	closed := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, c)
		close(closed)
	}()
	began := time.Now()
	for _, b := range []byte("SSH-2.0-" + strings.Repeat("x", 200) + "\r\n") {
		if _, err := c.Write([]byte{b}); err != nil {
			break
		}
		select {
		case <-closed:
			if took := time.Since(began); took > 3*time.Second {
				t.Errorf("closed after %s", took)
			}
			return
		case <-time.After(50 * time.Millisecond):
		}
	}
	t.Error("a handshake of a byte at a time is not ended")
}

// One person has only so many connections, and hears so; others have theirs.
func TestConnectionsOfOnePerson(t *testing.T) {
	w := newWorld(t, Limits{OpenEach: 2})
	w.person("ada")
	w.person("ben")
	w.files("ada")
	first := w.connect("ada")
	third := w.connect("ada")
	if _, err := third.NewSession(); err == nil || !strings.Contains(err.Error(), "You have 2 connections") {
		t.Errorf("a third connection: %v", err)
	}
	w.files("ben")
	_ = first.Close()
	eventually(t, "there is room again", func() bool {
		c, err := w.dial("ada", password)
		if err != nil {
			return false
		}
		defer c.Close()
		s, err := c.NewSession()
		if err == nil {
			_ = s.Close()
		}
		return err == nil
	})
}

// Whatever takes somebody's access away ends what they have open.
func TestAccessEnds(t *testing.T) {
	w := newWorld(t, Limits{})
	admin := w.person("root-admin")
	if err := w.people.Change(t.Context(), admin.ID, users.Change{Role: new(users.RoleAdmin)}); err != nil {
		t.Fatal(err)
	}
	token := func(u users.User) (string, users.Token) {
		secret, made, err := w.people.CreateToken(t.Context(), u.ID, users.NewToken{Name: "x", Scope: users.ScopeFiles, Days: 7})
		if err != nil {
			t.Fatal(err)
		}
		return secret, made
	}
	handles := map[string]string{"suspended": "sue", "removed": "rem", "role": "rol", "signed out": "out", "password": "pas", "token": "tok", "place": "pla"}
	for what, handle := range handles {
		t.Run(what, func(t *testing.T) {
			u := w.person(handle)
			secret, made := token(u)
			login := password
			if what == "token" {
				login = secret
			}
			if what == "place" {
				w.share(u, Place{Name: "class", Path: w.folder("folders/"+handle, 0, 0, 0o777)})
			}
			conn, err := w.dial(handle, login)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			session, err := conn.NewSession()
			if err != nil {
				t.Fatal(err)
			}
			if err := session.RequestSubsystem("sftp"); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the session runs", func() bool { return children(t) == 1 })
			switch what {
			case "suspended":
				err = w.people.Suspend(t.Context(), u.ID)
			case "removed":
				err = w.people.Remove(t.Context(), u.ID)
			case "role":
				err = w.people.Change(t.Context(), u.ID, users.Change{Role: new(users.RoleLead)})
			case "signed out":
				_, err = w.people.EndOtherSessions(t.Context(), u.ID, "")
			case "password":
				err = w.people.SetPassword(t.Context(), u.ID, "violet tractor 92 hums")
			case "token":
				_, err = w.people.RevokeToken(t.Context(), u.ID, made.ID)
			case "place":
				w.mu.Lock()
				delete(w.shared, u.ID)
				w.mu.Unlock()
			}
			if err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			eventually(t, "it has ended", func() bool { return children(t) == 0 && (what == "place" || w.server.Count() == 0) })
			if took := time.Since(began); took > 2*time.Second {
				t.Errorf("it ended after %s", took)
			}
		})
	}
}

// What a person has open is theirs to see and to end.
func TestConnections(t *testing.T) {
	w := newWorld(t, Limits{})
	ada, eve := w.person("ada"), w.person("eve")
	w.files("ada")
	list := w.server.Connections(ada.ID)
	if len(list) != 1 || list[0].Remote != "127.0.0.1" || list[0].Client != "Go" || list[0].Way != "the password" || time.Since(list[0].Since) > time.Minute {
		t.Errorf("%+v", list)
	}
	if n := len(w.server.Connections(eve.ID)); n != 0 {
		t.Errorf("eve has %d", n)
	}
	if n := w.server.Close(eve.ID); n != 0 || w.server.Count() != 1 {
		t.Errorf("closing eve's closed %d", n)
	}
	if n := w.server.Close(ada.ID); n != 1 {
		t.Errorf("%d closed", n)
	}
	eventually(t, "it is closed", func() bool { return w.server.Count() == 0 && children(t) == 0 })
}
