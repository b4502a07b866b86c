package nodes

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/gpulab/gpulab/internal/atomicfile"
)

// HeadName is the name in the head's certificate: machines ask for it whatever
// the head's address is.
const HeadName = "head.nodes.gpulab"

// How long certificates last, and when those that are running out are replaced.
const (
	authorityLife   = 20 * 365 * 24 * time.Hour
	certificateLife = 90 * 24 * time.Hour
	// RenewBefore is how long before its end a machine replaces its certificate.
	RenewBefore = 60 * 24 * time.Hour
	// backdate forgives clocks that are behind; join tells of larger differences.
	backdate = 24 * time.Hour
)

const (
	authorityFile    = "ca.crt"
	authorityKeyFile = "ca.key"
)

// Authority signs the certificates by which the machines of a pool know each
// other. No browser ever sees it.
type Authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey

	mu   sync.Mutex
	head *tls.Certificate
}

// LoadAuthority reads the authority in a folder, or makes one.
func LoadAuthority(dir string) (*Authority, error) {
	a, err := readAuthority(dir)
	if errors.Is(err, fs.ErrNotExist) {
		a, err = makeAuthority(dir)
	}
	if err != nil {
		return nil, fmt.Errorf("the machines' authority in %s: %w", dir, err)
	}
	return a, nil
}

func readAuthority(dir string) (*Authority, error) {
	certificate, err := os.ReadFile(filepath.Join(dir, authorityFile))
	if err != nil {
		return nil, err
	}
	key, err := os.ReadFile(filepath.Join(dir, authorityKeyFile))
	if err != nil {
		return nil, fmt.Errorf("its key is not readable (%s); restore it from a backup", err.Error())
	}
	a := &Authority{}
	if a.certificate, err = ParseCertificate(certificate); err != nil {
		return nil, err
	}
	if a.key, err = ParseKey(key); err != nil {
		return nil, err
	}
	if !a.key.PublicKey.Equal(a.certificate.PublicKey) {
		return nil, errors.New("key and certificate do not belong together; restore both from one backup")
	}
	return a, nil
}

// makeAuthority writes the certificate last: with it, the authority exists.
func makeAuthority(dir string) (*Authority, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	key, err := NewKey()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: "gpulab machines"},
		NotBefore: time.Now().Add(-backdate), NotAfter: time.Now().Add(authorityLife),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	keyPEM, err := EncodeKey(key)
	if err != nil {
		return nil, err
	}
	for _, f := range []struct {
		name string
		data []byte
	}{{authorityKeyFile, keyPEM}, {authorityFile, EncodeCertificate(der)}} {
		if err := WriteSecret(filepath.Join(dir, f.name), f.data); err != nil {
			return nil, err
		}
	}
	certificate, err := x509.ParseCertificate(der)
	return &Authority{certificate: certificate, key: key}, err
}

// Fingerprint is the SHA-256 of the authority's certificate.
func (a *Authority) Fingerprint() [sha256.Size]byte { return sha256.Sum256(a.certificate.Raw) }

// PEM is the authority's certificate.
func (a *Authority) PEM() []byte { return EncodeCertificate(a.certificate.Raw) }

// ServerConfig is for the head's door. A visitor may show a machine's
// certificate; who has to is the handler's matter.
func (a *Authority) ServerConfig() *tls.Config {
	pool := x509.NewCertPool()
	pool.AddCert(a.certificate)
	return &tls.Config{
		MinVersion: tls.VersionTLS13, ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: pool,
		NextProtos:     []string{"h2"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return a.headCertificate(time.Now()) },
	}
}

// headCertificate lives in memory only, and is made anew long before it ends.
// It brings the authority's along: a new machine knows that by its fingerprint.
func (a *Authority) headCertificate(now time.Time) (*tls.Certificate, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.head != nil && now.Before(a.head.Leaf.NotAfter.Add(-RenewBefore)) && now.After(a.head.Leaf.NotBefore) {
		return a.head, nil
	}
	key, err := NewKey()
	if err != nil {
		return nil, err
	}
	der, err := a.sign(&key.PublicKey, HeadName, x509.ExtKeyUsageServerAuth, now)
	if err != nil {
		return nil, err
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	a.head = &tls.Certificate{Certificate: [][]byte{der, a.certificate.Raw}, PrivateKey: key, Leaf: leaf}
	return a.head, nil
}

// Sign makes a machine's certificate for the key in a request. All else in the
// request is ignored: the name is the one the head knows the machine by.
func (a *Authority) Sign(request *x509.CertificateRequest, name string) (certificate []byte, err error) {
	der, err := a.sign(request.PublicKey, name, x509.ExtKeyUsageClientAuth, time.Now())
	if err != nil {
		return nil, fmt.Errorf("a certificate for %s: %w", name, err)
	}
	return EncodeCertificate(der), nil
}

func (a *Authority) sign(key crypto.PublicKey, name string, use x509.ExtKeyUsage, now time.Time) ([]byte, error) {
	return x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: now.Add(-backdate), NotAfter: now.Add(certificateLife),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{use}, BasicConstraintsValid: true,
	}, a.certificate, key, a.key)
}

func serial() *big.Int {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[0] &= 0x7f
	return new(big.Int).SetBytes(b[:])
}

// NewKey makes a machine's key.
func NewKey() (*ecdsa.PrivateKey, error) { return ecdsa.GenerateKey(elliptic.P256(), rand.Reader) }

// NewRequest asks for a certificate for a key.
func NewRequest(key *ecdsa.PrivateKey) ([]byte, error) {
	return x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
}

// ParseRequest reads a request whose sender has shown to have the key.
func ParseRequest(der []byte) (*x509.CertificateRequest, error) {
	r, err := x509.ParseCertificateRequest(der)
	if err == nil {
		err = r.CheckSignature()
	}
	if err != nil {
		return nil, fmt.Errorf("the request for a certificate: %w", err)
	}
	if key, ok := r.PublicKey.(*ecdsa.PublicKey); !ok || key.Curve != elliptic.P256() {
		return nil, errors.New("the request for a certificate: its key is of another kind than gpulab's")
	}
	return r, nil
}

// KeyHash is the SHA-256 of a public key.
func KeyHash(key crypto.PublicKey) ([sha256.Size]byte, error) {
	der, err := x509.MarshalPKIXPublicKey(key)
	return sha256.Sum256(der), err
}

// EncodeKey and ParseKey write and read a key as PEM.
func EncodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), err
}

// ParseKey reads what EncodeKey wrote.
func ParseKey(text []byte) (*ecdsa.PrivateKey, error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, errors.New("the key is damaged")
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("the key is damaged: %w", err)
	}
	ec, ok := key.(*ecdsa.PrivateKey)
	if !ok {
		return nil, errors.New("the key is of another kind than gpulab's")
	}
	return ec, nil
}

// EncodeCertificate writes a certificate as PEM.
func EncodeCertificate(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// ParseCertificate reads what EncodeCertificate wrote.
func ParseCertificate(text []byte) (*x509.Certificate, error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, errors.New("the certificate is damaged")
	}
	return x509.ParseCertificate(block.Bytes)
}

// WriteSecret writes a file for root alone in one step.
func WriteSecret(path string, data []byte) error {
	_, err := atomicfile.Update(path, data, 0o600, 0o700)
	return err
}
