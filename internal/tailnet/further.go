package tailnet

import (
	"context"
	"sync"
)

// further are the doors that come and go while the lab is in its tailnet.
type further struct {
	mu    sync.Mutex
	doors map[int]*opened // by port
	node  *node           // that they are open on; nil for none
}

// opened is one of them.
type opened struct {
	Door
	end func() // nil while it is not open
}

// Open serves a further door whenever the lab is in its tailnet, until close is called. It is closed to the internet.
func (s *Service) Open(d Door) (close func()) {
	f := &s.more
	f.mu.Lock()
	defer f.mu.Unlock()
	o := &opened{Door: d}
	if f.doors == nil {
		f.doors = map[int]*opened{}
	}
	f.doors[d.Port] = o
	f.open(o)
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.doors[d.Port] == o {
			delete(f.doors, d.Port)
		}
		if o.end != nil {
			o.end()
		}
	}
}

// openAll opens them on a node that has begun, which takes the place of one that has ended.
func (f *further) openAll(n *node) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.node = n
	for _, o := range f.doors {
		f.open(o)
	}
}

func (f *further) open(o *opened) {
	n := f.node
	if n == nil || n.ctx.Err() != nil {
		return
	}
	l, err := n.listen(o.Port)
	if err != nil {
		n.service.cfg.Log.Error("a door on the tailnet is closed", "port", o.Port, "err", err)
		return
	}
	ctx, cancel := context.WithCancel(n.ctx)
	o.end = func() {
		cancel()
		_ = l.Close() // at once, for the port may be opened again
	}
	go func() {
		defer l.Close()
		if err := o.Serve(ctx, l); err != nil && ctx.Err() == nil {
			n.service.cfg.Log.Error("a door on the tailnet is closed", "port", o.Port, "err", err)
		}
	}()
}
