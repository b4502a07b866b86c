package main

import (
	"context"
	"os"
	"regexp"
	"strconv"
	"sync"
	"time"

	"github.com/gpulab/gpulab/packaging/simdriver"
)

// The simulated driver changes its values once a second from its begin on. shift is
// how much later within the second it begins each time.
const (
	driven = 2 * time.Second
	shift  = 130 * time.Millisecond
)

// drive runs the simulated driver, which begins anew again and again, until ctx ends.
func drive(ctx context.Context, root string) error {
	for {
		one, cancel := context.WithTimeout(ctx, driven+shift)
		err := simdriver.Run(one, root)
		cancel()
		if err != nil || ctx.Err() != nil {
			return err
		}
	}
}

// changes are when the use of the GPUs has changed in the driver: that of all is the
// same.
type changes struct {
	state string // file

	mu sync.Mutex
	at map[int][]time.Time // by percent
}

func newChanges(state string) *changes { return &changes{state: state, at: map[int][]time.Time{}} }

var stateNow = regexp.MustCompile(`(?s)^written=(\d+)\n.*?\nutilization=(\d+)\n`)

// follow looks at the driver's state until ctx ends. It says itself when it was written.
func (c *changes) follow(ctx context.Context) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	last := -1
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		text, err := os.ReadFile(c.state)
		found := stateNow.FindSubmatch(text)
		if err != nil || found == nil {
			continue // it is being written
		}
		written, _ := strconv.ParseInt(string(found[1]), 10, 64)
		use, _ := strconv.Atoi(string(found[2]))
		if use == last {
			continue
		}
		last = use
		c.mu.Lock()
		c.at[use] = append(c.at[use], time.Unix(0, written))
		c.mu.Unlock()
	}
}

// before is when a value that was sampled at a moment had come: the last time until
// then, or just after, since a sample is as old as its begin.
func (c *changes) before(sampled time.Time, use int) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	last := sampled
	for _, at := range c.at[use] {
		if at.Before(sampled.Add(time.Second)) {
			last = at
		}
	}
	return last
}
