package mail_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/emersion/go-smtp"

	"github.com/gpulab/gpulab/internal/mail"
	"github.com/gpulab/gpulab/internal/mail/mailtest"
	"github.com/gpulab/gpulab/internal/store"
	"github.com/gpulab/gpulab/internal/users"
)

const labURL = "https://gpu.lab.example"

// quick are pauses for a test's patience.
var quick = mail.Pauses{First: 20 * time.Millisecond, Longest: 100 * time.Millisecond, Poll: 10 * time.Millisecond, Connect: 5 * time.Second, GiveUp: time.Hour}

// house is a lab's people with a mail service.
type house struct {
	*mail.Service
	t      *testing.T
	db     *sql.DB
	people *users.Service
	ada    users.User // an admin
	ben    users.User
}

func newHouse(t *testing.T, cfg mail.Config, pauses mail.Pauses) *house {
	t.Helper()
	return openHouse(t, t.TempDir(), cfg, pauses)
}

func openHouse(t *testing.T, dir string, cfg mail.Config, pauses mail.Pauses) *house {
	t.Helper()
	st, err := store.Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	h := &house{t: t, db: st.DB(), people: users.New(st.DB())}
	if cfg.From == "" {
		cfg.From = "gpulab@lab.example"
	}
	if err := cfg.Check(); err != nil {
		t.Fatal(err)
	}
	h.Service = mail.New(mail.ServiceConfig{DB: h.db, Mail: cfg, People: h.people, Lab: "Vision lab", URL: func() string { return labURL }, Pauses: pauses})
	h.people.UsePost(h.Service)
	h.ada = h.person("ada", "Ada Lovelace", "ada@example.org", users.RoleAdmin)
	h.ben = h.person("ben", "Bén Ökafor 学", "ben@example.org", users.RoleMember)
	return h
}

func (h *house) person(handle, name, email string, role users.Role) users.User {
	h.t.Helper()
	u, err := h.people.ByHandle(h.t.Context(), handle)
	if err != nil {
		u, err = h.people.Create(h.t.Context(), users.NewUser{Handle: handle, Name: name, Email: email, Role: role})
	}
	if err != nil {
		h.t.Fatal(err)
	}
	return u
}

// run sends until the test ends.
func (h *house) run() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- h.Run(ctx) }()
	h.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			h.t.Error(err)
		}
	})
}

func (h *house) invite(to ...string) string {
	h.t.Helper()
	_, token, err := h.people.Invite(h.t.Context(), h.ada, users.NewInvitation{Uses: 50, Emails: to})
	if err != nil {
		h.t.Fatal(err)
	}
	return token
}

// eventually waits for something.
func (h *house) eventually(what string, holds func() bool) {
	h.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !holds(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			list, _ := h.Entries(h.t.Context(), "", 20)
			h.t.Fatalf("not within 30 s: %s; mails %+v", what, list)
		}
	}
}

// only is the one mail of the outbox.
func (h *house) only() mail.Entry {
	h.t.Helper()
	list, err := h.Entries(h.t.Context(), "", 10)
	if err != nil || len(list) != 1 {
		h.t.Fatalf("the outbox has %+v, %v; want one mail", list, err)
	}
	return list[0]
}

func plain(port int) mail.Config {
	return mail.Config{Server: "127.0.0.1", Port: port, Security: mail.None}
}

// encrypted is a configuration for a server with this authority and these words to sign in with.
func encrypted(t *testing.T, port int, security mail.Security, authority []byte, password string) mail.Config {
	t.Helper()
	dir := t.TempDir()
	c := mail.Config{Server: "127.0.0.1", Port: port, Security: security}
	if authority != nil {
		c.CAFile = filepath.Join(dir, "ca.pem")
		if err := os.WriteFile(c.CAFile, authority, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if password != "" {
		c.User, c.PasswordFile = "lab", filepath.Join(dir, "secret")
		if err := os.WriteFile(c.PasswordFile, []byte(password+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// TestInvitationArrives: encrypted both ways, signed in, with 8-bit names and the link that works.
func TestInvitationArrives(t *testing.T) {
	certificate, authority := mailtest.Certificate(t, "127.0.0.1")
	for _, security := range []mail.Security{mail.StartTLS, mail.TLS} {
		t.Run(string(security), func(t *testing.T) {
			server, port := mailtest.Start(t, mailtest.Options{Certificate: &certificate, Implicit: security == mail.TLS, User: "lab", Password: "pass word"})
			h := newHouse(t, encrypted(t, port, security, authority, "pass word"), quick)
			h.run()
			token := h.invite("zoe@example.org")
			m := server.Wait(t, "zoe@example.org", "Invitation to Vision lab")
			if !m.Encrypted || m.From != "gpulab@lab.example" || !strings.Contains(m.Text, labURL+"/join?token="+token+"\n") || !strings.Contains(m.Text, "Ada Lovelace invites you") {
				t.Errorf("the mail is %+v", m)
			}
			if m.Header.Get("Auto-Submitted") != "auto-generated" || m.Header.Get("List-Unsubscribe") != "" || !strings.Contains(m.Header.Get("From"), "Vision lab") {
				t.Errorf("the header is %v", m.Header)
			}
			h.eventually("it is marked as sent", func() bool { return h.only().State == mail.Sent })
			var body string
			if err := h.db.QueryRow("SELECT body FROM mails").Scan(&body); err != nil || body != "" {
				t.Errorf("after it was sent, %q is kept of it (%v)", body, err)
			}
			if _, err := h.people.InvitationInfo(t.Context(), token); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestServerIsNotTrusted: nothing is sent, and each reason is said with what mends it.
func TestServerIsNotTrusted(t *testing.T) {
	good, authority := mailtest.Certificate(t, "127.0.0.1")
	other, otherAuthority := mailtest.Certificate(t, "mail.example.org")
	for _, c := range []struct {
		name     string
		options  mailtest.Options
		security mail.Security
		trusts   []byte
		password string
		want     []string
	}{
		{"an authority that is not known", mailtest.Options{Certificate: &good}, mail.StartTLS, nil, "", []string{"authority that this machine does not know", "mail.caFile"}},
		{"another name", mailtest.Options{Certificate: &other}, mail.StartTLS, otherAuthority, "", []string{"certificate for another name", "mail.server"}},
		{"no STARTTLS", mailtest.Options{}, mail.StartTLS, authority, "", []string{"offers no STARTTLS", "mail.security: tls"}},
		{"no TLS from the beginning", mailtest.Options{Certificate: &good}, mail.TLS, authority, "", []string{"does not speak TLS from the beginning", "mail.security: starttls"}},
		{"a wrong password", mailtest.Options{Certificate: &good, User: "lab", Password: "right"}, mail.StartTLS, authority, "wr0ng-secret", []string{"does not let lab in (535", "mail.user and the password in"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			server, port := mailtest.Start(t, c.options)
			h := newHouse(t, encrypted(t, port, c.security, c.trusts, c.password), quick)
			tested, err := h.Test(t.Context(), "ada", "ada@example.org")
			if err != nil || tested.OK {
				t.Fatalf("the test says %+v, %v", tested, err)
			}
			for _, want := range c.want {
				if !strings.Contains(tested.Text, want) {
					t.Errorf("the test says %q, without %q", tested.Text, want)
				}
			}
			if strings.Contains(tested.Text, "wr0ng-secret") || strings.Contains(tested.Text, "d3Iwbmctc2VjcmV0") {
				t.Errorf("the test tells the password: %s", tested.Text)
			}
			h.run()
			h.invite("zoe@example.org")
			h.eventually("the trouble is known", func() bool { why, _ := h.Trouble(); return why == tested.Text })
			if list := server.Mails(); len(list) > 0 {
				t.Errorf("it was sent all the same: %+v", list)
			}
			if waiting, err := h.Entries(t.Context(), mail.Waiting, 10); err != nil || len(waiting) != 1 {
				t.Errorf("%+v wait, %v; want the invitation", waiting, err)
			}
		})
	}
}

// TestServerAway: mails wait while nothing listens, and are sent once it does; none is lost and none sent twice.
func TestServerAway(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	_ = l.Close()
	_, port, _ := net.SplitHostPort(address)
	n, _ := strconv.Atoi(port)
	h := newHouse(t, plain(n), quick)
	h.run()
	h.invite("zoe@example.org", "max@example.org")
	h.eventually("the trouble is known", func() bool { why, _ := h.Trouble(); return strings.Contains(why, "refuses connections") })
	status, err := h.Status(t.Context())
	if err != nil || status.Waiting != 2 || status.Problem == "" || status.Since == nil || status.Oldest == nil {
		t.Errorf("the status is %+v, %v", status, err)
	}
	if l, err = net.Listen("tcp", address); err != nil {
		t.Fatal(err)
	}
	server := mailtest.Serve(t, l, mailtest.Options{})
	server.Wait(t, "zoe@example.org", "Invitation")
	server.Wait(t, "max@example.org", "Invitation")
	h.eventually("all is sent", func() bool {
		s, err := h.Status(t.Context())
		return err == nil && s.Sent == 2 && s.Waiting == 0 && s.Problem == ""
	})
	if list := server.Mails(); len(list) != 2 {
		t.Errorf("%d mails were sent", len(list))
	}
}

// TestSlowForOne: a mail whose taking lasts for too long keeps none of the others back.
func TestSlowForOne(t *testing.T) {
	pauses := quick
	pauses.Send = 200 * time.Millisecond
	server, port := mailtest.Start(t, mailtest.Options{Answer: func(at, address string) error {
		if at == "DATA" && address == "zoe@example.org" {
			time.Sleep(2 * pauses.Send)
		}
		return nil
	}})
	h := newHouse(t, plain(port), pauses)
	h.invite("zoe@example.org", "max@example.org")
	h.run()
	server.Wait(t, "max@example.org", "Invitation")
	h.eventually("the other is sent, and it waits", func() bool {
		s, err := h.Status(t.Context())
		return err == nil && s.Sent == 1 && s.Waiting == 1
	})
}

// TestRefusals: for now is tried again, for good is not, and a sender that is refused loses nothing.
func TestRefusals(t *testing.T) {
	tries := 0
	server, port := mailtest.Start(t, mailtest.Options{Answer: func(at, address string) error {
		switch {
		case at == "RCPT" && address == "gone@example.org":
			return &smtp.SMTPError{Code: 550, EnhancedCode: smtp.EnhancedCode{5, 1, 1}, Message: "No such mailbox"}
		case at == "DATA" && address == "spam@example.org":
			return &smtp.SMTPError{Code: 554, EnhancedCode: smtp.EnhancedCode{5, 7, 1}, Message: "Looks like spam"}
		case at == "RCPT" && address == "grey@example.org":
			if tries++; tries < 3 {
				return &smtp.SMTPError{Code: 451, EnhancedCode: smtp.EnhancedCode{4, 7, 1}, Message: "Greylisted, come back"}
			}
		}
		return nil
	}})
	h := newHouse(t, plain(port), quick)
	h.run()
	h.invite("gone@example.org", "grey@example.org", "spam@example.org", "zoe@example.org")
	server.Wait(t, "zoe@example.org", "Invitation") // what others are refused does not keep it back
	server.Wait(t, "grey@example.org", "Invitation")
	h.eventually("all have ended", func() bool {
		list, err := h.Entries(t.Context(), mail.Waiting, 10)
		return err == nil && len(list) == 0
	})
	want := map[string]struct {
		state mail.State
		words string
	}{
		"gone@example.org": {mail.Failed, "No such mailbox"}, "spam@example.org": {mail.Failed, "Looks like spam"},
		"grey@example.org": {mail.Sent, ""}, "zoe@example.org": {mail.Sent, ""},
	}
	list, err := h.Entries(t.Context(), "", 10)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		if w := want[e.To]; e.State != w.state || !strings.Contains(e.Problem, w.words) || strings.Contains(e.Problem, "affected") {
			t.Errorf("the mail to %s is %s: %q", e.To, e.State, e.Problem)
		}
	}
	if tries != 3 {
		t.Errorf("grey was asked %d times", tries)
	}
}

func TestRefusedSender(t *testing.T) {
	_, port := mailtest.Start(t, mailtest.Options{Answer: func(at, _ string) error {
		if at == "MAIL" {
			return &smtp.SMTPError{Code: 553, EnhancedCode: smtp.EnhancedCode{5, 7, 1}, Message: "Sender not owned by user"}
		}
		return nil
	}})
	h := newHouse(t, plain(port), quick)
	h.run()
	h.invite("zoe@example.org")
	h.eventually("the trouble is known", func() bool {
		why, _ := h.Trouble()
		return strings.Contains(why, "mail.from") && strings.Contains(why, "not owned")
	})
	if e := h.only(); e.State != mail.Waiting {
		t.Errorf("the mail is %s: %s", e.State, e.Problem)
	}
}

// TestGivesUp: after days there is an end, with a line that says why.
func TestGivesUp(t *testing.T) {
	_, port := mailtest.Start(t, mailtest.Options{Answer: func(at, _ string) error {
		if at == "RCPT" {
			return &smtp.SMTPError{Code: 452, EnhancedCode: smtp.EnhancedCode{4, 2, 2}, Message: "Mailbox full"}
		}
		return nil
	}})
	pauses := quick
	pauses.GiveUp = 300 * time.Millisecond
	h := newHouse(t, plain(port), pauses)
	h.run()
	h.invite("zoe@example.org")
	h.eventually("it is given up", func() bool { return h.only().State == mail.Failed })
	if e := h.only(); !strings.Contains(e.Problem, "given up after") || !strings.Contains(e.Problem, "Mailbox full") || e.Tries < 2 {
		t.Errorf("it ended with %+v", e)
	}
}

// TestKilledWhileSending: gpulab is killed when the server has the mail and it does not know yet. The next start sends it
// again, with the same Message-ID.
func TestKilledWhileSending(t *testing.T) {
	const here = "GPULAB_MAIL_TEST"
	if dir := os.Getenv(here); dir != "" {
		port, _ := strconv.Atoi(os.Getenv(here + "_PORT"))
		h := openHouse(t, dir, plain(port), quick)
		h.invite("zoe@example.org")
		_ = h.Run(t.Context())
		return
	}
	dir := t.TempDir()
	victim := make(chan int, 1)
	var once sync.Once
	server, port := mailtest.Start(t, mailtest.Options{Taken: func(mailtest.Mail) {
		once.Do(func() { _ = syscall.Kill(<-victim, syscall.SIGKILL) })
	}})
	child := exec.Command(os.Args[0], "-test.run=^TestKilledWhileSending$")
	child.Env = append(os.Environ(), here+"="+dir, here+"_PORT="+strconv.Itoa(port))
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	victim <- child.Process.Pid
	if err := child.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Fatalf("the first gpulab ended with %v", err)
	}
	h := openHouse(t, dir, plain(port), quick)
	if e := h.only(); e.State != mail.Waiting {
		t.Fatalf("after the kill it is %s", e.State)
	}
	h.run()
	h.eventually("it is sent", func() bool { return h.only().State == mail.Sent })
	list := server.Mails()
	if len(list) != 2 || list[0].Header.Get("Message-Id") == "" || list[0].Header.Get("Message-Id") != list[1].Header.Get("Message-Id") || list[0].Text != list[1].Text {
		t.Errorf("the server has %+v", list)
	}
}

// TestHeaderInjection: whatever people write into names, titles, groups and addresses stays one line of one header.
func TestHeaderInjection(t *testing.T) {
	server, port := mailtest.Start(t, mailtest.Options{})
	h := newHouse(t, plain(port), quick)
	h.run()
	for _, address := range []string{"", "zoe", "zoe@", "@example.org", "zoe@example.org\r\nBcc: x@example.org", "zoe@example.org\nX: y", "\"a\\\r\nb\"@example.org", "\"zoe\"@example.org",
		"zoe@example.org, max@example.org", "Zoe <zoe@example.org>", "zoe@exam ple.org", "zoe(comment)@example.org", "zoe\x00@example.org", "zoe@example.org>\r\nRCPT TO:<x@example.org", strings.Repeat("z", 250) + "@example.org"} {
		if err := mail.CheckAddress(address); err == nil {
			t.Errorf("%q is taken for an address", address)
		} else if text, ok := users.Message(err); !ok || strings.ContainsAny(text, "\r\n") {
			t.Errorf("%q is refused with %q", address, err)
		}
		if address == "" {
			continue
		}
		if _, _, err := h.people.Invite(t.Context(), h.ada, users.NewInvitation{Uses: 5, Emails: []string{address}}); err == nil {
			t.Errorf("an invitation went to %q", address)
		}
		if err := h.people.SetProfile(t.Context(), h.ben.ID, "Ben", address); err == nil {
			t.Errorf("ben's address became %q", address)
		}
		if _, err := h.Test(t.Context(), "ada", address); err == nil {
			t.Errorf("a test went to %q", address)
		}
	}
	evil := "x\r\nBcc: victim@example.org\r\n\r\nbody\u2028\u202e"
	// Past the checks of names, as if another part had let it through.
	if _, err := h.db.Exec("UPDATE users SET name = ? WHERE id = ?", evil, h.ben.ID); err != nil {
		t.Fatal(err)
	}
	look(h, mail.Notice{Kind: mail.Jobs, Key: "1", To: []int64{h.ben.ID}, Subject: "Job “" + evil + "” has ended", Text: "Your job has ended.\n.\r\nQUIT", Path: "/jobs/1"})
	m := server.Wait(t, "ben@example.org", "has ended")
	plainHeaders(t, m)
	if !strings.Contains(m.Text, "QUIT") || len(server.Mails()) != 1 {
		t.Errorf("the mail is %+v", m)
	}

	// The mails that somebody asked for, of a lab and by people who are called like that.
	h.Service = mail.New(mail.ServiceConfig{DB: h.db, Mail: mail.Config{From: "gpulab@lab.example", Server: "127.0.0.1", Port: port, Security: mail.None}, People: h.people, Lab: evil, URL: func() string { return labURL }, Pauses: quick})
	h.people.UsePost(h.Service)
	if err := h.people.AskToJoin(t.Context(), users.NewUser{Handle: "zoe", Email: "zoe@example.org"}, "", "a long password of zoe", "10.0.0.9"); err != nil {
		t.Fatal(err)
	}
	if _, err := h.db.Exec("UPDATE users SET name = ?", evil); err != nil {
		t.Fatal(err)
	}
	asked, err := h.people.SignUps(t.Context())
	if err != nil || len(asked) != 1 {
		t.Fatal(asked, err)
	}
	if _, err := h.people.Approve(t.Context(), asked[0].ID, users.RoleMember, ""); err != nil {
		t.Fatal(err)
	}
	h.ada.Name = evil
	h.invite("max@example.org")
	if tested, err := h.Test(t.Context(), evil, "may@example.org"); err != nil || !tested.OK {
		t.Errorf("a test: %+v, %v", tested, err)
	}
	plainHeaders(t, server.Wait(t, "zoe@example.org", "Your account at"))
	plainHeaders(t, server.Wait(t, "max@example.org", "Invitation to"))
	plainHeaders(t, server.Wait(t, "may@example.org", "Test from"))
}

// plainHeaders fails a test where a mail has a header that the lab does not write, or one of several lines.
func plainHeaders(t *testing.T, m mailtest.Mail) {
	t.Helper()
	for name, values := range m.Header {
		switch name {
		case "From", "To", "Subject", "Date", "Message-Id", "Mime-Version", "Content-Type", "Content-Transfer-Encoding", "Auto-Submitted", "List-Unsubscribe":
		default:
			t.Errorf("the mail has a header %s", name)
		}
		if len(values) != 1 {
			t.Errorf("the mail has %d headers %s", len(values), name)
		}
	}
	if strings.ContainsAny(m.Subject, "\r\n\u2028\u202e") {
		t.Errorf("the subject is %q", m.Subject)
	}
}

// look asks one source that has these notices.
func look(h *house, list ...mail.Notice) {
	h.t.Helper()
	err := h.Look(h.t.Context(), mail.Source{Name: "test", Kinds: []mail.Kind{mail.Jobs, mail.Stop, mail.Disk, mail.Turn}, Notices: func(context.Context, time.Time) ([]mail.Notice, error) { return list, nil }})
	if err != nil {
		h.t.Fatal(err)
	}
}

func job(n int, to ...int64) mail.Notice {
	return mail.Notice{Kind: mail.Jobs, Key: fmt.Sprint(n), To: to, Subject: fmt.Sprintf("Job %d has ended", n), Text: fmt.Sprintf("Your job %d has ended.", n), Path: fmt.Sprintf("/jobs/%d", n)}
}

// TestNoticesOnce: nobody is told twice of one condition, over restarts too; people get what they chose, administrators what
// concerns the lab.
func TestNoticesOnce(t *testing.T) {
	server, port := mailtest.Start(t, mailtest.Options{})
	dir := t.TempDir()
	h := openHouse(t, dir, plain(port), quick)
	disk := mail.Notice{Kind: mail.Disk, Key: "data", Subject: "A disk of the lab gets full", Text: "The disk is at 90 %.", Path: "/status"}
	stop := mail.Notice{Kind: mail.Stop, Key: "7", To: []int64{h.ben.ID}, Subject: "“Training” is about to be stopped", Text: "Nobody uses it.", Path: "/launches/7"}
	if err := h.Choose(t.Context(), h.ben, map[mail.Kind]bool{mail.Jobs: false}); err != nil {
		t.Fatal(err)
	}
	if err := h.Choose(t.Context(), h.ben, map[mail.Kind]bool{mail.Disk: true}); err == nil {
		t.Error("a member chooses what is for administrators")
	}
	for range 3 {
		look(h, job(1, h.ben.ID), stop, disk)
	}
	h = openHouse(t, dir, plain(port), quick)
	look(h, job(1, h.ben.ID), stop, disk)
	h.run()
	m := server.Wait(t, "ben@example.org", "about to be stopped")
	if !strings.Contains(m.Header.Get("List-Unsubscribe"), labURL+"/account#mail") || !strings.Contains(m.Text, labURL+"/launches/7\n") || !strings.Contains(m.Text, labURL+"/account#mail") || !strings.HasPrefix(m.Subject, "[Vision lab] ") {
		t.Errorf("the mail is %+v", m)
	}
	if name := m.Header.Get("To"); !strings.Contains(name, "=?UTF-8?") && !strings.Contains(name, "=?utf-8?") {
		t.Errorf("a name with other letters is written as %q", name)
	}
	server.Wait(t, "ada@example.org", "A disk of the lab gets full")
	h.eventually("all is sent", func() bool { s, err := h.Status(t.Context()); return err == nil && s.Waiting == 0 })
	if list := server.Mails(); len(list) != 2 {
		t.Errorf("these mails were sent: %+v", list)
	}
	choices, err := h.Choices(t.Context(), h.ben)
	if err != nil || len(choices) != len(mail.Kinds(users.RoleMember)) {
		t.Fatalf("ben may choose %+v, %v", choices, err)
	}
	for _, c := range choices {
		if c.Wanted == (c.Kind == mail.Jobs) {
			t.Errorf("ben's choice of %s is %v", c.Kind, c.Wanted)
		}
	}
}

// TestAsked: people who want no mails of a kind still get those that they asked for one by one.
func TestAsked(t *testing.T) {
	server, port := mailtest.Start(t, mailtest.Options{})
	h := newHouse(t, plain(port), quick)
	if err := h.Choose(t.Context(), h.ben, map[mail.Kind]bool{mail.Jobs: false}); err != nil {
		t.Fatal(err)
	}
	asked := job(2, h.ben.ID)
	asked.Asked = true
	h.run()
	for range 3 {
		look(h, job(1, h.ben.ID), asked)
	}
	server.Wait(t, "ben@example.org", "Job 2 has ended")
	h.eventually("all is sent", func() bool { s, err := h.Status(t.Context()); return err == nil && s.Waiting == 0 })
	if list := server.Mails(); len(list) != 1 {
		t.Errorf("these mails were sent: %+v", list)
	}
}

// TestNotKnown: while it cannot be known what holds, nothing is told, and nothing that was told is over.
func TestNotKnown(t *testing.T) {
	server, port := mailtest.Start(t, mailtest.Options{})
	h := newHouse(t, plain(port), quick)
	h.run()
	look(h, job(1, h.ben.ID))
	server.Wait(t, "ben@example.org", "Job 1")
	for range 3 {
		err := h.Look(t.Context(), mail.Source{Name: "test", Kinds: []mail.Kind{mail.Jobs}, Notices: func(context.Context, time.Time) ([]mail.Notice, error) { return nil, mail.ErrNotKnown }})
		if err != nil {
			t.Errorf("it is taken for a fault: %v", err)
		}
	}
	if over := h.Over(); over != 0 {
		t.Errorf("%d conditions are taken for over", over)
	}
}

// TestStorm: many at once are one mail that says how many more there are, and many mails in an hour are bounded.
func TestStorm(t *testing.T) {
	server, port := mailtest.Start(t, mailtest.Options{})
	h := newHouse(t, plain(port), quick)
	h.run()
	var list []mail.Notice
	for n := range 50 {
		list = append(list, job(n, h.ben.ID))
	}
	look(h, list...)
	m := server.Wait(t, "ben@example.org", "News of 50 jobs")
	if !strings.Contains(m.Text, "and 40 more") || strings.Count(m.Text, "* Your job") != 10 || !strings.Contains(m.Text, labURL+"/jobs\n") {
		t.Errorf("the mail is %s", m.Text)
	}
	for n := 50; n < 80; n++ {
		list = append(list, job(n, h.ben.ID))
		look(h, list...)
	}
	status, err := h.Status(t.Context())
	if err != nil || status.Sent+status.Waiting > 6 {
		t.Errorf("within a minute %d mails came to be, %v", status.Sent+status.Waiting, err)
	}
}

// TestLimits: nobody makes the lab write to many addresses, nor to one many times.
func TestLimits(t *testing.T) {
	_, port := mailtest.Start(t, mailtest.Options{})
	h := newHouse(t, plain(port), quick)
	var refused error
	for n := 0; n < 5 && refused == nil; n++ {
		_, refused = h.Test(t.Context(), "ada", []string{"victim", "Victim", "VICTIM"}[n%3]+"@example.org")
	}
	if text, ok := users.Message(refused); !ok || !strings.Contains(text, "4 mails") {
		t.Errorf("one address: %v", refused)
	}
	if _, _, err := h.people.Invite(t.Context(), h.ada, users.NewInvitation{Uses: 50, Emails: []string{"v2@example.org", "V2@example.org", "v2@Example.org", "v2@EXAMPLE.org", "v2@example.ORG"}}); err == nil {
		t.Error("one mailbox is written to five times at once")
	}
	refused = nil
	sent := 0
	for n := 0; n < 20 && refused == nil; n++ {
		var to []string
		for i := range 10 {
			to = append(to, fmt.Sprintf("p%d-%d@example.org", n, i))
		}
		if _, _, refused = h.people.Invite(t.Context(), h.ada, users.NewInvitation{Uses: 50, Emails: to}); refused == nil {
			sent += len(to)
		}
	}
	if text, ok := users.Message(refused); !ok || !strings.Contains(text, "an hour") || sent > 60 {
		t.Errorf("after %d addresses: %v", sent, refused)
	}
	// What is refused leaves nothing behind.
	list, err := h.people.Invitations(t.Context(), h.ada)
	if err != nil || len(list) != sent/10 {
		t.Errorf("%d invitations were made, %v", len(list), err)
	}
	if _, _, err := h.people.Invite(t.Context(), h.ada, users.NewInvitation{Uses: 1, Emails: []string{"a@example.org", "b@example.org"}}); err == nil {
		t.Error("an invitation for one goes to two")
	}
}

// TestApproval: who asked for an account hears that they have it.
func TestApproval(t *testing.T) {
	server, port := mailtest.Start(t, mailtest.Options{})
	h := newHouse(t, plain(port), quick)
	h.run()
	if err := h.people.AskToJoin(t.Context(), users.NewUser{Handle: "zoe", Name: "Zoë", Email: "zoe@example.org"}, "for my thesis", "a long password of zoe", "10.0.0.9"); err != nil {
		t.Fatal(err)
	}
	asked, err := h.people.SignUps(t.Context())
	if err != nil || len(asked) != 1 {
		t.Fatal(asked, err)
	}
	if _, err := h.people.Approve(t.Context(), asked[0].ID, users.RoleMember, ""); err != nil {
		t.Fatal(err)
	}
	if m := server.Wait(t, "zoe@example.org", "Your account at Vision lab"); !strings.Contains(m.Text, "Sign in as zoe") {
		t.Errorf("the mail is %s", m.Text)
	}
}

// TestNobodyChooses: who wants no other mail gets an invitation and a test all the same, and no kind of these is declined.
func TestNobodyChooses(t *testing.T) {
	server, port := mailtest.Start(t, mailtest.Options{})
	h := newHouse(t, plain(port), quick)
	h.run()
	none := map[mail.Kind]bool{}
	for _, r := range mail.Kinds(users.RoleAdmin) {
		none[r.Kind] = false
	}
	if err := h.Choose(t.Context(), h.ada, none); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []mail.Kind{mail.Invitation, mail.Approval, mail.Trial} {
		if err := h.Choose(t.Context(), h.ada, map[mail.Kind]bool{kind: false}); !errors.Is(err, mail.ErrKind) {
			t.Errorf("%s is declined: %v", kind, err)
		}
	}
	token := h.invite(h.ada.Email)
	if tested, err := h.Test(t.Context(), "ben", h.ada.Email); err != nil || !tested.OK {
		t.Fatal(tested, err)
	}
	if m := server.Wait(t, h.ada.Email, "Test from Vision lab"); !strings.Contains(m.Text, "the test that ben asked for") {
		t.Errorf("the test is %s", m.Text)
	}
	if m := server.Wait(t, h.ada.Email, "Invitation to Vision lab"); !strings.Contains(m.Text, token) {
		t.Errorf("the invitation is %s", m.Text)
	}
}

// TestRestored: what waited in a backup is not sent, and told of.
func TestRestored(t *testing.T) {
	server, port := mailtest.Start(t, mailtest.Options{})
	h := newHouse(t, plain(port), quick)
	h.invite("zoe@example.org")
	if err := mail.Restored(t.Context(), h.db, time.Now()); err != nil {
		t.Fatal(err)
	}
	h.run()
	if e := h.only(); e.State != mail.Failed || !strings.Contains(e.Problem, "backup") {
		t.Errorf("the mail is %+v", e)
	}
	if list := server.Mails(); len(list) > 0 {
		t.Errorf("it was sent: %+v", list)
	}
}
