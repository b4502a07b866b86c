// Package webca is the lab's certificate authority for browsers: one CA that people trust once, and the
// certificate of the web pages, signed by it and reissued whenever the lab's names change or it gets old.
// It has nothing to do with the certificates of the cluster's nodes, which browsers never see.
//
// The files live in one directory: ca.key and web.pem (key and certificate in one file, so that they
// always fit together) with mode 0600, ca.crt with mode 0644 for everybody.
//
// Trust and Untrust make the programs of this machine believe the CA, or forget it again.
package webca

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gpulab/gpulab/internal/atomicfile"
)

const (
	caFile    = "ca.crt"
	caKeyFile = "ca.key"
	webFile   = "web.pem"

	caLife = 10 * 365 * 24 * time.Hour
	// webLife: browsers refuse certificates of more than 398 days.
	webLife = 397 * 24 * time.Hour
	// renewBefore is how long before its end a certificate is replaced.
	renewBefore = 30 * 24 * time.Hour
	// backdate forgives devices whose clock is behind. It is part of the life.
	backdate = time.Hour
)

// Certs is the CA and the current certificate of the pages. Its methods may be called from any goroutine.
type Certs struct {
	dir   string
	now   func() time.Time
	ca    *x509.Certificate
	caPEM []byte
	caKey *ecdsa.PrivateKey

	wildcards []string // "*.lab.example.org"; nobody else's names can become one

	mu    sync.RWMutex
	names []string
	web   *tls.Certificate
	own   *Own
}

// Ensure loads the CA and the certificate for the given DNS names and IP addresses from dir, and makes
// what is missing, outdated or for other names. The CA stays the same for its ten years. Every certificate is for all
// names below bases, too: for *.lab.example.org where one of them is lab.example.org.
func Ensure(dir string, names []string, bases ...string) (*Certs, error) {
	return ensure(dir, names, time.Now, bases...)
}

func ensure(dir string, names []string, now func() time.Time, bases ...string) (*Certs, error) {
	c := &Certs{dir: dir, now: now}
	for _, base := range bases {
		if base = strings.ToLower(base); !dnsName.MatchString(base) || !strings.Contains(base, ".") {
			return nil, fmt.Errorf("web certificates: *.%s is no name for a certificate", base)
		}
		c.wildcards = append(c.wildcards, "*."+base)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("web certificates: %w", err)
	}
	if err := c.loadCA(names); err != nil {
		return nil, fmt.Errorf("web certificates: %w", err)
	}
	if err := c.Renew(names); err != nil {
		return nil, err
	}
	return c, nil
}

// Renew makes sure that the certificate is for exactly these names and good for another 30 days.
// Connections that come after it get the new one; those that exist live on.
func (c *Certs) Renew(names []string) error {
	names, err := canonical(names)
	if err != nil {
		return fmt.Errorf("web certificate: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.web == nil {
		c.web = c.loadWeb()
	}
	if c.web == nil || !c.good(c.web.Leaf, names) {
		web, err := c.issue(names)
		if err != nil {
			return fmt.Errorf("web certificate: %w", err)
		}
		c.web = web
	}
	c.names = names
	return nil
}

// lookEvery is how often Run looks whether the certificate is still good: a clock may be set at any moment, to the next
// year or back from it.
const lookEvery = time.Minute

// Run renews the certificate in time, as long as ctx lasts.
func (c *Certs) Run(ctx context.Context) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			// A failure is tried again, for 30 days before the certificate runs out.
			_ = c.Renew(c.Names())
		}
	}
}

// Names are the DNS names and addresses in the certificate, sorted, but for those with a *.
func (c *Certs) Names() []string {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return slices.Clone(c.names)
}

// Trouble says why browsers do not take the CA at the time of this machine's clock, "" if they do.
func (c *Certs) Trouble() string {
	now := c.now()
	switch {
	case now.Before(c.ca.NotBefore):
		return fmt.Sprintf("the lab's authority for certificates is of %s, and the clock says %s",
			c.ca.NotBefore.Format(time.DateOnly), now.Format(time.DateOnly))
	case now.After(c.ca.NotAfter):
		return fmt.Sprintf("the lab's authority for certificates ran out on %s, and the clock says %s",
			c.ca.NotAfter.Format(time.DateOnly), now.Format(time.DateOnly))
	}
	return ""
}

// Until is when the certificate runs out, if nobody renews it.
func (c *Certs) Until() time.Time {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.web.Leaf.NotAfter
}

// Prefer has a certificate of somebody else's shown to those who ask for a name it is good for.
func (c *Certs) Prefer(own *Own) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.own = own
}

// GetCertificate is for tls.Config. Whatever name was asked for, the lab has one certificate, or the one to Prefer.
func (c *Certs) GetCertificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if own := c.own.For(hello.ServerName); own != nil {
		return own, nil
	}
	return c.web, nil
}

// TLSConfig serves the current certificate, also after a Renew.
func (c *Certs) TLSConfig() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: c.GetCertificate}
}

// CAPEM is the CA's certificate, for people and pods to trust.
func (c *Certs) CAPEM() []byte { return slices.Clone(c.caPEM) }

// Fingerprint is the SHA-256 of the CA's certificate as browsers show it: AB:CD:….
func (c *Certs) Fingerprint() string { return fingerprint(c.ca) }

// Fingerprint is the same for the first certificate in a PEM file.
func Fingerprint(caPEM []byte) (string, error) {
	cert, err := parseCert(caPEM)
	if err != nil {
		return "", fmt.Errorf("fingerprint of the web CA: %w", err)
	}
	return fingerprint(cert), nil
}

func fingerprint(cert *x509.Certificate) string {
	sum := sha256.Sum256(cert.Raw)
	parts := make([]string, len(sum))
	for i, b := range sum {
		parts[i] = fmt.Sprintf("%02X", b)
	}
	return strings.Join(parts, ":")
}

// loadCA reads the CA or makes one. The key is written first: without its certificate nobody can have
// seen it, so an interrupted start goes on with it.
func (c *Certs) loadCA(names []string) error {
	key, err := c.loadCAKey()
	if err != nil {
		return err
	}
	path := filepath.Join(c.dir, caFile)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		if data, err = newCA(key, names, c.now()); err == nil {
			err = atomicfile.Write(path, data, 0o644)
		}
	}
	if err != nil {
		return err
	}
	cert, err := parseCert(data)
	if err != nil {
		return fmt.Errorf("%s: %w; put back a backup, or delete it to make a new CA, which every browser then has to "+
			"trust again", path, err)
	}
	if !key.PublicKey.Equal(cert.PublicKey) {
		return fmt.Errorf("%s and %s do not belong together: put back a backup of both, or delete both to make a new CA, "+
			"which every browser then has to trust again",
			path, filepath.Join(c.dir, caKeyFile))
	}
	if c.now().After(cert.NotAfter) {
		return fmt.Errorf("the web CA in %s ran out on %s: delete %s and %s to make a new one, which every browser then "+
			"has to trust again",
			c.dir, cert.NotAfter.Format(time.DateOnly), caFile, caKeyFile)
	}
	c.ca, c.caKey, c.caPEM = cert, key, data
	return nil
}

func (c *Certs) loadCAKey() (*ecdsa.PrivateKey, error) {
	path := filepath.Join(c.dir, caKeyFile)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Stat(filepath.Join(c.dir, caFile)); err == nil {
			return nil, fmt.Errorf("%s is missing beside %s: put back a backup, or delete %s to make a new CA, which every "+
				"browser then has to trust again", path, caFile, caFile)
		}
		var key *ecdsa.PrivateKey
		if key, data, err = newKey(); err == nil {
			err = atomicfile.Write(path, data, 0o600)
		}
		return key, err
	}
	if err != nil {
		return nil, err
	}
	// Somebody else could sign with a key that was readable for a while; making it private again is the
	// least, and harmless.
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, err
	}
	key, err := parseKey(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w; put back a backup", path, err)
	}
	return key, nil
}

func newCA(key *ecdsa.PrivateKey, names []string, now time.Time) ([]byte, error) {
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial,
		// The last part tells two labs, or two lives of one, apart in a browser's list.
		Subject: pkix.Name{
			Organization: []string{"gpulab"}, CommonName: fmt.Sprintf("gpulab web CA %s %s", labName(names),
				hex.EncodeToString(serial.Bytes()[:3])),
		},
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.Add(caLife),
		IsCA:                  true,
		BasicConstraintsValid: true,
		MaxPathLenZero:        true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	return encodeCert(der), nil
}

// labName is the first name that a person would call the lab by, cut to fit a common name.
func labName(names []string) string {
	for _, name := range names {
		if _, err := netip.ParseAddr(name); err == nil || name == "localhost" || strings.HasSuffix(name, ".svc") ||
			strings.HasSuffix(name, ".local") {
			continue
		}
		return name[:min(len(name), 32)]
	}
	return "lab"
}

// loadWeb returns the stored certificate, or nil when there is none that can be read.
func (c *Certs) loadWeb() *tls.Certificate {
	path := filepath.Join(c.dir, webFile)
	data, err := os.ReadFile(path)
	if err != nil || os.Chmod(path, 0o600) != nil {
		return nil
	}
	pair, err := tls.X509KeyPair(data, data)
	if err != nil {
		return nil
	}
	return &pair
}

// good says whether a certificate can go on being used.
func (c *Certs) good(cert *x509.Certificate, names []string) bool {
	now := c.now()
	have := slices.Clone(cert.DNSNames)
	for _, ip := range cert.IPAddresses {
		if addr, ok := netip.AddrFromSlice(ip); ok {
			have = append(have, addr.Unmap().String())
		}
	}
	slices.Sort(have)
	wanted := slices.Concat(names, c.wildcards)
	slices.Sort(wanted)
	return slices.Equal(have, wanted) && cert.CheckSignatureFrom(c.ca) == nil &&
		!now.Before(cert.NotBefore) && now.Add(renewBefore).Before(cert.NotAfter)
}

func (c *Certs) issue(names []string) (*tls.Certificate, error) {
	key, keyPEM, err := newKey()
	if err != nil {
		return nil, err
	}
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	start := c.now().Add(-backdate)
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{Organization: []string{"gpulab"}},
		NotBefore:    start,
		NotAfter:     start.Add(webLife),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if template.NotAfter.After(c.ca.NotAfter) {
		template.NotAfter = c.ca.NotAfter
	}
	for _, name := range names {
		if addr, err := netip.ParseAddr(name); err == nil {
			template.IPAddresses = append(template.IPAddresses, addr.AsSlice())
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	template.DNSNames = append(template.DNSNames, c.wildcards...)
	der, err := x509.CreateCertificate(rand.Reader, template, c.ca, &key.PublicKey, c.caKey)
	if err != nil {
		return nil, err
	}
	data := append(keyPEM, encodeCert(der)...)
	if err := atomicfile.Write(filepath.Join(c.dir, webFile), data, 0o600); err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(data, data)
	return &pair, err
}

var dnsName = regexp.MustCompile(`^([a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?$`)

// canonical sorts names, writes each in the one way that certificates and requests use, and drops
// repetitions.
func canonical(names []string) ([]string, error) {
	var list []string
	for _, name := range names {
		if addr, err := netip.ParseAddr(name); err == nil {
			if addr.Zone() != "" {
				return nil, fmt.Errorf("the address %s is good on one link only; name another one", name)
			}
			list = append(list, addr.Unmap().String())
			continue
		}
		name = strings.ToLower(strings.TrimSuffix(name, "."))
		if len(name) > 253 || !dnsName.MatchString(name) {
			return nil, fmt.Errorf("%q is neither a host name nor an address; names with other letters need their xn-- form",
				name)
		}
		list = append(list, name)
	}
	if len(list) == 0 {
		return nil, errors.New("there is no name to make it for")
	}
	slices.Sort(list)
	return slices.Compact(list), nil
}

func newKey() (*ecdsa.PrivateKey, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, err
	}
	return key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

func newSerial() (*big.Int, error) {
	b := make([]byte, 16)
	if _, err := rand.Read(b); err != nil {
		return nil, err
	}
	b[0] = b[0]&0x7f | 0x40 // positive and of full length
	return new(big.Int).SetBytes(b), nil
}

func encodeCert(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func parseCert(data []byte) (*x509.Certificate, error) {
	block, _ := pem.Decode(data)
	if block == nil || block.Type != "CERTIFICATE" {
		return nil, errors.New("no certificate in it")
	}
	return x509.ParseCertificate(block.Bytes)
}

func parseKey(data []byte) (*ecdsa.PrivateKey, error) {
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, errors.New("no key in it")
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, err
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok {
		return nil, errors.New("not an ECDSA key")
	}
	return key, nil
}
