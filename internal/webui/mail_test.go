package webui_test

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/mail"
	"github.com/gpulab/gpulab/internal/mail/mailtest"
	"github.com/gpulab/gpulab/internal/webui"
)

// newMailLab starts a lab that sends mails.
func newMailLab(t *testing.T) (l *lab, server *mailtest.Server) {
	t.Helper()
	var port int
	server, port = mailtest.Start(t, mailtest.Options{})
	var service *mail.Service
	l = newLabWith(t, func(c *webui.Config) {
		people := c.Users.(*testUsers)
		service = mail.New(mail.ServiceConfig{DB: people.db, Mail: mail.Config{Server: "127.0.0.1", Port: port, Security: mail.None, From: "lab@example.org"},
			People: people, Lab: "Vision lab", URL: func() string { return "https://lab.example" }, Pauses: mail.Pauses{First: time.Second, Poll: 10 * time.Millisecond}})
		people.UsePost(service)
		c.Mail = service
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- service.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return l, server
}

// TestNoMailServer: where there is none, the page says what to do, and nothing else speaks of mail.
func TestNoMailServer(t *testing.T) {
	l := newLab(t)
	ada := l.client(t, "ada")
	ada.get("/mail").want(t, http.StatusOK, "No mail server configured.", "server: smtp.example.org", "gpulab init")
	if body := ada.get("/account").body; strings.Contains(body, `id="mail"`) {
		t.Error("the page of the account offers mails")
	}
	if body := ada.get("/invitations").body; strings.Contains(body, `name="emails"`) {
		t.Error("the page of invitations offers to send them")
	}
	ada.post("/invitations", "/invitations", url.Values{"role": {"member"}, "uses": {"1"}, "days": {"14"}, "emails": {"zoe@example.org"}}).
		want(t, http.StatusUnprocessableEntity, "has no mail server")
}

// TestMailPages: people choose, invitations are sent, and the test says what came of it.
func TestMailPages(t *testing.T) {
	l, server := newMailLab(t)
	ben := l.client(t, "ben")
	ben.get("/account").want(t, http.StatusOK, `id="mail"`, "A notebook is about to be stopped")
	if body := ben.get("/account").body; strings.Contains(body, "A machine is not heard of") {
		t.Error("a member chooses what is for administrators")
	}
	ben.post("/account", "/account/mail", url.Values{"turn": {"yes"}}).want(t, http.StatusSeeOther)
	body := ben.get("/account?done=mail").body
	if !strings.Contains(body, "Which mails you get is changed.") || strings.Count(body[strings.Index(body, `id="mail"`):], " checked") != 1 {
		t.Error("the choice does not hold")
	}

	ada := l.client(t, "ada")
	ada.post("/invitations", "/invitations", url.Values{"role": {"member"}, "uses": {"1"}, "days": {"14"}, "emails": {"zoe@example.org\r\nBcc: max@example.org"}}).
		want(t, http.StatusUnprocessableEntity, "cannot be right")
	ada.post("/invitations", "/invitations", url.Values{"role": {"member"}, "uses": {"1"}, "days": {"14"}, "emails": {"zoe@example.org"}}).
		want(t, http.StatusOK, "It is on its way to zoe@example.org.", "/join?token=")
	server.Wait(t, "zoe@example.org", "Invitation to Vision lab")
	ada.post("/mail", "/mail/test", url.Values{"address": {"zoe"}}).want(t, http.StatusUnprocessableEntity, "is no e-mail address")
	ada.post("/mail", "/mail/test", url.Values{"address": {"max@example.org"}}).want(t, http.StatusOK, "has taken the mail to max@example.org", "Invitation to Vision lab")
	server.Close()
	ada.post("/mail", "/mail/test", url.Values{"address": {"max@example.org"}}).want(t, http.StatusOK, "Not sent.", "refuses connections")
}
