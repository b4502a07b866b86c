package tailnet

import (
	"context"
	"errors"
	"time"

	"tailscale.com/ipn/ipnlocal"
	"tailscale.com/tsnet"
)

// CertificatesFrom gives the running node's certificates from another place than an authority in the internet.
func (s *Service) CertificatesFrom(get func(name string) (cert, key []byte, err error)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.node == nil {
		return errors.New("it is off")
	}
	tsnet.TestHooks.LocalBackend(s.node.server).ForTest().ConfigureCerts(func(name string) (*ipnlocal.TLSCertKeyPair, error) {
		cert, key, err := get(name)
		return &ipnlocal.TLSCertKeyPair{CertPEM: cert, KeyPEM: key}, err
	})
	return nil
}

// Hurry makes a node look for its certificate every second instead of every hour, and again after a failure. It is for
// before Run.
func (s *Service) Hurry() { s.pace = pace{every: time.Second, again: time.Second} }

// AskForCertificate does at once what the running node does every hour.
func (s *Service) AskForCertificate(ctx context.Context) error {
	s.mu.Lock()
	n := s.node
	s.mu.Unlock()
	return n.fetchCertificate(ctx, n.certDomain())
}
