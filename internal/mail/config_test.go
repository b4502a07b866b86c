package mail_test

import (
	"strings"
	"testing"

	"github.com/gpulab/gpulab/internal/mail"
)

func TestConfigCheck(t *testing.T) {
	good := mail.Config{Server: "smtp.example.org", From: "Vision lab <gpulab@example.org>", User: "lab", PasswordFile: "/etc/gpulab/mail.secret"}
	if err := good.Check(); err != nil || good.Where() != "smtp.example.org:587" {
		t.Errorf("%s: %v", good.Where(), err)
	}
	if err := (mail.Config{}).Check(); err != nil {
		t.Errorf("no mail: %v", err)
	}
	for want, change := range map[string]func(*mail.Config){
		"mail.server is missing":       func(c *mail.Config) { c.Server = "" },
		"mail.server is \"a:25\"":      func(c *mail.Config) { c.Server = "a:25" },
		"mail.port is 70000":           func(c *mail.Config) { c.Port = 70000 },
		"mail.security is \"ssl\"":     func(c *mail.Config) { c.Security = "ssl" },
		"mail.security is none, but s": func(c *mail.Config) { c.Security = mail.None },
		"mail.security is none, but m": func(c *mail.Config) { c.Server, c.Security = "localhost", mail.None },
		"mail.from is missing":         func(c *mail.Config) { c.From = "" },
		"mail.from is \"lab\"":         func(c *mail.Config) { c.From = "lab" },
		"mail.from is \"a@b\\r\\nX: y": func(c *mail.Config) { c.From = "a@b\r\nX: y" },
		"mail.passwordFile is missing": func(c *mail.Config) { c.PasswordFile = "" },
		"mail.user is missing":         func(c *mail.Config) { c.User = "" },
		"mail.passwordFile is \"s":     func(c *mail.Config) { c.PasswordFile = "secret" },
		"mail.caFile is \"ca.pem\"":    func(c *mail.Config) { c.CAFile = "ca.pem" },
	} {
		c := good
		change(&c)
		if err := c.Check(); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%+v: %v; want %s…", c, err, want)
		}
	}
}
