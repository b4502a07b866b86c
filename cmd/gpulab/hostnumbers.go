package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"strconv"
	"sync"
	"time"

	"github.com/gpulab/gpulab/internal/doctor"
)

// How gpulab asks the machine which UIDs and GIDs it uses: many at once, because admins import
// lists of people, and not for long, because a directory that is down must not keep anybody out.
const (
	numbersAtOnce  = 64
	numbersPatient = 2 * time.Second
	numbersBelieve = time.Minute
)

// hostNumbers finds the UIDs and GIDs that this machine or its directory, such as LDAP or
// SSSD, already uses.
type hostNumbers struct {
	// look returns which of the numbers a database uses: passwd or group.
	look func(ctx context.Context, database string, numbers []string) (map[int]bool, error)
	now  func() time.Time

	mu    sync.Mutex
	asked map[int]bool // whether the machine uses a number; valid before until
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
		n.asked, n.until = map[int]bool{}, n.now().Add(numbersBelieve)
	}
	if n.now().Before(n.rest) {
		return false
	}
	var numbers []string
	for i := number; i < number+numbersAtOnce; i++ {
		n.asked[i] = false
		numbers = append(numbers, strconv.Itoa(i))
	}
	began := n.now()
	for _, database := range []string{"passwd", "group"} {
		known, err := n.look(ctx, database, numbers)
		if err != nil {
			slog.Warn("the machine does not say which numbers its users and groups have; new accounts and folders may get the same",
				"database", database, "after", n.now().Sub(began).Round(time.Millisecond), "err", err)
			n.rest = n.now().Add(numbersBelieve)
			break // the other database asks the same directory
		}
		for i := range known {
			n.asked[i] = true
		}
	}
	return n.asked[number]
}

// getent asks the C library's databases: gpulab is pure Go and cannot read them itself.
func getent(ctx context.Context, database string, numbers []string) (map[int]bool, error) {
	ctx, cancel := context.WithTimeout(ctx, numbersPatient)
	defer cancel()
	cmd := exec.CommandContext(ctx, "getent", append([]string{database}, numbers...)...)
	cmd.WaitDelay = 100 * time.Millisecond
	out, err := cmd.Output()
	var exit *exec.ExitError
	if ctx.Err() != nil {
		return nil, fmt.Errorf("getent %s: no answer within %s", database, numbersPatient)
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
