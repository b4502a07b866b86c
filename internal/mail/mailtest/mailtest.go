// Package mailtest is a mail server of somebody else's, for tests: go-smtp with certificates and accounts of the test's
// own, which keeps what it takes.
package mailtest

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"math/big"
	"mime"
	"mime/quotedprintable"
	"net"
	"net/mail"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/emersion/go-sasl"
	"github.com/emersion/go-smtp"
)

// Options are how a server is. The zero value takes everything, unencrypted.
type Options struct {
	// Certificate is offered with STARTTLS, or from the beginning where Implicit is set.
	Certificate *tls.Certificate
	Implicit    bool
	// User may sign in with Password; everybody else has to go. Empty asks nobody.
	User, Password string
	// Answer refuses with an *smtp.SMTPError: at is MAIL, RCPT or DATA, address whose it is. Nil refuses nothing.
	Answer func(at, address string) error
	// Taken is called with each mail before the client hears that it was taken.
	Taken func(Mail)
}

// Mail is one that the server has taken.
type Mail struct {
	From, To  string // of the envelope
	Encrypted bool
	Raw       string
	Header    mail.Header
	Subject   string
	Text      string
}

// Server takes mails.
type Server struct {
	options Options
	server  *smtp.Server

	mu      sync.Mutex
	mails   []Mail
	changed chan struct{}
}

// Serve takes mails on a listener until the test ends, or Close.
func Serve(t testing.TB, l net.Listener, o Options) *Server {
	t.Helper()
	s := &Server{options: o, changed: make(chan struct{}, 1)}
	s.server = smtp.NewServer(s)
	s.server.Domain = "mail.test"
	s.server.AllowInsecureAuth = o.Certificate == nil
	s.server.ErrorLog = log.New(io.Discard, "", 0)
	if o.Certificate != nil {
		s.server.TLSConfig = &tls.Config{Certificates: []tls.Certificate{*o.Certificate}, MinVersion: tls.VersionTLS12}
	}
	if o.Implicit {
		l = tls.NewListener(l, s.server.TLSConfig)
	}
	go func() { _ = s.server.Serve(l) }()
	t.Cleanup(s.Close)
	return s
}

// Start serves on a port of this machine and returns it.
func Start(t testing.TB, o Options) (s *Server, port int) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return Serve(t, l, o), l.Addr().(*net.TCPAddr).Port
}

// Close ends the server, and every connection with it.
func (s *Server) Close() { _ = s.server.Close() }

// Mails are those taken so far.
func (s *Server) Mails() []Mail {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Mail(nil), s.mails...)
}

// Wait waits for a mail to an address whose subject holds a text.
func (s *Server) Wait(t testing.TB, to, subject string) Mail {
	t.Helper()
	deadline := time.After(30 * time.Second)
	for {
		for _, m := range s.Mails() {
			if m.To == to && strings.Contains(m.Subject, subject) {
				return m
			}
		}
		select {
		case <-s.changed:
		case <-deadline:
			t.Fatalf("no mail to %s about %q came, but these: %+v", to, subject, s.Mails())
		}
	}
}

func (s *Server) take(m Mail) {
	s.mu.Lock()
	s.mails = append(s.mails, m)
	s.mu.Unlock()
	if s.options.Taken != nil {
		s.options.Taken(m)
	}
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// NewSession implements smtp.Backend.
func (s *Server) NewSession(c *smtp.Conn) (smtp.Session, error) {
	_, encrypted := c.TLSConnectionState()
	return &session{server: s, encrypted: encrypted || s.options.Implicit}, nil
}

type session struct {
	server    *Server
	encrypted bool
	in        bool // signed in
	mail      Mail
}

// AuthMechanisms implements smtp.AuthSession.
func (s *session) AuthMechanisms() []string {
	if s.server.options.User == "" {
		return nil
	}
	return []string{sasl.Plain}
}

// Auth implements smtp.AuthSession.
func (s *session) Auth(string) (sasl.Server, error) {
	return sasl.NewPlainServer(func(_, user, password string) error {
		if user != s.server.options.User || password != s.server.options.Password {
			return smtp.ErrAuthFailed
		}
		s.in = true
		return nil
	}), nil
}

func (s *session) answer(at, address string) error {
	if s.server.options.User != "" && !s.in {
		return smtp.ErrAuthRequired
	}
	if s.server.options.Answer == nil {
		return nil
	}
	return s.server.options.Answer(at, address)
}

// Mail implements smtp.Session.
func (s *session) Mail(from string, _ *smtp.MailOptions) error {
	s.mail = Mail{From: from, Encrypted: s.encrypted}
	return s.answer("MAIL", from)
}

// Rcpt implements smtp.Session.
func (s *session) Rcpt(to string, _ *smtp.RcptOptions) error {
	if s.mail.To != "" {
		return errors.New("a mail of the lab has one recipient")
	}
	s.mail.To = to
	return s.answer("RCPT", to)
}

// Data implements smtp.Session.
func (s *session) Data(r io.Reader) error {
	raw, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	if err := s.answer("DATA", s.mail.To); err != nil {
		return err
	}
	m := s.mail
	m.Raw = string(raw)
	read, err := mail.ReadMessage(bytes.NewReader(raw))
	if err != nil {
		return err
	}
	m.Header = read.Header
	if m.Subject, err = new(mime.WordDecoder).DecodeHeader(read.Header.Get("Subject")); err != nil {
		return err
	}
	text, err := io.ReadAll(quotedprintable.NewReader(read.Body))
	if err != nil {
		return err
	}
	m.Text = strings.ReplaceAll(string(text), "\r\n", "\n")
	s.server.take(m)
	return nil
}

// Reset implements smtp.Session.
func (s *session) Reset() { s.mail = Mail{} }

// Logout implements smtp.Session.
func (s *session) Logout() error { return nil }

// Certificate makes a certificate for names and addresses, signed by an authority of its own, whose certificate it
// returns as PEM.
func Certificate(t testing.TB, names ...string) (certificate tls.Certificate, authority []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "mail of a test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key},
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}
