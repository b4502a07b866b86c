package sftpd

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/crypto/ssh"

	"github.com/gpulab/gpulab/internal/atomicfile"
)

// LoadHostKey reads the lab's SSH host key from a file, making it the first time: clients remember it.
func LoadHostKey(path string) (ssh.Signer, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		text, err = makeHostKey(path)
	}
	if err != nil {
		return nil, fmt.Errorf("the SSH host key: %w", err)
	}
	if info, err := os.Stat(path); err == nil && info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("the SSH host key in %s can be read by others (mode %04o); make a new one: delete it and "+
			"start gpulab again, or `chmod 600` it if nobody else was on this machine", path, info.Mode().Perm())
	}
	signer, err := ssh.ParsePrivateKey(text)
	if err != nil {
		return nil, fmt.Errorf("the SSH host key in %s is damaged (%w); restore it from a backup, or delete it and start "+
			"gpulab again: then everybody's program asks about the new one", path, err)
	}
	return signer, nil
}

// makeHostKey writes a new key in one step, for its owner alone.
func makeHostKey(path string) ([]byte, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	block, err := ssh.MarshalPrivateKey(key, "gpulab")
	if err != nil {
		return nil, err
	}
	text := pem.EncodeToMemory(block)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	return text, atomicfile.Write(path, text, 0o600)
}

// Identity is a host key as people and programs compare it.
type Identity struct {
	// Key is the public key as in a file known_hosts, without the host's name.
	Key string `json:"hostKey"`
	// Fingerprint is SHA256:… as OpenSSH shows it.
	Fingerprint string `json:"fingerprint"`
}

// IdentityOf is the public side of a host key.
func IdentityOf(key ssh.Signer) Identity {
	public := key.PublicKey()
	return Identity{
		Key: strings.TrimSpace(string(ssh.MarshalAuthorizedKey(public))), Fingerprint: ssh.FingerprintSHA256(public),
	}
}
