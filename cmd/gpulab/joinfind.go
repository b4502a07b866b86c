package main

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpulab/gpulab/internal/discover"
	"github.com/gpulab/gpulab/internal/embedk8s"
	"github.com/gpulab/gpulab/internal/nodeapi"
	"github.com/gpulab/gpulab/internal/nodes"
	"github.com/gpulab/gpulab/internal/version"
)

// findFor is how long the network is asked for heads.
const findFor = 3 * time.Second

// askToJoin finds a head on the local network, asks it to let this machine in,
// and waits for its people. The code is what they let it in with, for the key.
func askToJoin(c *cobra.Command, a *app, f *joinFlags) (code string, key *ecdsa.PrivateKey, err error) {
	ctx, out := c.Context(), c.OutOrStdout()
	if err := isHead(a); err != nil {
		return "", nil, fail(exitPreflight, "%w", err)
	}
	name := f.name
	if name == "" {
		if name, err = embedk8s.HostName(); err != nil {
			return "", nil, fail(exitPreflight, "%w", err)
		}
	}
	places, err := lanPlaces()
	if err != nil {
		return "", nil, fail(exitPreflight, "%w", err)
	}
	var interfaces []string
	for _, p := range places {
		if !slices.Contains(interfaces, p.Interface) {
			interfaces = append(interfaces, p.Interface)
		}
	}
	fmt.Fprintln(out, "Looking for labs on the local network.")
	found, err := discover.Find(ctx, interfaces, findFor)
	if ctx.Err() != nil {
		return "", nil, fail(exitFailure, "interrupted; nothing was changed")
	}
	if len(found) == 0 {
		why := "no lab was found on the local network"
		if err != nil {
			why += " (" + err.Error() + ")"
		}
		return "", nil, fail(exitUsage, "%s: run `gpulab invite-node` on the head, which opens its door for an hour, and "+
			"use the line that it prints, or run `gpulab join` again", why)
	}
	head, err := chooseHead(c.InOrStdin(), out, found, f.head)
	if err != nil {
		return "", nil, err
	}
	if key, err = nodes.NewKey(); err != nil {
		return "", nil, err
	}
	code, err = petition(ctx, out, head, key, name)
	return code, key, err
}

// chooseHead lets the person say which lab it is to be.
func chooseHead(in io.Reader, out io.Writer, found []discover.Found, wanted string) (discover.Found, error) {
	rows := [][]string{{"", "LAB", "HEAD", "ADDRESS", "VERSION"}}
	var fit []discover.Found
	for i, h := range found {
		rows = append(rows, []string{
			strconv.Itoa(i + 1), visibly(h.Lab), visibly(h.Head), h.Door.String(), visibly(h.Version),
		})
		if wanted != "" && slices.Contains([]string{h.Lab, h.Head, h.Door.String(), h.Door.Addr().String()}, wanted) {
			fit = append(fit, h)
		}
	}
	if len(fit) == 1 {
		return fit[0], nil
	}
	if err := table(out, rows); err != nil {
		return discover.Found{}, err
	}
	switch {
	case len(fit) > 1:
		return discover.Found{}, fail(exitUsage, "%d heads are called %q; name one by its address with --head", len(fit),
			wanted)
	case wanted != "":
		return discover.Found{}, fail(exitUsage, "no head on the local network is called %q; choose one of these with --head",
			wanted)
	case !isTerminal(in):
		return discover.Found{}, fail(exitUsage, "say which of these this machine is to join: --head NAME")
	}
	q := &asker{in: bufio.NewReader(in), out: out}
	answer := q.line("Which of these is this machine to join? Its number, or none", "none")
	n, err := strconv.Atoi(answer)
	if err != nil || n < 1 || n > len(found) {
		return discover.Found{}, fail(exitUsage, "none was chosen; nothing was changed")
	}
	return found[n-1], nil
}

// askAgain is how often the head is asked what its people say.
const askAgain = time.Second

// petition asks a head to let this machine in, and waits until somebody has
// compared the number.
func petition(ctx context.Context, out io.Writer, head discover.Found, key *ecdsa.PrivateKey,
	name string) (string, error) {
	client, authority, hello, err := nodeapi.Unknown(ctx, head.Door)
	if err != nil {
		return "", fail(exitPreflight, "what is announced at %s does not answer as gpulab's head does (%w); try again, or "+
			"use a code from `gpulab invite-node`", head.Door, err)
	}
	if err := nodeapi.Skew("this machine", version.Version, visibly(hello.Version)); err != nil {
		return "", fail(exitPreflight, "%v", err)
	}
	p, err := client.Ask(ctx, authority, key, name, version.Version)
	if err != nil {
		return "", fail(exitPreflight, "%w", err)
	}
	fmt.Fprintf(out, "\nThis machine asks %s at %s to let it in as %s. Its number is\n\n  %s\n\nOn the head, the page "+
		"Machines or `gpulab nodes requests` must show the same number; then accept it on the page, or run there, as "+
		"root:\n\n  gpulab nodes accept %s\n\nIf it shows another, somebody is in between: refuse it. This waits for ten "+
		"minutes.\n",
		visibly(hello.Lab), head.Door.Addr(), name, spaced(p.Number), p.Number)
	missed := 0
	for {
		if !sleep(ctx, askAgain) {
			return "", fail(exitFailure, "interrupted; nothing was changed")
		}
		answered, err := p.Answer(ctx)
		problem := (*nodeapi.Problem)(nil)
		switch {
		case errors.As(err, &problem):
			return "", fail(exitFailure, "%w", err)
		case err != nil: // on the way; the head may be back
			if missed++; missed > 10 && !time.Now().Before(p.Expires) {
				return "", fail(exitFailure, "%w", err)
			}
		case answered.State == nodes.RequestRefused:
			return "", fail(exitFailure, "the head's people did not let this machine in; nothing was changed")
		case answered.State == nodes.RequestAccepted:
			code, err := nodes.ParseCode(answered.Code)
			if err != nil || code.Authority != authority {
				return "", fail(exitFailure, "the head's code is not its own; use one from `gpulab invite-node`")
			}
			fmt.Fprintf(out, "\n✓ %-12s accepted\n", "number")
			return answered.Code, nil
		}
	}
}

// spaced is a number as people read it.
func spaced(number string) string {
	if len(number) != 6 {
		return number
	}
	return number[:3] + " " + number[3:]
}

// unspaced is a number as people type it.
func unspaced(words []string) string {
	return strings.ReplaceAll(strings.Join(words, ""), " ", "")
}
