package oidc

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	jose "github.com/go-jose/go-jose/v4"
	"github.com/zitadel/oidc/v3/pkg/op"
)

const signingAlgorithm = jose.ES256

// signingKey is op.SigningKey; its ID is derived from the key, so a new key has a new one.
type signingKey struct {
	id  string
	key *ecdsa.PrivateKey
}

func (k signingKey) SignatureAlgorithm() jose.SignatureAlgorithm { return signingAlgorithm }
func (k signingKey) Key() any                                    { return k.key }
func (k signingKey) ID() string                                  { return k.id }

func (k signingKey) public() op.Key { return publicKey{k} }

// publicKey is op.Key.
type publicKey struct{ k signingKey }

func (p publicKey) ID() string                         { return p.k.id }
func (p publicKey) Algorithm() jose.SignatureAlgorithm { return signingAlgorithm }
func (p publicKey) Use() string                        { return "sig" }
func (p publicKey) Key() any                           { return &p.k.key.PublicKey }

// loadKey reads the key from path, or makes one there.
func loadKey(path string) (signingKey, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		if data, err = createKey(path); errors.Is(err, fs.ErrExist) {
			data, err = os.ReadFile(path) // somebody else was faster
		}
	}
	if err != nil {
		return signingKey{}, fmt.Errorf("oidc: signing key: %w", err)
	}
	if fi, err := os.Stat(path); err == nil && fi.Mode().Perm()&0o077 != 0 {
		return signingKey{}, fmt.Errorf("oidc: signing key %s can be read by others (mode %v): delete it, a new one is "+
			"made at the next start", path, fi.Mode().Perm())
	}
	block, _ := pem.Decode(data)
	if block == nil {
		return signingKey{}, fmt.Errorf("oidc: signing key %s is damaged: delete it, a new one is made at the next start",
			path)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	key, ok := parsed.(*ecdsa.PrivateKey)
	if err != nil || !ok || key.Curve != elliptic.P256() {
		return signingKey{},
			fmt.Errorf("oidc: signing key %s is no P-256 key: delete it, a new one is made at the next start", path)
	}
	spki, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return signingKey{}, fmt.Errorf("oidc: signing key: %w", err)
	}
	sum := sha256.Sum256(spki)
	return signingKey{id: base64.RawURLEncoding.EncodeToString(sum[:12]), key: key}, nil
}

// createKey never leaves half a key under the name, and never replaces one.
func createKey(path string) ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	data := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), ".key-") // mode 0600
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.Remove(tmp.Name()) }()
	_, err = tmp.Write(data)
	if err = errors.Join(err, tmp.Sync(), tmp.Close()); err != nil {
		return nil, err
	}
	return data, os.Link(tmp.Name(), path)
}

// seal is op.Crypto for codes and tokens: authenticated, unlike the library's own, with a key that lives
// as long as the process, as the grants do.
type seal struct{ aead cipher.AEAD }

func newSeal() (seal, error) {
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails
	block, err := aes.NewCipher(key)
	if err != nil {
		return seal{}, err
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	return seal{aead}, err
}

// Encrypt implements op.Crypto.
func (s seal) Encrypt(plain string) (string, error) {
	return base64.RawURLEncoding.EncodeToString(s.aead.Seal(nil, nil, []byte(plain), nil)), nil
}

// Decrypt implements op.Crypto.
func (s seal) Decrypt(sealed string) (string, error) {
	data, err := base64.RawURLEncoding.Strict().DecodeString(sealed)
	if err != nil {
		return "", err
	}
	plain, err := s.aead.Open(nil, nil, data, nil)
	return string(plain), err
}
