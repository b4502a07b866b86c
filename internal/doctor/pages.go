package doctor

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"time"
)

// pagesPatience is how long the pages may take to answer a connection.
const pagesPatience = 5 * time.Second

// probePages opens the lab as a browser does that trusts its authority.
func probePages(h host, opts Options) []Finding {
	lab, err := h.ask()
	if err != nil || lab.URL == "" {
		return nil // the probe daemon says why
	}
	u, err := url.Parse(lab.URL)
	if err != nil || u.Hostname() == "" {
		return []Finding{{
			Probe: "pages", State: Fail,
			Seen:  "The lab has no address that people could open.",
			Means: "This machine is in no network.",
			Mend:  "Connect it, and look with `ip -brief address`; gpulab follows by itself.",
		}}
	}
	port := u.Port()
	if port == "" {
		port = "443"
	}
	roots := x509.NewCertPool()
	if ca, err := h.certificate(filepath.Join(opts.DataDir, "tls/ca.crt")); err == nil {
		roots.AddCert(ca)
	}
	err = h.handshake(net.JoinHostPort(u.Hostname(), port), u.Hostname(), roots)
	if err == nil {
		return []Finding{{Probe: "pages", State: OK,
			Seen: "The pages answer at " + lab.URL + " with a certificate that fits."}}
	}
	finding := Finding{Probe: "pages", State: Fail}
	var refused *tls.CertificateVerificationError
	switch {
	case errors.As(err, &refused):
		finding.Seen = fmt.Sprintf("The pages at %s show a certificate that browsers refuse: %v.", lab.URL, refused.Err)
		finding.Means = "Even a browser that trusts the lab warns of an attack. " + theClock(h.now())
		finding.Mend = "Run `gpulab doctor webcertificates`; when that is well, `" + h.restart(opts) + "`."
	case h.handshake(net.JoinHostPort("127.0.0.1", port), u.Hostname(), roots) == nil:
		finding.Seen = fmt.Sprintf("The pages answer on this machine, but not at %s: %v.", lab.URL, err)
		finding.Means = "The address or the name leads elsewhere, or is dropped on the way."
		finding.Mend = "Compare it with `ip -brief address`, and run `gpulab doctor address firewall`."
	default:
		finding.Seen = fmt.Sprintf("The pages do not answer at %s: %v.", lab.URL, err)
		finding.Means = "Nobody can sign in."
		finding.Mend = "Run `gpulab doctor firewall`, and look at `gpulab logs`; then `" + h.restart(opts) + "`."
	}
	return []Finding{finding}
}

// handshake opens a TLS connection as a browser does.
func (h host) handshake(at, name string, roots *x509.CertPool) error {
	ctx, cancel := context.WithTimeout(h.ctx, pagesPatience)
	defer cancel()
	conn, err := h.dial(ctx, "tcp", at)
	if err != nil {
		return err
	}
	defer conn.Close()
	return tls.Client(conn, &tls.Config{RootCAs: roots, ServerName: name, Time: h.now,
		MinVersion: tls.VersionTLS12}).HandshakeContext(ctx)
}
