package tailnet

import (
	"regexp"
	"strings"
	"time"

	"tailscale.com/ipn/ipnstate"
)

// State is how the lab stands with its tailnet.
type State string

// The states.
const (
	Off      State = "off"      // turned off, or never turned on
	Starting State = "starting" // the control server has not let it in yet, or does not answer
	Login    State = "login"    // somebody has to let it in: LoginURL, or a key
	Approval State = "approval" // an admin of the tailnet has to approve the machine
	Up       State = "up"
	Failed   State = "failed"
)

// Status is how it stands at one moment.
type Status struct {
	State State
	// Known tells whether the lab belongs to a tailnet, be it on or off.
	Known       bool
	LoginServer string // "" for a lab that is known to none
	LoginURL    string // only while State is Login
	// Problems are what the library or the control server says is wrong.
	Problems []string
	// Expired tells a lab in State Login that it was in before, and that its key ran out.
	Expired bool
	// Expires is when the tailnet wants somebody to sign the machine in again; nil for never, or not known.
	Expires *time.Time

	// While State is Up:
	Name      string // such as gpulab.tail1234.ts.net; "" where the tailnet gives none
	Addresses []string
	Tailnet   string
	// Offered tells whether the tailnet has certificates, and Certificate whether there is one.
	Offered, Certificate bool
	// CertificateError is why there is none although they are offered; nil while it is on its way.
	CertificateError error

	// Funnel tells whether somebody wants the lab open to the public internet, Public whether it is, and FunnelError why
	// not; nil while it is being opened.
	Funnel, Public bool
	FunnelError    error
}

// Status asks nobody; it is what is known.
func (s *Service) Status() Status {
	s.mu.Lock()
	w, n, broken := s.wanted, s.node, s.broken
	s.mu.Unlock()
	out := Status{State: Off, Known: w.LoginServer != "", LoginServer: w.LoginServer, Funnel: w.Up && w.Funnel}
	switch {
	case n == nil && broken != nil && (w.Up || w == wanted{}):
		out.State, out.Problems = Failed, []string{broken.Error()}
		return out
	case !w.Up:
		return out
	case n == nil:
		out.State = Starting
		return out
	}
	st := n.last()
	if st == nil {
		out.State = Starting
		return out
	}
	n.describe(&out, st)
	return out
}

func (n *node) describe(out *Status, st *ipnstate.Status) {
	out.Problems = problems(st.Health)
	if st.Self != nil {
		out.Expires = st.Self.KeyExpiry
		out.Expired = st.Self.KeyExpiry != nil && st.Self.KeyExpiry.Before(time.Now()) || st.Self.Expired || n.wasIn() &&
			st.BackendState == "NeedsLogin"
	}
	switch st.BackendState {
	case "NeedsLogin":
		out.State, out.LoginURL = Login, st.AuthURL
		if st.AuthURL == "" && !out.Expired && len(out.Problems) == 0 {
			out.State = Starting // the control server was asked for the address
		}
	case "NeedsMachineAuth":
		out.State = Approval
	case "Running":
		out.State = Up
		out.Name = dnsName(st)
		for _, a := range st.TailscaleIPs {
			out.Addresses = append(out.Addresses, a.String())
		}
		if st.CurrentTailnet != nil {
			out.Tailnet = st.CurrentTailnet.Name
		}
		out.Offered = n.certDomain() != ""
		out.Certificate, out.CertificateError = n.certificateState()
		out.Public, out.FunnelError = n.funnel.state()
	default:
		out.State = Starting
	}
}

// idleWords are what the library says of a machine that is not in yet, which State says better.
var idleWords = regexp.MustCompile(`(?i)is stopped|tailscale is starting|please wait|you are logged out\.?$|` +
	`state=needslogin|wantrunning=false`)

func problems(health []string) []string {
	var list []string
	for _, text := range health {
		if !idleWords.MatchString(strings.TrimSpace(text)) {
			list = append(list, strings.TrimSpace(text))
		}
	}
	return list
}

var namePattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)+$`)

// dnsName is the lab's name in the tailnet. The control server says it, so it is taken only where it is one of the
// tailnet's own names: the lab's authority signs it.
func dnsName(st *ipnstate.Status) string {
	if st.Self == nil || st.CurrentTailnet == nil {
		return ""
	}
	name := strings.ToLower(strings.TrimSuffix(st.Self.DNSName, "."))
	suffix := strings.ToLower(strings.Trim(st.CurrentTailnet.MagicDNSSuffix, "."))
	if suffix == "" || !strings.HasSuffix(name, "."+suffix) || !namePattern.MatchString(name) {
		return ""
	}
	return name
}

// namesOf are the lab's names and addresses on the tailnet; the short name is what devices there may type.
func namesOf(st *ipnstate.Status) []string {
	var names []string
	if name := dnsName(st); name != "" {
		short, _, _ := strings.Cut(name, ".")
		names = append(names, name, short)
	}
	for _, a := range st.TailscaleIPs {
		names = append(names, a.String())
	}
	return names
}
