package mail

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/mail"
	"net/textproto"
	"os"
	"strings"
	"syscall"
	"time"

	gomail "github.com/wneessen/go-mail"
	"github.com/wneessen/go-mail/smtp"
)

// serverError says in words why the server takes no mail at all.
type serverError struct {
	words string
	// within says that a mail was under way, which may be the reason.
	within bool
}

func (e *serverError) Error() string { return e.words }

// refusal says in words why the server did not take one mail.
type refusal struct {
	words   string
	forGood bool
}

func (e *refusal) Error() string { return e.words }

// line is a connection to the server.
type line struct {
	cfg    Config
	client *gomail.Client // has the patience for a mail
	conn   *smtp.Client
	wire   net.Conn
}

// dial connects and signs in, for which the server has so long; each mail has its
// own time. Errors are *serverError.
func (c Config) dial(ctx context.Context, connect, send time.Duration) (*line, error) {
	l := &line{cfg: c}
	wired := func(ctx context.Context, network, address string) (conn net.Conn, err error) {
		l.wire, err = (&net.Dialer{}).DialContext(ctx, network, address)
		if err != nil || c.security() != TLS {
			return l.wire, err
		}
		trust, err := c.trust()
		if err != nil {
			return nil, err
		}
		encrypted := tls.Client(l.wire, trust)
		return encrypted, encrypted.HandshakeContext(ctx)
	}
	client, err := c.client(connect, gomail.WithDialContextFunc(wired))
	if err == nil {
		l.client, err = c.client(send)
	}
	if err != nil {
		return nil, &serverError{words: sentence(err.Error())}
	}
	if l.conn, err = client.DialToSMTPClientWithContext(ctx); err != nil {
		if l.wire != nil {
			_ = l.wire.Close()
		}
		return nil, &serverError{words: c.explain(err)}
	}
	return l, nil
}

// trust is how the server has to prove who it is.
func (c Config) trust() (*tls.Config, error) {
	trust := &tls.Config{ServerName: c.Server, MinVersion: tls.VersionTLS12}
	if c.CAFile != "" {
		data, err := os.ReadFile(c.CAFile)
		if err != nil {
			return nil, fmt.Errorf("the certificates to trust for the mail server: %w", err)
		}
		trust.RootCAs = x509.NewCertPool()
		if !trust.RootCAs.AppendCertsFromPEM(data) {
			return nil, fmt.Errorf("the certificates to trust for the mail server: %s holds none; they begin with -----BEGIN "+
				"CERTIFICATE-----", c.CAFile)
		}
	}
	return trust, nil
}

func (c Config) client(patience time.Duration, more ...gomail.Option) (*gomail.Client, error) {
	trust, err := c.trust()
	if err != nil {
		return nil, err
	}
	password, err := c.password()
	if err != nil {
		return nil, err
	}
	options := []gomail.Option{
		gomail.WithPort(c.port()), gomail.WithTimeout(patience), gomail.WithTLSConfig(trust), gomail.WithoutNoop(),
	}
	switch c.security() {
	case TLS:
		options = append(options, gomail.WithSSL())
	case None:
		options = append(options, gomail.WithTLSPolicy(gomail.NoTLS))
	default:
		options = append(options, gomail.WithTLSPolicy(gomail.TLSMandatory))
	}
	if c.User != "" {
		options = append(options, gomail.WithUsername(c.User), gomail.WithPassword(password),
			gomail.WithOpportunisticSMTPAuth(gomail.SMTPAuthPlain, gomail.SMTPAuthLogin, gomail.SMTPAuthSCRAMSHA256,
				gomail.SMTPAuthCramMD5))
	}
	// A name of one word is refused by some servers as no name at all.
	if name, err := os.Hostname(); err != nil || !strings.Contains(name, ".") {
		options = append(options, gomail.WithHELO("gpulab.localdomain"))
	}
	client, err := gomail.NewClient(c.Server, append(options, more...)...)
	if err != nil {
		return nil, fmt.Errorf("the mail server: %w", err)
	}
	return client, nil
}

func (l *line) close() { _ = l.client.CloseWithSMTPClient(l.conn) }

// parting is how long a mail that is under way may take when gpulab stops.
const parting = 5 * time.Second

// send gives one mail to the server. Errors are *refusal or *serverError.
func (l *line) send(ctx context.Context, m *gomail.Msg, err error) error {
	if err != nil {
		return &refusal{words: sentence(err.Error()), forGood: true}
	}
	stop := context.AfterFunc(ctx, func() { _ = l.wire.SetDeadline(time.Now().Add(parting)) })
	defer stop()
	err = l.client.SendWithSMTPClient(l.conn, m)
	if err == nil || m.IsDelivered() {
		return nil
	}
	var failed *gomail.SendError
	if !errors.As(err, &failed) {
		return &serverError{words: l.cfg.explain(err), within: true}
	}
	said := serverWords(failed)
	code := failed.ErrorCode()
	switch {
	case failed.Reason == gomail.ErrSMTPMailFrom && code >= 500:
		// Every mail is from the same address: it is the configuration that has to change, and none is to be lost by it.
		return &serverError{words: fmt.Sprintf("The mail server does not take mails from %s (%s). Correct mail.from, or "+
			"let it send from there.", l.cfg.from().Address, said)}
	case code == 421 || code == 0:
		return &serverError{words: "The mail server ended the connection (" + said + ").", within: true}
	case code >= 500:
		return &refusal{words: "The mail server refused it: " + sentence(said), forGood: true}
	}
	return &refusal{words: "The mail server does not take it now: " + sentence(said)}
}

// serverWords are what the server answered, without what the library adds.
func serverWords(err *gomail.SendError) string {
	text, _, _ := strings.Cut(err.Error(), ", affected ")
	_, said, found := strings.Cut(text, ": ")
	if !found {
		said = text
	}
	return strings.TrimRight(oneLine(said, 200), ".")
}

// explain says why there is no connection, and what mends it.
func (c Config) explain(err error) string {
	where := "The mail server " + c.Where()
	var unknown x509.UnknownAuthorityError
	var name x509.HostnameError
	var invalid x509.CertificateInvalidError
	var plain tls.RecordHeaderError
	var dns *net.DNSError
	var answer *textproto.Error
	var timeout net.Error
	switch {
	case errors.As(err, &name):
		return fmt.Sprintf("%s shows a certificate for another name: %s. Nothing was sent. Write the name of the "+
			"certificate in mail.server.", where, oneLine(name.Error(), 200))
	case errors.As(err, &unknown):
		return where + " shows a certificate of an authority that this machine does not know. Nothing was sent. If it is " +
			"your own, name its file in mail.caFile."
	case errors.As(err, &invalid):
		return fmt.Sprintf("%s shows a certificate that is not valid: %s. Nothing was sent.", where,
			oneLine(invalid.Error(), 200))
	case errors.As(err, &plain):
		return where + " does not speak TLS from the beginning. Write mail.security: starttls, or the port for tls, which " +
			"is mostly 465."
	case strings.Contains(err.Error(), "does not support STARTTLS"):
		return where + " offers no STARTTLS, and nothing is sent unencrypted. If it speaks TLS from the beginning, write " +
			"mail.security: tls."
	case strings.Contains(err.Error(), "SMTP AUTH failed"):
		said := err.Error()
		if errors.As(err, &answer) {
			said = answer.Error()
		}
		return fmt.Sprintf("%s does not let %s in (%s). Look at mail.user and the password in %s.", where, c.User,
			strings.TrimRight(oneLine(said, 200), "."), c.PasswordFile)
	case strings.Contains(err.Error(), "AUTH"):
		return where + " offers no way to sign in that gpulab knows. If it takes mails without, leave mail.user and " +
			"mail.passwordFile out."
	case errors.As(err, &dns):
		return fmt.Sprintf("The name of the mail server, %s, is not known here (%s). Correct mail.server, or look at this "+
			"machine's DNS.", c.Server, oneLine(dns.Err, 100))
	case errors.Is(err, syscall.ECONNREFUSED):
		return where + " refuses connections: nothing listens there, or a firewall is in the way."
	case errors.As(err, &answer):
		return fmt.Sprintf("%s answered: %s.", where, strings.TrimRight(oneLine(answer.Error(), 200), "."))
	case errors.As(err, &timeout) && timeout.Timeout(), errors.Is(err, context.DeadlineExceeded):
		return where + " does not answer in time. Look at mail.port and mail.security, and whether a firewall is in the way."
	}
	return fmt.Sprintf("%s cannot be used: %s.", where, strings.TrimRight(oneLine(err.Error(), 200), "."))
}

// compose makes the mail of a letter, the same at each try.
func (s *Service) compose(l letter) (*gomail.Msg, error) {
	m := gomail.NewMsg(gomail.WithNoDefaultUserAgent(), gomail.WithEncoding(gomail.EncodingQP))
	from := s.cfg.Mail.from()
	from.Name = cmp.Or(from.Name, oneLine(s.cfg.Lab, 60))
	m.FromMailAddress(&from)
	m.ToMailAddress(&mail.Address{Name: oneLine(l.name, 80), Address: l.address})
	m.Subject(oneLine(l.subject, 200))
	m.SetDateWithValue(l.created)
	m.SetMessageIDWithValue(l.messageID)
	// Programs that answer mails by themselves leave these alone.
	m.SetGenHeader("Auto-Submitted", "auto-generated")
	if _, chosen := ruleOf(l.kind); chosen {
		m.SetGenHeader("List-Unsubscribe", "<"+s.choicesURL()+">")
	}
	m.SetBodyString(gomail.TypeTextPlain, l.body)
	return m, CheckAddress(l.address)
}

// sentence writes what a program said as a sentence.
func sentence(text string) string {
	text = strings.TrimRight(oneLine(text, 300), ".")
	if text == "" {
		return ""
	}
	return strings.ToUpper(text[:1]) + text[1:] + "."
}
