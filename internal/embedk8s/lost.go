package embedk8s

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"
)

// When k3s is restarted.
const (
	lookEvery  = 10 * time.Second
	startsIn   = 2 * time.Minute // how long a k3s that was just started may take to make its folders anew
	firstStart = time.Hour       // and how long it may take when they have not been there since
	lostFor    = 20 * time.Second
	firstPause = 5 * time.Minute // after a restart that did not help; the next is longer
	perHour    = 3
)

// Trouble is what a restart of k3s alone mends; no Why for none.
type Trouble struct {
	Why string
	// Patience is how long it may last before k3s is restarted.
	Patience time.Duration
}

// Lost says which of the runtime's folders are gone under a running k3s, "" for none. k3s makes them only when it
// starts; until then no pod starts or ends.
func (c *Cluster) Lost() string {
	if p := c.Process(); p.Running {
		return c.gone("/", p.Since, time.Now())
	}
	return ""
}

// gone names the first file or folder that is gone under a k3s that runs since then. What a slow machine has not made
// yet is not gone: a file counts when it has been there since k3s started, or when it is not there after an hour.
func (c *Cluster) gone(root string, since, now time.Time) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.seenSince.Equal(since) {
		c.seenSince, c.seen = since, map[string]bool{}
	}
	gone := ""
	for _, path := range []string{
		filepath.Join(root, "run/k3s/containerd"), filepath.Join(root, containerdSocket),
		filepath.Join(root, "run/flannel/subnet.env"),
		filepath.Join(c.k3sDir(), "agent/etc/cni/net.d/10-flannel.conflist"),
	} {
		_, err := os.Stat(path)
		if err == nil {
			c.seen[path] = true
		}
		patience := firstStart
		if c.seen[path] {
			patience = startsIn
		}
		if gone == "" && errors.Is(err, fs.ErrNotExist) && now.Sub(since) >= patience {
			gone = path + ", which containers need, is gone"
		}
	}
	return gone
}

// Watch restarts k3s when something is wrong that only a restart mends: the runtime's folders are gone, or what
// failing, which may be nil, tells of. Pods that run stay. It does so a few times per hour at most.
func (c *Cluster) Watch(ctx context.Context, failing func(context.Context) Trouble) {
	var r restarts
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(lookEvery):
		}
		trouble := Trouble{c.Lost(), lostFor}
		if trouble.Why == "" && failing != nil && time.Since(c.Process().Since) > startsIn {
			trouble = failing(ctx)
		}
		if r.due(trouble, time.Now()) {
			slog.Error("k3s is restarted; notebooks that run go on if they can", "because", trouble.Why)
			c.Restart()
		}
	}
}

// restarts decides when k3s is restarted.
type restarts struct {
	why   string
	since time.Time
	done  []time.Time // within the last hour
}

func (r *restarts) due(t Trouble, now time.Time) bool {
	if t.Why != r.why {
		r.why, r.since = t.Why, now
	}
	for len(r.done) > 0 && now.Sub(r.done[0]) > time.Hour {
		r.done = r.done[1:]
	}
	switch n := len(r.done); {
	case t.Why == "", now.Sub(r.since) < t.Patience, n >= perHour:
		return false
	case n > 0 && now.Sub(r.done[n-1]) < firstPause<<(n-1):
		return false
	}
	r.done = append(r.done, now)
	return true
}
