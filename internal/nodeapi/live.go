package nodeapi

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpulab/gpulab/internal/nodes"
)

// aliveFor is how long a machine that was just heard is believed to be where it
// was: it reports every second.
const aliveFor = 5 * time.Second

// streams are those that are open, at most one of each machine.
type streams struct {
	mu   sync.Mutex
	open map[int64]*live // by the machine's ID
}

// live is one machine's stream.
type live struct {
	address string
	heard   atomic.Int64 // nanoseconds since 1970
	end     context.CancelFunc
}

func (l *live) hear() { l.heard.Store(time.Now().UnixNano()) }

// elsewhere refuses a machine that speaks from another address than that from
// which it is being heard: there are two that have its key. One whose address
// changed is heard from the old one no more.
func (s *streams) elsewhere(n nodes.Node, address string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.refuse(n, address)
}

func (s *streams) refuse(n nodes.Node, address string) error {
	l := s.open[n.ID]
	if l == nil || l.address == address || time.Since(time.Unix(0, l.heard.Load())) > aliveFor {
		return nil
	}
	return &Problem{Status: http.StatusConflict, Message: fmt.Sprintf(
		"the machine %s is in the pool and speaks from %s, and this one, at %s, has its key; if this is a copy of its "+
			"disk, run `gpulab leave` here, give it a machine-id of its own (`rm /etc/machine-id; systemd-machine-id-setup`, "+
			"then reboot) and join it with a new code",
		n.Name, l.address, address)}
}

// enter makes a stream the machine's, in place of an earlier one.
func (s *streams) enter(n nodes.Node, address string, end context.CancelFunc) (*live, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.refuse(n, address); err != nil {
		return nil, err
	}
	if before := s.open[n.ID]; before != nil {
		before.end()
	}
	l := &live{address: address, end: end}
	l.hear()
	s.open[n.ID] = l
	return l, nil
}

func (s *streams) exit(n nodes.Node, l *live) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open[n.ID] == l {
		delete(s.open, n.ID)
	}
}
