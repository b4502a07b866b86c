package signin

import (
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"golang.org/x/oauth2"
)

// maxAnswer is how much a provider may answer with, in bytes: a thousand groups take a tenth of it.
const maxAnswer = 1 << 20

func newFlow(about Flow, provider, redirect string) flow {
	return flow{
		Flow: about, provider: provider, nonce: rand.Text(), verifier: oauth2.GenerateVerifier(), redirect: redirect,
	}
}

// secret reads a secret from its file, without the line's end; empty without a file.
func secret(file string) (string, error) {
	if file == "" {
		return "", nil
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("the secret: %w", err)
	}
	text := strings.TrimRight(string(data), "\r\n")
	if text == "" {
		return "", fmt.Errorf("the secret: %s is empty", file)
	}
	return text, nil
}

// roots are the certificates to trust, nil for the system's.
func roots(caFile string) (*x509.CertPool, error) {
	data, err := certificates(caFile)
	if err != nil || caFile == "" {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(data) {
		return nil, fmt.Errorf("the certificates to trust: %s holds none; they begin with -----BEGIN CERTIFICATE-----",
			caFile)
	}
	return pool, nil
}

// certificates is what a file of them holds now, nothing without a file.
func certificates(caFile string) ([]byte, error) {
	if caFile == "" {
		return nil, nil
	}
	data, err := os.ReadFile(caFile)
	if err != nil {
		return nil, fmt.Errorf("the certificates to trust: %w", err)
	}
	return data, nil
}

// httpClient talks to a provider: encrypted only, to the address that was meant, not for long and not about much.
func (s *settings) httpClient() (*http.Client, error) {
	pool, err := roots(s.CAFile)
	if err != nil {
		return nil, err
	}
	proxy := http.ProxyFromEnvironment
	if s.proxy != nil {
		proxy = func(r *http.Request) (*url.URL, error) { return s.proxy(r.URL) }
	}
	return &http.Client{
		Timeout: answerTime,
		Transport: strict{&http.Transport{
			Proxy: proxy, TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool},
			TLSHandshakeTimeout: answerTime, ResponseHeaderTimeout: answerTime, IdleConnTimeout: time.Minute,
			MaxResponseHeaderBytes: 64 << 10, MaxIdleConns: 4, ForceAttemptHTTP2: true,
		}},
		// What is sent holds secrets and codes. It goes nowhere else.
		CheckRedirect: func(*http.Request, []*http.Request) error {
			return errors.New("the provider leads to another address; write that one into the configuration")
		},
	}, nil
}

// strict refuses what is not encrypted and what is too long.
type strict struct{ next *http.Transport }

// CloseIdleConnections is what http.Client looks for.
func (t strict) CloseIdleConnections() { t.next.CloseIdleConnections() }

// RoundTrip implements http.RoundTripper.
func (t strict) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != "https" {
		return nil, fmt.Errorf("the provider names %s, which is not encrypted", r.URL.Redacted())
	}
	resp, err := t.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	resp.Body = bounded{io.LimitReader(resp.Body, maxAnswer), resp.Body}
	return resp, nil
}

type bounded struct {
	io.Reader
	io.Closer
}
