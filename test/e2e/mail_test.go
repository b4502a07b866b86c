//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"net"
	"regexp"
	"strings"
	"testing"

	"github.com/gpulab/gpulab/internal/mail/mailtest"
	"github.com/gpulab/gpulab/test/lab"
)

// mailConfig has the lab send mails through the server that serveMail runs.
const mailConfig = `
mail:
  server: ` + lab.InternetAddress + `
  from: Idle lab <lab@mail.test>
  user: lab
  passwordFile: /etc/gpulab/mail.secret
  caFile: /etc/gpulab/mail.pem
`

// serveMail runs a mail server in what stands for the internet, for the whole life of the lab.
func serveMail(t *testing.T, a *appliance) *mailtest.Server {
	t.Helper()
	certificate, authority := mailtest.Certificate(t, lab.InternetAddress)
	listener, err := a.Listen("tcp", net.JoinHostPort(lab.InternetAddress, "587"))
	if err != nil {
		t.Fatal(err)
	}
	a.WriteFile("/etc/gpulab/mail.secret", "quite secret\n")
	a.WriteFile("/etc/gpulab/mail.pem", string(authority))
	return mailtest.Serve(a.lifeOf, listener, mailtest.Options{Certificate: &certificate, User: "lab", Password: "quite secret"})
}

// testSetUpMail: the people of a ready lab have addresses.
func testSetUpMail(t *testing.T, a *appliance) {
	a.mail = serveMail(t, a)
	for _, handle := range []string{adminHandle, guestHandle} {
		a.MustGpulab(a.ctx, "user", "set", handle, "--email", handle+"@mail.test")
	}
}

// mailedWarning waits until somebody was written to that their notebook is about to be stopped.
func (a *appliance) mailedWarning(t *testing.T, handle string) {
	t.Helper()
	warned := a.mail.Wait(t, handle+"@mail.test", "is about to be stopped")
	if !warned.Encrypted || !strings.Contains(warned.Text, pages+"/launches/") ||
		!strings.Contains(warned.Header.Get("List-Unsubscribe"), pages+"/account#mail") {
		t.Errorf("the warning is %+v", warned)
	}
}

// testMail: what happened in the chapters before was mailed, once; an invitation is mailed, and its link works; the test
// button works; who does not want a mail does not get it.
func testMail(t *testing.T, a *appliance) {
	a.mailedWarning(t, guestHandle)
	a.mail.Wait(t, "ada@mail.test", "It is your turn: “Again” has started")
	seen := map[string]bool{}
	for _, m := range a.mail.Mails() {
		if seen[m.To+m.Text] {
			t.Errorf("%s got this twice: %s", m.To, m.Text)
		}
		seen[m.To+m.Text] = true
	}

	admin := a.browser.For(t)
	admin.Open(pages + "/invitations")
	admin.Fill("Send it to", "zoe@mail.test, zoe")
	admin.Click("form", "Make the link")
	admin.WaitText("main", "zoe\" cannot be right")
	admin.Fill("Send it to", "zoe@mail.test")
	admin.Click("form", "Make the link")
	admin.WaitText("main", "It is on its way to zoe@mail.test.")
	invited := a.mail.Wait(t, "zoe@mail.test", "Invitation to Idle lab")
	link := regexp.MustCompile(regexp.QuoteMeta(pages) + `/join\?token=\S+`).FindString(invited.Text)
	if link == "" {
		t.Fatalf("no link in %s", invited.Text)
	}
	zoe := a.browser.Private().For(t)
	zoe.Open(link)
	createAccount(zoe, "Zoë", "zoe", "a password for zoe, quite long")
	zoe.Open(pages + "/account")
	zoe.WaitText("#mail", "Your account has no e-mail address")
	zoe.Fill("E-mail", "zoe@mail.test")
	zoe.Click(`form[action="/account/profile"]`, "Save")
	zoe.WaitText("#mail", "They go to zoe@mail.test.")
	zoe.WaitFor("a choice to be taken back", `(() => { const c = document.querySelector("#mail [name=stop]"); if (!c?.checked) return false; c.click(); return true })()`)
	zoe.Click("#mail", "Save the choice")
	zoe.WaitText("main", "Which mails you get is changed.")
	zoe.WaitFor("the choice to hold", `document.querySelector("#mail [name=stop]").checked === false && document.querySelector("#mail [name=turn]").checked`)
	zoe.Pictures("account-mail")

	admin.Open(pages + "/status")
	admin.Click("main", "outbox and test")
	admin.WaitText("main", "Invitation to Idle lab")
	admin.Fill("Send a test mail to", "ada@mail.test")
	admin.Click("main", "Send it now")
	admin.WaitText("main", "has taken the mail to ada@mail.test")
	a.mail.Wait(t, "ada@mail.test", "Test from Idle lab")
	admin.Pictures("mail")

	checkFailure(t, a.Gpulab(a.ctx, "mail", "test", "ada@mail.test\r\nBcc: eve@mail.test"), 1, "is no e-mail address")
	if out := a.MustGpulab(a.ctx, "mail", "test", "ben@mail.test"); !strings.Contains(out, "has taken the mail") {
		t.Errorf("mail test: %s", out)
	}
	var status struct {
		On                    bool
		Waiting, Failed, Sent int
	}
	if err := json.Unmarshal([]byte(a.MustGpulab(a.ctx, "mail", "status", "--json")), &status); err != nil || !status.On || status.Waiting+status.Failed > 0 || status.Sent < 5 {
		t.Errorf("mail status: %+v, %v", status, err)
	}
	logs := fmt.Sprint(a.Run(a.ctx, "sh", "-c", "grep -rlE 'quite secret|cXVpdGUgc2VjcmV0' /var/log /var/lib/gpulab/log /run/gpulab 2>/dev/null"))
	if strings.Contains(logs, "gpulab") {
		t.Errorf("the password of the mail server stands in %s", logs)
	}
}
