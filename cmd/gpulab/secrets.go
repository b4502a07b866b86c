package main

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/gpulab/gpulab/internal/atomicfile"
	"github.com/gpulab/gpulab/internal/charts"
)

// loadHubSecrets returns the secrets gpulab and the hub share, making them the
// first time: they must outlive every pod.
func loadHubSecrets(dataDir string) (charts.HubSecrets, error) {
	path := filepath.Join(dataDir, "hub-secrets.json")
	var s charts.HubSecrets
	data, err := os.ReadFile(path)
	if err == nil {
		if err := json.Unmarshal(data, &s); err != nil {
			return s, fmt.Errorf("%s is damaged (%w); delete it and run `gpulab init`: everybody signs in again", path, err)
		}
		return s, nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		return s, err
	}
	s = charts.HubSecrets{
		CookieSecret: randomHex(), ProxyToken: randomHex(), ServiceToken: randomHex(),
		OIDCClientID: "jupyterhub", OIDCClientSecret: randomHex(),
	}
	if data, err = json.Marshal(s); err != nil {
		return s, err
	}
	return s, atomicfile.Write(path, data, 0o600)
}

func metricsTokenPath(dataDir string) string { return filepath.Join(dataDir, "metrics-token") }

// loadMetricsToken returns what Prometheus must know, making it the first time.
func loadMetricsToken(dataDir string) (string, error) {
	return loadToken(metricsTokenPath(dataDir), "the token of the metrics")
}

// loadLabelKey returns what signs the credentials of notebooks' names, making it the
// first time. The hub does not have it.
func loadLabelKey(dataDir string) (string, error) {
	return loadToken(filepath.Join(dataDir, "label-key"), "the key of notebooks' names")
}

func loadToken(path, what string) (string, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		token := randomHex()
		if err = atomicfile.Write(path, []byte(token+"\n"), 0o600); err == nil {
			return token, nil
		}
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w", what, err)
	}
	token := strings.TrimSpace(string(data))
	if len(token) < 16 {
		return "", fmt.Errorf("%s holds no token of at least 16 characters; delete it and run `gpulab init`", path)
	}
	return token, nil
}

// randomHex returns 256 random bits in hexadecimal.
func randomHex() string {
	b := make([]byte, 32)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}
