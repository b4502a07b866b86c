package main

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/gpulab/gpulab/internal/wireguard"
)

// canEncrypt says why this machine cannot encrypt what its pods and those of other machines say to each other, if that
// is wanted.
func canEncrypt(wanted bool) error {
	if !wanted {
		return nil
	}
	err := wireguard.Look("/")
	if errors.Is(err, wireguard.ErrMissing) {
		return fmt.Errorf("network.encrypt: %w", err)
	}
	return err
}

// encrypts tells whether the head has said that this machine is to encrypt.
func (g *agent) encrypts() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.file.Settings.Encrypt
}

// encrypt begins or ends encrypting, as the head wants it: k3s alone is started anew for it, and notebooks go on. Where
// the kernel cannot, k3s does not come up, Kubernetes places nothing here, and the head is told why.
func (g *agent) encrypt(on bool) {
	err := canEncrypt(on)
	g.mu.Lock()
	news := g.file.Settings.Encrypt != on
	if err != nil && !g.cannotEncrypt {
		slog.Error("this machine cannot encrypt what goes between machines, as the head does: nothing starts here", "err",
			err)
	}
	g.file.Settings.Encrypt, g.cannotEncrypt = on, err != nil
	if news {
		slog.Info("what goes between machines", "encrypted", on)
		if err := g.file.save(); err != nil {
			slog.Warn("what the head wants could not be kept", "err", err)
		}
	}
	g.mu.Unlock()
	if cluster := g.cluster.Load(); cluster != nil {
		if err := cluster.Encrypt(on); err != nil {
			slog.Warn("encryption between machines could not be changed; trying again", "wanted", on, "err", err)
		}
	}
}

// encryptionSentence says why a machine does not encrypt as the lab does, "" where it does.
func encryptionSentence(name string, wanted bool, m toldEncryption) string {
	switch {
	case wanted && m.cannot:
		return fmt.Sprintf("The kernel of %s has no WireGuard, by which this lab encrypts what goes between machines; "+
			"`gpulab doctor` there says what to do.", name)
	case m.encrypts == wanted:
		return ""
	case wanted:
		return fmt.Sprintf("%s does not encrypt yet what goes between machines. If that stays so, its gpulab is of an "+
			"earlier version: upgrade it there.", name)
	}
	return fmt.Sprintf("%s still encrypts what goes between machines.", name)
}

// toldEncryption is what a machine has told of it.
type toldEncryption struct{ encrypts, cannot bool }
