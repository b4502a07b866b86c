package client

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
)

// maxCertificate is far more than an authority's certificate has, in bytes.
const maxCertificate = 64 << 10

// A lab is what it says of itself to whoever asks.
type lab struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

// serverAddress makes of what somebody typed the address of a lab: https, and no path.
func serverAddress(text string) (string, error) {
	text = strings.TrimSpace(text)
	if text == "" {
		return "", fail(ExitUsage, "the address of the lab is missing; write it as in `gpulab login lab.example`")
	}
	scheme, rest, found := strings.Cut(text, "://")
	if !found {
		rest = text
	} else if !strings.EqualFold(scheme, "https") && !strings.EqualFold(scheme, "http") {
		return "", fail(ExitUsage, "%q is no address of a lab; write it as https://lab.example", clip(plain(text), 100))
	}
	u, err := url.Parse("https://" + rest)
	if err != nil || u.Hostname() == "" || u.User != nil {
		return "", fail(ExitUsage, "%q is no address of a lab; write it as https://lab.example", clip(plain(text), 100))
	}
	return "https://" + strings.ToLower(u.Host), nil
}

// meet asks the lab who it is. Where nothing that this computer trusts vouches for it, the authority that the lab names
// itself is returned in PEM: not trusted yet, but the lab's certificate is signed by it.
func meet(ctx context.Context, server string) (found lab, authority []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	config, err := tlsConfig(nil)
	if err != nil {
		return lab{}, nil, err
	}
	first := httpClient(config)
	defer first.CloseIdleConnections()
	err = ask(ctx, first, server, "", http.MethodGet, "/lab", nil, &found)
	var unknown x509.UnknownAuthorityError
	if !errors.As(err, &unknown) {
		return found, nil, err
	}
	if authority, err = namedAuthority(ctx, server); err != nil {
		return lab{}, nil, err
	}
	pinned, err := tlsConfig(authority)
	if err != nil {
		return lab{}, nil, err
	}
	second := httpClient(pinned)
	defer second.CloseIdleConnections()
	err = ask(ctx, second, server, "", http.MethodGet, "/lab", nil, &found)
	if errors.As(err, &unknown) {
		err = fail(ExitNotReached, "the certificate of %s is not signed by the authority that it names itself; do not "+
			"sign in, and tell an admin of the lab", server)
	}
	return found, authority, err
}

// namedAuthority fetches the authority that a lab offers for download. Nothing vouches for the answer: its fingerprint
// has to be compared.
func namedAuthority(ctx context.Context, server string) ([]byte, error) {
	//nolint:gosec // what comes is checked by a person
	client := httpClient(&tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true})
	defer client.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, server+"/ca.crt", nil)
	if err != nil {
		return nil, err
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, notReached(ctx, server, err)
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(response.Body, maxCertificate))
	if err != nil {
		return nil, notReached(ctx, server, err)
	}
	block, _ := pem.Decode(text)
	if response.StatusCode != http.StatusOK || block == nil || block.Type != "CERTIFICATE" {
		return nil, fail(ExitNotReached, "nothing that this computer trusts vouches for %s, and it names no authority of "+
			"its own; check the address", server)
	}
	certificate, err := x509.ParseCertificate(block.Bytes)
	if err != nil || !certificate.IsCA {
		return nil, fail(ExitNotReached, "what %s calls its certificate authority is none; check the address", server)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate.Raw}), nil
}

// fingerprint is the SHA-256 of an authority the way browsers and the lab's page show it.
func fingerprint(authority []byte) string {
	block, _ := pem.Decode(authority)
	if block == nil {
		return ""
	}
	sum := sha256.Sum256(block.Bytes)
	pairs := make([]string, len(sum))
	for i, b := range sum {
		pairs[i] = fmt.Sprintf("%02X", b)
	}
	return strings.Join(pairs, ":")
}

// sameFingerprint compares fingerprints however they are written.
func sameFingerprint(a, b string) bool {
	bare := func(text string) string {
		text = strings.ToLower(strings.TrimSpace(text))
		text = strings.TrimPrefix(strings.TrimPrefix(text, "sha256:"), "sha-256:")
		return strings.NewReplacer(":", "", " ", "").Replace(text)
	}
	decoded, err := hex.DecodeString(bare(a))
	return err == nil && len(decoded) == sha256.Size && bare(a) == bare(b)
}
