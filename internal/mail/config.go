package mail

import (
	"errors"
	"fmt"
	"net"
	"net/mail"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Config is the key mail of the configuration: the server that takes the lab's mails. Without Server none are sent.
type Config struct {
	// Server is a name or an address.
	Server string `json:"server,omitempty"`
	// Port is left out for the usual one: 587 with starttls, 465 with tls, 25 with none.
	Port int `json:"port,omitempty"`
	// Security is starttls (which is what it is if left out), tls, or none, which is for a server on this machine only.
	Security Security `json:"security,omitempty"`
	// From is whom mails are from: lab@example.org, or "Vision lab <lab@example.org>".
	From string `json:"from,omitempty"`
	// User signs in at the server with the password in PasswordFile; a server that takes mails without leaves both out.
	User         string `json:"user,omitempty"`
	PasswordFile string `json:"passwordFile,omitempty"`
	// CAFile holds the certificates to trust instead of the system's.
	CAFile string `json:"caFile,omitempty"`
}

// Security is how the connection to the server is encrypted.
type Security string

// The securities.
const (
	StartTLS Security = "starttls"
	TLS      Security = "tls"
	None     Security = "none"
)

// On reports whether there is a mail server.
func (c Config) On() bool { return c.Server != "" }

func (c Config) security() Security {
	if c.Security == "" {
		return StartTLS
	}
	return c.Security
}

func (c Config) port() int {
	switch {
	case c.Port != 0:
		return c.Port
	case c.security() == TLS:
		return 465
	case c.security() == None:
		return 25
	}
	return 587
}

// Where is the server as people write it.
func (c Config) Where() string { return net.JoinHostPort(c.Server, strconv.Itoa(c.port())) }

// Check says what is wrong with the configuration, in sentences that begin with the key. Whether the server takes
// mails, Test says.
func (c Config) Check() error {
	if !c.On() {
		if c != (Config{}) {
			return errors.New("mail.server is missing, so no mail would be sent; name the mail server, or leave all of mail out")
		}
		return nil
	}
	if c.Server != strings.TrimSpace(c.Server) || strings.ContainsAny(c.Server, " /@[]") ||
		strings.Contains(c.Server, ":") && net.ParseIP(c.Server) == nil {
		return fmt.Errorf("mail.server is %q; it is a name or an address alone, such as smtp.example.org, and its port "+
			"stands in mail.port", c.Server)
	}
	if c.Port < 0 || c.Port > 65535 {
		return fmt.Errorf("mail.port is %d, but ports go from 1 to 65535", c.Port)
	}
	switch c.security() {
	case StartTLS, TLS:
	case None:
		if !loopback(c.Server) {
			return fmt.Errorf("mail.security is none, but %s is another machine, and whoever is on the way could read the "+
				"links in mails; write starttls or tls (none is for a server on this machine)", c.Server)
		}
		if c.User != "" {
			return errors.New("mail.security is none, but mail.user signs in with a password, which would be sent in the " +
				"clear; write starttls or tls, or leave user out")
		}
	default:
		return fmt.Errorf("mail.security is %q; it may be starttls, tls or none", c.Security)
	}
	if c.From == "" {
		return errors.New("mail.from is missing; it is whom mails are from, such as lab@example.org")
	}
	if from, err := mail.ParseAddress(c.From); err != nil || CheckAddress(from.Address) != nil ||
		strings.ContainsAny(c.From, "\r\n") {
		return fmt.Errorf("mail.from is %q; write it like lab@example.org or Vision lab <lab@example.org>", c.From)
	}
	if c.User != "" && c.PasswordFile == "" {
		return errors.New("mail.passwordFile is missing; it is the full path of a file with the password of mail.user")
	}
	if c.User == "" && c.PasswordFile != "" {
		return errors.New("mail.user is missing, but there is a passwordFile; name who signs in at the mail server, or " +
			"leave passwordFile out")
	}
	for key, file := range map[string]string{"passwordFile": c.PasswordFile, "caFile": c.CAFile} {
		if file != "" && !filepath.IsAbs(file) {
			return fmt.Errorf("mail.%s is %q, but must be the full path of a file, such as /etc/gpulab/mail.secret", key, file)
		}
	}
	return nil
}

func loopback(server string) bool {
	addr, err := netip.ParseAddr(server)
	return server == "localhost" || err == nil && addr.IsLoopback()
}

// from is whom mails are from; Check has found it well.
func (c Config) from() mail.Address {
	from, err := mail.ParseAddress(c.From)
	if err != nil {
		return mail.Address{Address: c.From}
	}
	return *from
}

// password is read at every connection, so that another one counts at once.
func (c Config) password() (string, error) {
	if c.PasswordFile == "" {
		return "", nil
	}
	data, err := os.ReadFile(c.PasswordFile)
	if err != nil {
		return "", fmt.Errorf("the password for the mail server: %w", err)
	}
	text := strings.TrimRight(string(data), "\r\n")
	if text == "" {
		return "", fmt.Errorf("the password for the mail server: %s is empty", c.PasswordFile)
	}
	return text, nil
}
