// Package client is gpulab on people's own computers: commands that sign in to a lab, start and stop notebooks there,
// and show what runs. It speaks to the lab's HTTP API alone and knows nothing of what is behind it, so that it stays
// small and builds for Linux, macOS and Windows.
//
// cmd/gpulab-client is these commands and nothing else; cmd/gpulab has them beside those of root.
package client

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/gpulab/gpulab/internal/version"
)

const (
	// answerTimeout is for one question and its answer, but for those that wait for a change.
	answerTimeout = 30 * time.Second
	// maxAnswer bounds what is read of an answer, in bytes.
	maxAnswer = 16 << 20
)

// Session is this computer's way into a lab: its address, an access token, and whom to trust for it.
type Session struct {
	Login Login
	http  *http.Client
}

// NewSession makes a session of what was kept at sign-in.
func NewSession(l Login) (*Session, error) {
	config, err := tlsConfig([]byte(l.CA))
	if err != nil {
		return nil, err
	}
	return &Session{Login: l, http: httpClient(config)}, nil
}

// TLS is whom the session trusts: the authority that was pinned at sign-in, or those of the system.
func (s *Session) TLS() (*tls.Config, error) { return tlsConfig([]byte(s.Login.CA)) }

// Host is the lab's name or address, without a port.
func (s *Session) Host() string {
	u, err := url.Parse(s.Login.Server)
	if err != nil {
		return ""
	}
	return u.Hostname()
}

func tlsConfig(ca []byte) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if len(ca) == 0 {
		return config, nil
	}
	config.RootCAs = x509.NewCertPool()
	if !config.RootCAs.AppendCertsFromPEM(ca) {
		return nil, fail(ExitFailure, "the lab's certificate authority that was kept at sign-in cannot be read; sign in "+
			"again with `gpulab login`")
	}
	return config, nil
}

func httpClient(config *tls.Config) *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			TLSClientConfig: config, Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true,
			TLSHandshakeTimeout: 10 * time.Second,
		},
		// A token goes to the address that was named at sign-in and nowhere else.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// Get asks the API for path, which begins behind /api/v1, and reads the answer into out.
func (s *Session) Get(ctx context.Context, path string, out any) error {
	return s.Do(ctx, http.MethodGet, path, nil, out)
}

// Do sends in as JSON, unless it is nil, and decodes the answer into out, unless that is nil. If the lab refuses the
// request, the error is a *Problem. If the lab answers 429 with a Retry-After, Do waits that long and sends the request
// again, unless it would wait for more than mostPauses in all. The lab answers so, for example, when gpulab fetches a
// long log in many requests.
func (s *Session) Do(ctx context.Context, method, path string, in, out any) error {
	var paused time.Duration
	for {
		err := s.once(ctx, method, path, in, out)
		var refused *Problem
		if !errors.As(err, &refused) || refused.Status != http.StatusTooManyRequests || refused.RetryAfter <= 0 {
			return err
		}
		if paused += refused.RetryAfter; paused > mostPauses {
			return err
		}
		if pause(ctx, refused.RetryAfter); ctx.Err() != nil {
			return notReached(ctx, s.Login.Server, ctx.Err())
		}
	}
}

// mostPauses is how long Do waits in all for a lab that answers 429.
const mostPauses = 30 * time.Second

// once is Do without a second try.
func (s *Session) once(ctx context.Context, method, path string, in, out any) error {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	return ask(ctx, s.http, s.Login.Server, s.Login.Token, method, path, in, out)
}

func ask(ctx context.Context, client *http.Client, server, token, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		text, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(text)
	}
	request, err := http.NewRequestWithContext(ctx, method, server+"/api/v1"+path, body)
	if err != nil {
		return err
	}
	if in != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	request.Header.Set("Accept", "application/json, application/problem+json")
	request.Header.Set("User-Agent", "gpulab-client/"+version.Version+" ("+runtime.GOOS+"/"+runtime.GOARCH+")")
	response, err := client.Do(request)
	if err != nil {
		return notReached(ctx, server, err)
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return notReached(ctx, server, err)
	}
	if response.StatusCode/100 != 2 {
		return refusal(server, response, text)
	}
	if out == nil || len(text) == 0 {
		return nil
	}
	if err := json.Unmarshal(text, out); err != nil {
		return fail(ExitFailure, "%s does not answer as a gpulab does (%w); is this gpulab of another version?", server, err)
	}
	return nil
}

// Problem is what a lab refused, and why: problem details of RFC 9457.
type Problem struct {
	Status int    `json:"status"`
	Title  string `json:"title"`
	Detail string `json:"detail"`
	// RetryAfter is how long the lab asks to wait, 0 for not at all.
	RetryAfter time.Duration `json:"-"`
}

func (p *Problem) Error() string {
	if p.Detail == "" {
		return plain(p.Title)
	}
	lines := strings.Split(p.Detail, "\n")
	for i := range lines {
		lines[i] = plain(lines[i])
	}
	return strings.Join(lines, "\n")
}

// ExitCode tells a token that does not count any more from what was refused.
func (p *Problem) ExitCode() int {
	switch {
	case p.Status == http.StatusUnauthorized:
		return ExitSignedOut
	case p.Status >= http.StatusInternalServerError:
		return ExitFailure
	}
	return ExitRefused
}

// refusal reads why the answer is not what was asked for.
func refusal(server string, response *http.Response, text []byte) error {
	kind, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type"))
	var p Problem
	if kind == "application/problem+json" && json.Unmarshal(text, &p) == nil {
		p.Status = response.StatusCode
		if seconds, err := strconv.Atoi(response.Header.Get("Retry-After")); err == nil {
			p.RetryAfter = time.Duration(seconds) * time.Second
		}
		return &p
	}
	switch {
	case response.StatusCode == http.StatusServiceUnavailable:
		return fail(ExitNotReached, "%s is starting; try again in a minute", server)
	case response.StatusCode/100 == 3:
		return fail(ExitFailure, "%s is not where the lab is: it leads to %q; sign in there with `gpulab login`", server,
			clip(plain(response.Header.Get("Location")), 200))
	}
	return fail(ExitFailure, "%s does not answer as a gpulab does (status %d); check the address", server,
		response.StatusCode)
}

// notReached explains why there was no answer.
func notReached(ctx context.Context, server string, err error) error {
	var authority x509.UnknownAuthorityError
	var name x509.HostnameError
	var invalid x509.CertificateInvalidError
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return fail(ExitFailure, "interrupted")
	case errors.As(err, &authority):
		return &strangerError{server, authority}
	case errors.As(err, &name):
		return fail(ExitNotReached, "the certificate of %s is for other names (%w); use the address that the lab's own "+
			"page shows", server, err)
	case errors.As(err, &invalid):
		return fail(ExitNotReached, "the certificate of %s is not valid (%w); check this computer's clock", server, err)
	}
	var broken *url.Error
	if errors.As(err, &broken) {
		err = broken.Err // without the address, which stands in the sentence
	}
	return fail(ExitNotReached, "%s cannot be reached (%w); check the address and this computer's network", server, err)
}

// strangerError says that nobody who is trusted vouches for what answers at a lab's address.
type strangerError struct {
	server string
	cause  error
}

func (e *strangerError) Error() string {
	return fmt.Sprintf("%s shows a certificate that the authority trusted at sign-in did not sign; ask an admin of the "+
		"lab whether it has a new one, then sign in again with `gpulab login %[1]s`", e.server)
}

func (e *strangerError) Unwrap() error { return e.cause }
func (e *strangerError) ExitCode() int { return ExitNotReached }

// plain keeps what comes from elsewhere from moving the cursor or turning the direction of writing.
func plain(text string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' {
			return ' '
		}
		if !strconv.IsPrint(r) {
			return -1
		}
		return r
	}, text)
}

func clip(text string, most int) string {
	if r := []rune(text); len(r) > most {
		return string(r[:most]) + "…"
	}
	return text
}

// exitError is an error with the program's exit code.
type exitError struct {
	code int
	error
}

func (e exitError) Unwrap() error { return e.error }
func (e exitError) ExitCode() int { return e.code }

// fail returns an error that ends the program with code.
func fail(code int, format string, args ...any) error {
	return exitError{code, fmt.Errorf(format, args...)}
}

// Exit codes of the commands; those between are of root's commands.
const (
	ExitOK         = 0
	ExitFailure    = 1 // something failed
	ExitUsage      = 2 // the command line is wrong
	ExitSignedOut  = 7 // not signed in to a lab, or not any more
	ExitNotReached = 8 // the lab cannot be reached, or is not the one that was trusted
	ExitRefused    = 9 // the lab refused it: role, scope, quota, or no such thing
	ExitNotStarted = 10
)

// ExitCode is the exit code for what a command returned.
func ExitCode(err error) int {
	if err == nil {
		return ExitOK
	}
	var coded interface{ ExitCode() int }
	if errors.As(err, &coded) {
		return coded.ExitCode()
	}
	return ExitFailure
}
