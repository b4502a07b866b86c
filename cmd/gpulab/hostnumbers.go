package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os/exec"
	"strconv"
	"sync"
	"time"

	"github.com/gpulab/gpulab/internal/doctor"
)

// How gpulab asks the machine which UIDs and GIDs it uses: many at once, because admins import
// lists of people, and not for long, because a directory that is down must not keep anybody out
// and because the lookups happen while a transaction writes to the database.
const (
	numbersAtOnce  = 64
	numbersPatient = 2 * time.Second // for one lookup
	numbersTotal   = 5 * time.Second // for all lookups within numbersBelieve
	numbersBelieve = time.Minute
)

// hostNumbers finds the UIDs and GIDs that this machine or its directory, such as LDAP or
// SSSD, already uses.
type hostNumbers struct {
	// look returns which of the numbers a database uses: passwd or group.
	look func(ctx context.Context, database string, numbers []string) (map[int]bool, error)
	now  func() time.Time

	mu    sync.Mutex
	asked map[int]bool  // whether the machine uses a number; valid before until
	spent time.Duration // on lookups; starts at zero again at until
	until time.Time
	rest  time.Time // the directory is not asked before this time
}

func newHostNumbers() *hostNumbers { return &hostNumbers{look: getent, now: time.Now} }

// taken reports whether this machine uses a number as a UID or GID. If the machine does not
// answer in time, taken returns false: the doctor's probe numbers reports collisions later.
func (n *hostNumbers) taken(ctx context.Context, number int) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if known, asked := n.asked[number]; asked && n.now().Before(n.until) {
		return known
	}
	if n.asked == nil || !n.now().Before(n.until) {
		n.asked, n.spent, n.until = map[int]bool{}, 0, n.now().Add(numbersBelieve)
	}
	if n.now().Before(n.rest) {
		return false
	}
	var numbers []string
	for i := number; i < number+numbersAtOnce; i++ {
		numbers = append(numbers, strconv.Itoa(i))
	}
	used := map[int]bool{}
	for _, database := range []string{"passwd", "group"} {
		known, err := n.lookFor(ctx, database, numbers)
		if ctx.Err() != nil {
			return false // nothing is made of a cancelled request, and it says nothing about the directory
		}
		if err != nil {
			slog.Warn("the machine does not say which UIDs and GIDs it uses; new accounts and folders may get the same ones",
				"database", database, "err", err)
			n.rest = n.now().Add(numbersBelieve)
			return used[number] // the other database asks the same directory
		}
		maps.Copy(used, known)
	}
	for i := number; i < number+numbersAtOnce; i++ {
		n.asked[i] = used[i]
	}
	return used[number]
}

// lookFor is look within the time that is left for all lookups.
func (n *hostNumbers) lookFor(ctx context.Context, database string, numbers []string) (map[int]bool, error) {
	if n.spent >= numbersTotal {
		return nil, fmt.Errorf("lookups took %s within %s", n.spent.Round(time.Millisecond), numbersBelieve)
	}
	ctx, cancel := context.WithTimeout(ctx, min(numbersPatient, numbersTotal-n.spent))
	defer cancel()
	began := n.now()
	known, err := n.look(ctx, database, numbers)
	n.spent += n.now().Sub(began)
	return known, err
}

// getent asks the C library's databases: gpulab is pure Go and cannot read them itself.
func getent(ctx context.Context, database string, numbers []string) (map[int]bool, error) {
	cmd := exec.CommandContext(ctx, "getent", append([]string{database}, numbers...)...)
	cmd.WaitDelay = 100 * time.Millisecond
	out, err := cmd.Output()
	var exit *exec.ExitError
	if ctx.Err() != nil {
		return nil, fmt.Errorf("getent %s: no answer in time: %w", database, ctx.Err())
	}
	if errors.As(err, &exit) && exit.ExitCode() == 2 {
		err = nil // some of the numbers are unknown
	}
	if err != nil {
		return nil, fmt.Errorf("getent %s: %w", database, err)
	}
	known := map[int]bool{}
	for number := range doctor.NamesByNumber(string(out)) {
		known[number] = true
	}
	return known, nil
}
