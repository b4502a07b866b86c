package doctor

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"
)

// headPatience is how long each address of the head may take.
const headPatience = 2 * time.Second

// probeHead looks whether the head of the pool can be reached, and is the one
// that has let this machine in.
func probeHead(h host, opts Options) []Finding {
	j := opts.Joined
	if found, none := j.nothing("head"); none {
		return found
	}
	door, err := h.reach(j.Doors)
	kubernetes := j.Kubernetes
	if err != nil && len(kubernetes) > 1 {
		kubernetes = kubernetes[:1] // the others will not answer either
	}
	api, apiErr := h.reach(kubernetes)
	switch {
	case err != nil && apiErr != nil:
		return []Finding{{
			Probe: "head", State: Fail,
			Seen:  fmt.Sprintf("The head, %s, does not answer at %s: %v.", j.Head, places(j.Doors), err),
			Means: "Notebooks here go on, but nobody reaches them, and no other starts here.",
			Mend: fmt.Sprintf("See that %s is on, and that the network leads there: `ping -c 3 %s`. Once it is back, so is "+
				"this machine, by itself.", j.Head, firstAddress(j.Doors)),
		}}
	case err != nil:
		return []Finding{headPort(j, j.Doors, err, "The head shows this machine as lost: nobody reaches notebooks here.")}
	case apiErr != nil:
		return []Finding{headPort(j, j.Kubernetes, apiErr,
			"Kubernetes calls this machine not ready: no notebook starts here.")}
	}
	if _, err := j.Greet(h.ctx); err != nil {
		return []Finding{{
			Probe: "head", State: Fail,
			Seen:  fmt.Sprintf("Something answers at %s, but not as the head of this machine's pool: %v.", door, err),
			Means: "The head was set up anew, another machine has its address, or this one's clock is wrong.",
			Mend: "Run `gpulab doctor clock`; if " + j.Head + " was set up anew, run `gpulab leave` here and join again " +
				"with a new code.",
		}}
	}
	return []Finding{{Probe: "head", State: OK,
		Seen: fmt.Sprintf("The head, %s, answers at %s, and its Kubernetes at %s.", j.Head, door, api)}}
}

// headPort is for one port of the head that is closed while another is open.
func headPort(j *Joined, at []netip.AddrPort, err error, means string) Finding {
	return Finding{
		Probe: "head", State: Fail,
		Seen:  fmt.Sprintf("The head, %s, is there, but does not answer at %s: %v.", j.Head, places(at), err),
		Means: means,
		Mend:  "On " + j.Head + ", run `gpulab status` and `gpulab doctor firewall`; between the machines, let TCP through.",
	}
}

// reach finds the first of the head's addresses that answers.
func (h host) reach(at []netip.AddrPort) (netip.AddrPort, error) {
	err := errors.New("no address is known")
	for _, a := range at {
		ctx, cancel := context.WithTimeout(h.ctx, headPatience)
		conn, dialErr := h.dial(ctx, "tcp", a.String())
		cancel()
		if dialErr == nil {
			conn.Close()
			return a, nil
		}
		err = dialErr
	}
	return netip.AddrPort{}, err
}

func places(at []netip.AddrPort) string {
	var words []string
	for _, a := range at {
		words = append(words, a.String())
	}
	return strings.Join(words, " or ")
}

func firstAddress(at []netip.AddrPort) string {
	if len(at) == 0 {
		return "its address"
	}
	return at[0].Addr().String()
}
