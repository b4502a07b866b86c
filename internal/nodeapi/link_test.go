package nodeapi

import (
	"context"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"
)

// link is a bad network between a machine and its head, as TCP lets programs
// see one: all comes in order, but late, and after pauses in which what was lost
// is sent again.
type link struct {
	to    netip.AddrPort
	door  netip.AddrPort
	delay time.Duration
	loss  float64 // share of packets

	mu  sync.Mutex
	cut chan struct{} // not nil while nothing gets through; closed when the cable is back
}

func newLink(t *testing.T, to netip.AddrPort) *link {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &link{to: to, door: netip.MustParseAddrPort(ln.Addr().String())}
	t.Cleanup(func() { _ = ln.Close(); l.mend() })
	go func() {
		for {
			near, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer near.Close()
				l.through()
				far, err := net.Dial("tcp", to.String())
				if err != nil {
					return
				}
				defer far.Close()
				done := make(chan struct{}, 2)
				go func() { l.carry(far, near); done <- struct{}{} }()
				go func() { l.carry(near, far); done <- struct{}{} }()
				<-done
			}()
		}
	}()
	return l
}

// through waits while the cable is pulled.
func (l *link) through() {
	l.mu.Lock()
	cut := l.cut
	l.mu.Unlock()
	if cut != nil {
		<-cut
	}
}

func (l *link) pull() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = make(chan struct{})
}

func (l *link) mend() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut != nil {
		close(l.cut)
	}
	l.cut = nil
}

type packet struct {
	at   time.Time
	data []byte
}

func (l *link) carry(to io.Writer, from io.Reader) {
	packets := make(chan packet, 1000)
	go func() {
		defer close(packets)
		arrives := time.Time{}
		for {
			data := make([]byte, 1400)
			n, err := from.Read(data)
			if err != nil {
				return
			}
			at := time.Now().Add(l.delay)
			// Every try to send it again waits twice as long (RFC 6298), the first
			// for two ways and a bit.
			for wait := 2*l.delay + 200*time.Millisecond; rand.Float64() < l.loss && wait < 10*time.Second; wait *= 2 {
				at = at.Add(wait)
			}
			if at.Before(arrives) {
				at = arrives // what was lost before it comes first
			}
			arrives = at
			packets <- packet{at, data[:n]}
		}
	}()
	for p := range packets {
		time.Sleep(time.Until(p.at))
		l.through()
		if _, err := to.Write(p.data); err != nil {
			return
		}
	}
}

// streaming keeps a stream through a link as an agent does, and counts connections.
func streaming(t *testing.T, l *lab, through *link) (connections func() int) {
	t.Helper()
	c, _ := l.join(t, "b")
	c.Know(Places{Addresses: []netip.AddrPort{through.door}})
	ctx, stop := context.WithCancel(t.Context())
	var mu sync.Mutex
	n := 0
	done := make(chan struct{})
	go func() {
		defer close(done)
		reports := Newest(ctx, numbered(ctx, time.Second, 8000), plain)
		for ctx.Err() == nil {
			mu.Lock()
			n++
			mu.Unlock()
			_ = c.Stream(ctx, "1", reports, func(Orders) {})
			time.Sleep(100 * time.Millisecond)
		}
	}()
	t.Cleanup(func() { stop(); <-done })
	return func() int { mu.Lock(); defer mu.Unlock(); return n }
}

// longestGap is the longest time without a reading while d passes.
func (l *lab) longestGap(d time.Duration) (longest time.Duration) {
	last, n := time.Now(), len(l.heard())
	for end := last.Add(d); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if now := len(l.heard()); now != n {
			n, last = now, time.Now()
		}
		longest = max(longest, time.Since(last))
	}
	return longest
}

// lost is after what silence the head calls a machine lost; see cmd/gpulab.
const lost = 10 * time.Second

// With every fifth packet lost and 200 ms each way, readings go on.
func TestBadLink(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	through := newLink(t, l.door)
	through.delay, through.loss = 200*time.Millisecond, 0.2
	connections := streaming(t, l, through)
	eventually(t, "the machine is heard", 30*time.Second, func() bool { return len(l.heard()) > 0 })
	if gap := l.longestGap(20 * time.Second); gap > lost {
		t.Errorf("nothing was heard for %s", gap)
	} else {
		t.Logf("longest silence %s, %d connections, %d readings", gap.Round(10*time.Millisecond), connections(), len(l.heard()))
	}
}

// A pulled cable is noticed on the machine, and when it is back so are readings,
// new ones first.
func TestPartition(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	through := newLink(t, l.door)
	connections := streaming(t, l, through)
	eventually(t, "the machine is heard", 10*time.Second, func() bool { return len(l.heard()) > 0 })
	before := connections()
	through.pull()
	eventually(t, "the machine gives the connection up", silence+5*time.Second, func() bool { return connections() > before })
	time.Sleep(5 * time.Second)
	n := len(l.heard())
	through.mend()
	eventually(t, "a reading comes", 12*time.Second, func() bool { return len(l.heard()) > n+2 })
	newest := l.heard()[len(l.heard())-1].Snapshot
	if age := time.Since(newest.Time); age > 3*time.Second {
		t.Errorf("after the cable is back the newest reading is %s old", age)
	}
}
