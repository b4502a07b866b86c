package transfer

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pkg/sftp"
	"golang.org/x/crypto/ssh"
)

// testLab is an SFTP server over a folder, behind a network that can be cut.
type testLab struct {
	dir    string
	config *ssh.ServerConfig
	ln     net.Listener

	cutAfter atomic.Int64 // bytes from or to a client after which its connection is cut; 0 for never
	cuts     atomic.Int64 // that were made
	refuse   atomic.Bool  // sign-ins are refused

	mu   sync.Mutex
	open []net.Conn
}

func newTestLab(t *testing.T) *testLab {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.NewSignerFromKey(key)
	if err != nil {
		t.Fatal(err)
	}
	l := &testLab{dir: t.TempDir(), config: &ssh.ServerConfig{PasswordCallback: func(ssh.ConnMetadata, []byte) (*ssh.Permissions, error) { return nil, nil }}}
	l.config.AddHostKey(signer)
	t.Chdir(l.dir) // where relative paths begin for the server; with a folder of its own it changes the text of links
	if l.ln, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.ln.Close() })
	go func() {
		for {
			c, err := l.ln.Accept()
			if err != nil {
				return
			}
			l.mu.Lock()
			l.open = append(l.open, c)
			l.mu.Unlock()
			go l.serve(&cutConn{Conn: c, lab: l})
		}
	}()
	return l
}

// cutConn ends after some bytes.
type cutConn struct {
	net.Conn
	lab  *testLab
	seen atomic.Int64
}

func (c *cutConn) count(n int, err error) (int, error) {
	if after := c.lab.cutAfter.Load(); c.seen.Add(int64(n)) > after && after > 0 {
		if c.seen.Swap(-1<<60) > 0 {
			c.lab.cuts.Add(1)
		}
		_ = c.Conn.(*net.TCPConn).SetLinger(0)
		_ = c.Conn.Close()
		return 0, net.ErrClosed
	}
	return n, err
}

func (c *cutConn) Read(p []byte) (int, error)  { return c.count(c.Conn.Read(p)) }
func (c *cutConn) Write(p []byte) (int, error) { return c.count(c.Conn.Write(p)) }

func (l *testLab) serve(c net.Conn) {
	defer func() { _ = c.Close() }()
	conn, channels, requests, err := ssh.NewServerConn(c, l.config)
	if err != nil {
		return
	}
	defer func() { _ = conn.Close() }()
	go ssh.DiscardRequests(requests)
	for ch := range channels {
		channel, requests, err := ch.Accept()
		if err != nil {
			return
		}
		go func() {
			for r := range requests {
				var payload struct{ Name string }
				_ = ssh.Unmarshal(r.Payload, &payload)
				_ = r.Reply(payload.Name == "sftp" || payload.Name == sumsSubsystem, nil)
				switch payload.Name {
				case "sftp":
					server, err := sftp.NewServer(channel)
					if err == nil {
						go func() {
							_ = server.Serve()
							_ = channel.Close()
						}()
					}
				case sumsSubsystem:
					go l.sums(channel)
				}
			}
		}()
	}
}

func (l *testLab) sums(channel ssh.Channel) {
	requests := json.NewDecoder(channel)
	for {
		var r struct {
			Path  string
			Bytes []byte
		}
		if err := requests.Decode(&r); err != nil {
			_ = channel.Close()
			return
		}
		if r.Bytes != nil {
			r.Path = string(r.Bytes)
		}
		text, err := os.ReadFile(filepath.Join(l.dir, r.Path))
		if err != nil {
			fmt.Fprintf(channel, "{\"error\":%q}\n", err.Error())
			continue
		}
		fmt.Fprintf(channel, "{\"sha256\":\"%x\"}\n", sha256.Sum256(text))
	}
}

func (l *testLab) dial(ctx context.Context) (*ssh.Client, error) {
	if l.refuse.Load() {
		return nil, &Refusal{fmt.Errorf("your account is suspended")}
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", l.ln.Addr().String())
	if err != nil {
		return nil, err
	}
	conn, channels, requests, err := ssh.NewClientConn(c, "lab", &ssh.ClientConfig{User: "ada", Auth: []ssh.AuthMethod{ssh.Password("x")}, HostKeyCallback: ssh.InsecureIgnoreHostKey()})
	if err != nil {
		return nil, err
	}
	return ssh.NewClient(conn, channels, requests), nil
}

func (l *testLab) path(name string) string { return filepath.Join(l.dir, name) }

// notes collects what a run says.
type notes struct {
	mu   sync.Mutex
	list []string
}

func (n *notes) add(text string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.list = append(n.list, text)
}

func (l *testLab) run(opts Options) *Run { return New(l.dial, opts) }

// upload runs one upload to its end.
func (l *testLab) upload(t *testing.T, opts Options, to string, from ...string) Summary {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s, err := l.run(opts).Upload(ctx, from, to)
	if err != nil {
		t.Fatalf("upload: %v\n%+v", err, s)
	}
	return s
}

func (l *testLab) download(t *testing.T, opts Options, to string, from ...string) Summary {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s, err := l.run(opts).Download(ctx, from, to)
	if err != nil {
		t.Fatalf("download: %v\n%+v", err, s)
	}
	return s
}

// put writes a file of so many random bytes, some time ago.
func put(t *testing.T, path string, size int) []byte {
	t.Helper()
	text := make([]byte, size)
	seed := sha256.Sum256([]byte(path + fmt.Sprint(size)))
	_, _ = mathrand.NewChaCha8(seed).Read(text)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, text, 0o644); err != nil {
		t.Fatal(err)
	}
	when := time.Unix(1_700_000_000, 123_000_000)
	if err := os.Chtimes(path, when, when); err != nil {
		t.Fatal(err)
	}
	return text
}

func want(t *testing.T, path string, text []byte) {
	t.Helper()
	got, err := os.ReadFile(path)
	if err != nil {
		t.Error(err)
	} else if sha256.Sum256(got) != sha256.Sum256(text) {
		t.Errorf("%s is not the same: %d bytes, want %d", path, len(got), len(text))
	}
}

// names lists all files below a folder.
func names(t *testing.T, dir string) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if rel, relErr := filepath.Rel(dir, path); relErr == nil && rel != "." {
			all[filepath.ToSlash(rel)] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}
