package doctor

import (
	"fmt"
	"path/filepath"
	"time"
)

// membershipSoon is when a certificate should have been renewed long ago: it
// lasts 90 days, and is renewed after 30.
const membershipSoon = 30 * 24 * time.Hour

// joinAnew is what helps a machine without a certificate.
const joinAnew = "Run `gpulab leave`, and join again with a code from `gpulab invite-node` on the head."

// probeMembership looks at the certificate by which the head knows this machine.
func probeMembership(h host, opts Options) []Finding {
	if found, none := opts.Joined.nothing("membership"); none {
		return found
	}
	path := filepath.Join(opts.DataDir, "tls/node.crt")
	cert, err := h.certificate(path)
	switch {
	case unreadable(err):
		return onlyRoot("membership")
	case err != nil:
		return []Finding{{
			Probe: "membership", State: Fail,
			Seen:  fmt.Sprintf("This machine's certificate, %s, cannot be read: %v.", path, err),
			Means: "The head does not know this machine without it.",
			Mend:  joinAnew,
		}}
	}
	if late := outOfTime("This machine's certificate", cert, h.now()); late != "" {
		return []Finding{{
			Probe: "membership", State: Fail, Seen: late,
			Means: "The head does not hear this machine any more. " + theClock(h.now()),
			Mend:  "If the clock is right: " + joinAnew,
		}}
	}
	if cert.NotAfter.Sub(h.now()) < membershipSoon {
		return []Finding{{
			Probe: "membership", State: Warn,
			Seen: fmt.Sprintf("This machine's certificate runs out on %s, and was not renewed.",
				cert.NotAfter.Format(time.DateOnly)),
			Means: "It is renewed every month while the head can be reached; without it this machine is in no pool.",
			Mend:  "Run `gpulab doctor head`, then look at `gpulab logs`.",
		}}
	}
	return []Finding{{Probe: "membership", State: OK, Seen: fmt.Sprintf("This machine is %s in the pool of %s, by a "+
		"certificate that is good until %s.",
		opts.Joined.Name, opts.Joined.Lab, cert.NotAfter.Format(time.DateOnly))}}
}
