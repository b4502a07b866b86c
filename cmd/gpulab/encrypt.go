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

// tunnelPort is where machines take what other machines' pods send, UDP.
func tunnelPort(encrypted bool) int {
	if encrypted {
		return wireguard.Port
	}
	return wireguard.OpenPort
}

// encrypt begins or ends encrypting, as the head wants it: k3s alone is started anew for it, and notebooks go on.
func (g *agent) encrypt(on bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.file.Settings.Encrypt == on {
		return
	}
	if err := canEncrypt(on); err != nil {
		if !g.cannotEncrypt {
			slog.Error("the head encrypts what goes between machines, and this one cannot: its pods reach nobody on others", "err", err)
		}
		g.cannotEncrypt = true
		return
	}
	if cluster := g.cluster.Load(); cluster != nil {
		if err := cluster.Encrypt(on); err != nil {
			slog.Warn("encryption between machines could not be changed; trying again", "wanted", on, "err", err)
			return
		}
	}
	slog.Info("what goes between machines", "encrypted", on)
	g.file.Settings.Encrypt, g.cfg.Network.Encrypt, g.cannotEncrypt = on, on, false
	if err := g.file.save(); err != nil {
		slog.Warn("what the head wants could not be kept", "err", err)
	}
}
