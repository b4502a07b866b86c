package tailnet

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// certificate is the tailnet's for the lab's name there. The library keeps it on disk and renews it.
type certificate struct {
	mu     sync.Mutex
	domain string
	pair   *tls.Certificate // nil while there is none
	err    error            // why not
}

// pace is how often the library is asked for the certificate: it answers from its files, and only for a new or an old
// one asks the authority, which does not want to be asked often.
type pace struct{ every, again time.Duration } // again is for after a failure

var usualPace = pace{every: time.Hour, again: 5 * time.Minute}

const certificateTime = 2 * time.Minute

// keepCertificate has the certificate ready before anybody comes.
func (n *node) keepCertificate(ctx context.Context) {
	var next time.Time
	for ctx.Err() == nil {
		domain := n.certDomain()
		n.cert.mu.Lock()
		if n.cert.domain != domain {
			n.cert.domain, n.cert.pair, n.cert.err = domain, nil, nil
			next = time.Time{}
		}
		n.cert.mu.Unlock()
		if domain != "" && !time.Now().Before(next) {
			next = time.Now().Add(n.service.pace.every)
			if err := n.fetchCertificate(ctx, domain); err != nil {
				next = time.Now().Add(n.service.pace.again)
				if ctx.Err() == nil {
					n.service.cfg.Log.Warn("there is no certificate from the tailnet; the lab's own is used", "name", domain, "err",
						err)
				}
			}
		}
		sleep(ctx, time.Second)
	}
}

func (n *node) fetchCertificate(ctx context.Context, domain string) error {
	ctx, cancel := context.WithTimeout(ctx, certificateTime)
	defer cancel()
	cert, key, err := n.local.CertPair(ctx, domain)
	var pair tls.Certificate
	if err == nil {
		pair, err = tls.X509KeyPair(cert, key)
	}
	if err == nil {
		err = useful(pair.Leaf, domain)
	}
	n.cert.mu.Lock()
	defer n.cert.mu.Unlock()
	n.cert.err = err
	if err == nil {
		n.cert.pair = &pair
	}
	return err
}

// useful says why browsers would not take a certificate for a name.
func useful(c *x509.Certificate, name string) error {
	now := time.Now()
	switch {
	case now.After(c.NotAfter):
		return fmt.Errorf("the tailnet’s ran out on %s", c.NotAfter.Format(time.DateTime+" MST"))
	case now.Before(c.NotBefore):
		return fmt.Errorf("the tailnet’s is valid from %s; is this machine’s clock right?",
			c.NotBefore.Format(time.DateTime+" MST"))
	case c.VerifyHostname(name) != nil:
		return fmt.Errorf("the tailnet’s is not for this name: %w", c.VerifyHostname(name))
	}
	return nil
}

// certDomain is the name that the tailnet gives the lab certificates for, "" for none.
func (n *node) certDomain() string {
	st := n.last()
	if st == nil || !n.joined() || st.Self == nil {
		return ""
	}
	name := dnsName(st)
	if !slices.ContainsFunc(st.CertDomains, func(d string) bool { return strings.EqualFold(d, name) }) {
		return ""
	}
	return name
}

// certificate is the one for a name, nil for none.
func (n *node) certificate(name string) *tls.Certificate {
	n.cert.mu.Lock()
	defer n.cert.mu.Unlock()
	if n.cert.pair == nil || !strings.EqualFold(name, n.cert.domain) || useful(n.cert.pair.Leaf, n.cert.domain) != nil {
		return nil
	}
	return n.cert.pair
}

// certificateState says of the certificate whether it is there, and why not.
func (n *node) certificateState() (there bool, err error) {
	n.cert.mu.Lock()
	defer n.cert.mu.Unlock()
	if n.cert.pair == nil {
		return false, n.cert.err
	}
	wrong := useful(n.cert.pair.Leaf, n.cert.domain)
	return wrong == nil, cmp.Or(n.cert.err, wrong)
}
