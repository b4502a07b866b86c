package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gpulab/gpulab/internal/charts"
	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/units"
)

// Pauses between two tries of the start. They double from the first to the
// longest; a release that was taken back waits longer, because every further
// try ends for minutes what works.
const (
	firstPause     = 5 * time.Second
	longestPause   = 2 * time.Minute
	takenBackPause = 30 * time.Minute
)

// kubernetesPatience is how long Kubernetes may take within one try. It is not
// ended for it: the next try waits for the same one.
const kubernetesPatience = 5 * time.Minute

// start goes the way to a lab that is ready, as often as it takes. What was in
// the way may go by itself: a network that comes late, a disk that was full, a
// hub slower than its limit. The pages and the socket say why meanwhile.
func (l *appliance) start(ctx context.Context, g *errgroup.Group) error {
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		err := l.bootstrap(ctx, g)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err == nil {
			l.boot.finish()
			return nil
		}
		wait := pause
		if taken := (*charts.TakenBackError)(nil); errors.As(err, &taken) {
			wait = takenBackPause
		}
		l.boot.failed(err, time.Now().Add(wait))
		if !l.pauseBeforeTry(ctx, wait) {
			return ctx.Err()
		}
		l.boot.again()
	}
}

// pauseBeforeTry waits, but no longer than until the machine's addresses
// change: a network may be what was missing. It reports whether ctx still
// lasts.
func (l *appliance) pauseBeforeTry(ctx context.Context, pause time.Duration) bool {
	before, err := ownAddresses(l.id.ClusterCIDR)
	for end := time.Now().Add(pause); time.Now().Before(end); {
		if !sleep(ctx, min(time.Second, time.Until(end))) {
			return false
		}
		if now, nowErr := ownAddresses(l.id.ClusterCIDR); err == nil && nowErr == nil && !slices.Equal(before, now) {
			break
		}
	}
	return ctx.Err() == nil
}

// explainKubernetes adds to the error of a wait for Kubernetes what its
// process has to say.
func (l *appliance) explainKubernetes(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != nil {
		return err
	}
	// The limit is our own, and the reason for the wait says more.
	text := strings.ReplaceAll(err.Error(), context.DeadlineExceeded.Error()+"\n", "")
	if p := l.cluster.Load().Process(); p.Restarts > 0 {
		text += fmt.Sprintf("; k3s has been started %d times and ended last with: %s", p.Restarts+1, p.LastExit)
	}
	//nolint:staticcheck // a name
	return fmt.Errorf("Kubernetes was not ready after %s: %s; see `gpulab logs k3s`", units.Lasting(kubernetesPatience),
		text)
}

// triesAgain is why a try failed, and that it is not the last one.
func triesAgain(b ctl.Boot) string {
	why := strings.TrimRight(strings.ReplaceAll(b.Failed, "\n", "; "), ".;")
	if b.Next.IsZero() {
		return why
	}
	return fmt.Sprintf("%s; gpulab tries again by itself at %s, and `gpulab init` at once", why,
		b.Next.Local().Format(time.TimeOnly))
}

// nextTry says when, as a sentence.
func nextTry(b ctl.Boot) string {
	if b.Next.IsZero() {
		return fmt.Sprintf("It is being tried again now, for the %s time.", ordinal(b.Try))
	}
	return fmt.Sprintf("It is tried again by itself at %s.", b.Next.Local().Format(time.TimeOnly))
}

// startComponent tells of a start that has failed at least once; false while
// there is nothing to tell.
func startComponent(b ctl.Boot) (ctl.Component, bool) {
	c := ctl.Component{Name: "start", State: ctl.Failed, Detail: b.Failed}
	switch {
	case b.Ready || b.Failed == "" && b.Before == "":
		return c, false
	case b.Failed == "":
		c.State, c.Detail = ctl.Starting, fmt.Sprintf("try %d; the one before failed: %s", b.Try, b.Before)
		return c, true
	}
	c.NextStep = nextTry(b) + " `gpulab init` tries at once."
	return c, true
}

// ordinal writes 2 as 2nd.
func ordinal(n int) string {
	suffix := "th"
	if n%100 < 11 || n%100 > 13 {
		switch n % 10 {
		case 1:
			suffix = "st"
		case 2:
			suffix = "nd"
		case 3:
			suffix = "rd"
		}
	}
	return fmt.Sprint(n) + suffix
}
