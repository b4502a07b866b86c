package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"
)

// How the machine is asked which numbers it knows: many at once, as a list of people is
// imported, and not for long, as a directory that is away must not keep anybody out.
const (
	numbersAtOnce  = 64
	numbersPatient = 2 * time.Second
	numbersBelieve = time.Minute
)

// hostNumbers knows which numbers are users' or groups' of this machine or its
// directory: LDAP or SSSD, for example.
type hostNumbers struct {
	// look returns those of the numbers that a database, passwd or group, knows.
	look func(ctx context.Context, database string, numbers []string) (map[int]bool, error)
	now  func() time.Time

	mu    sync.Mutex
	asked map[int]bool // known or not, until then
	until time.Time
	rest  time.Time // the directory is left alone until then
}

func newHostNumbers() *hostNumbers { return &hostNumbers{look: getent, now: time.Now} }

// taken tells whether a number is somebody's. Where that cannot be found out in time it
// says no: the doctor's probe numbers tells of it later.
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
			break // the other one has the same directory behind it
		}
		for i := range known {
			n.asked[i] = true
		}
	}
	return n.asked[number]
}

// getent asks the C library's databases, which gpulab, being pure Go, cannot.
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
		err = nil // it does not know all of them
	}
	if err != nil {
		return nil, fmt.Errorf("getent %s: %w", database, err)
	}
	known := map[int]bool{}
	for line := range strings.Lines(string(out)) {
		if f := strings.Split(line, ":"); len(f) > 2 {
			if number, err := strconv.Atoi(strings.TrimSpace(f[2])); err == nil {
				known[number] = true
			}
		}
	}
	return known, nil
}
