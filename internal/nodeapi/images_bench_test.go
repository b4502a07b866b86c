package nodeapi

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/time/rate"
)

// wire is what machines are joined by: so many bytes a second, over all of its
// connections; 0 is as fast as this machine is.
type wire struct {
	net.Listener
	pace *rate.Limiter
}

func newWire(b *testing.B, speed int) wire {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = ln.Close() })
	l := wire{Listener: ln}
	if speed > 0 {
		l.pace = rate.NewLimiter(rate.Limit(speed), 64<<10)
	}
	return l
}

func (l wire) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil || l.pace == nil {
		return c, err
	}
	return paced{c, l.pace}, nil
}

type paced struct {
	net.Conn
	pace *rate.Limiter
}

func (c paced) Write(p []byte) (done int, err error) {
	for done < len(p) {
		k := min(len(p)-done, c.pace.Burst())
		if err := c.pace.WaitN(context.Background(), k); err != nil {
			return done, err
		}
		n, err := c.Conn.Write(p[done : done+k])
		if done += n; err != nil {
			return done, err
		}
	}
	return done, nil
}

// BenchmarkHandOver hands a part of an image over to a machine, compared with its
// digest there, and prints how fast that is beside a plain copy over the same link:
// the bytes alone on a TCP connection, as netcat would send them.
func BenchmarkHandOver(b *testing.B) {
	data := make([]byte, 128<<20)
	_, _ = rand.Read(data)
	digest := blobOf(data)
	for name, speed := range map[string]int{"1Gbit": 1e9 / 8, "loopback": 0} {
		b.Run(name, func(b *testing.B) {
			l := newLab(b)
			l.blobs = map[string][]byte{digest: data}
			door := newWire(b, speed)
			server := NewServer(Config{Head: l, Registry: l.registry, Authority: l.authority, Log: slog.New(slog.DiscardHandler)})
			go func() { _ = server.ServeTLS(door, "", "") }()
			b.Cleanup(func() { _ = server.Close() })
			c, _ := l.join(b, "b")
			c.Know(Places{Addresses: []netip.AddrPort{netip.MustParseAddrPort(door.Addr().String())}})
			c.mu.Lock()
			c.head = netip.AddrPort{}
			c.mu.Unlock()
			c.Reconnect()
			plain := newWire(b, speed)
			go func() {
				for {
					conn, err := plain.Accept()
					if err != nil {
						return
					}
					_, _ = io.Copy(conn, bytes.NewReader(data))
					_ = conn.Close()
				}
			}()
			var handed, copied time.Duration
			b.SetBytes(int64(len(data)))
			for b.Loop() {
				began := time.Now()
				r, err := c.Blob(b.Context(), digest, 0)
				if err != nil {
					b.Fatal(err)
				}
				sum := sha256.New()
				if _, err := io.Copy(sum, r); err != nil {
					b.Fatal(err)
				}
				_ = r.Close()
				handed += time.Since(began)
				b.StopTimer()
				began = time.Now()
				conn, err := net.Dial("tcp", plain.Addr().String())
				if err != nil {
					b.Fatal(err)
				}
				if n, err := io.Copy(io.Discard, conn); err != nil || n != int64(len(data)) {
					b.Fatal(n, err)
				}
				_ = conn.Close()
				copied += time.Since(began)
				b.StartTimer()
			}
			b.ReportMetric(copied.Seconds()/handed.Seconds(), "of-plain-copy")
		})
	}
}
