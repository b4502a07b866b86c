package embedk8s

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// CertificatesUntil is when the first of k3s's certificates runs out, apart from its authorities. k3s makes new ones
// when it starts, for a year, where they are good for less than 120 days; one that runs never does. It is zero while
// there are none.
func (c *Cluster) CertificatesUntil() (time.Time, error) {
	var first time.Time
	for _, pattern := range []string{"server/tls/*.crt", "agent/*.crt"} {
		paths, err := filepath.Glob(filepath.Join(c.k3sDir(), pattern))
		if err != nil {
			return first, err
		}
		for _, path := range paths {
			until, err := validUntil(path)
			if errors.Is(err, fs.ErrNotExist) {
				continue // k3s is writing it
			}
			if err != nil {
				return first, err
			}
			if !until.IsZero() && (first.IsZero() || until.Before(first)) {
				first = until
			}
		}
	}
	return first, nil
}

// validUntil reads until when the certificate in a file is good, zero for an authority's.
func validUntil(path string) (time.Time, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return time.Time{}, err
	}
	block, _ := pem.Decode(data)
	if block == nil {
		return time.Time{}, fmt.Errorf("%s holds no certificate", path)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return time.Time{}, fmt.Errorf("%s: %w", path, err)
	}
	if cert.IsCA {
		return time.Time{}, nil
	}
	return cert.NotAfter, nil
}

// Restart ends k3s in order and starts it anew; pods stay.
func (c *Cluster) Restart() {
	select {
	case c.moved <- struct{}{}:
	default: // one is under way
	}
}
