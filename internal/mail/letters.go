package mail

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/gpulab/gpulab/internal/users"
)

var _ users.Post = (*Service)(nil)

func (s *Service) choicesURL() string { return s.cfg.URL() + "/account#mail" }

// lab is what the lab is called, within a sentence.
func (s *Service) lab() string { return oneLine(s.cfg.Lab, 60) }

// text puts paragraphs together; empty ones are left out.
func text(paragraphs ...string) string {
	var list []string
	for _, p := range paragraphs {
		if p != "" {
			list = append(list, p)
		}
	}
	return strings.Join(list, "\n\n") + "\n"
}

// Invited implements users.Post: an invitation goes to addresses, in the transaction that makes it.
func (s *Service) Invited(ctx context.Context, tx *sql.Tx, by users.User, inv users.Invitation, token string,
	to []string) error {
	if len(to) > MaxInvited {
		return refuse(ErrLimit, "An invitation is sent to at most %d addresses at once. Make another one for more, or "+
			"send the link yourself.", MaxInvited)
	}
	for _, address := range to {
		if err := CheckAddress(address); err != nil {
			return err
		}
	}
	if err := s.mayAsk(ctx, tx, by.Handle, to); err != nil {
		return err
	}
	who := oneLine(cmp.Or(by.Name, by.Handle), 80)
	if by.ID == users.Root().ID {
		who = "An administrator"
	}
	in := ""
	if inv.Group != "" {
		in = " in the group " + oneLine(cmp.Or(inv.Title, inv.Group), 80)
	}
	body := text(
		fmt.Sprintf("%s invites you to %s, a lab of shared GPU machines, as %s%s.", who, s.lab(), inv.Role, in),
		"With this link you choose a name and a password; after that, a browser is all you need:",
		s.cfg.URL()+"/join?token="+url.QueryEscape(token),
		fmt.Sprintf("It works until %s. Whoever has it can use it, so keep it to yourself.",
			inv.Expires.Local().Format("Monday 2 January 2006, 15:04")),
		"If this tells you nothing, ignore it: nothing happens then.")
	for _, address := range to {
		if err := s.put(ctx, tx, letter{kind: Invitation, askedBy: by.Handle, address: address,
			subject: "Invitation to " + s.lab(), body: body}); err != nil {
			return err
		}
	}
	return nil
}

// Approved implements users.Post: somebody gets the account that they asked for.
func (s *Service) Approved(ctx context.Context, tx *sql.Tx, u users.User) error {
	if CheckAddress(u.Email) != nil {
		return nil // they find out when they sign in
	}
	return s.put(ctx, tx, letter{kind: Approval, userID: u.ID, name: u.Name, address: u.Email,
		subject: "Your account at " + s.lab(),
		body: text("An administrator has approved your account.",
			fmt.Sprintf("Sign in as %s, with the password that you chose when you asked:", u.Handle),
			s.cfg.URL()+"/",
			"Which mails you get from now on, you choose here:\n"+s.choicesURL())})
}

// Tested is what came of a mail that somebody sent to see whether mails arrive.
type Tested struct {
	OK bool `json:"ok"`
	// Text says in a sentence or two what came of it.
	Text string `json:"text"`
}

// Test sends a mail to an address now and says what came of it. It is not tried again. Errors are sentences for people:
// ErrOff, ErrAddress, ErrLimit; that the server did not take it is none.
func (s *Service) Test(ctx context.Context, by, address string) (Tested, error) {
	if !s.On() {
		return Tested{}, refuse(ErrOff, "This lab has no mail server. Name one in the configuration, under mail.")
	}
	if err := CheckAddress(address); err != nil {
		return Tested{}, err
	}
	if err := s.mayAsk(ctx, s.cfg.DB, by, []string{address}); err != nil {
		return Tested{}, err
	}
	l := letter{messageID: s.newMessageID(), kind: Trial, address: address, created: s.now(),
		subject: "Test from " + s.lab(),
		body: text(fmt.Sprintf("This is the test that %s asked for: %s sends mails, and they arrive.", by, s.lab()),
			s.cfg.URL()+"/")}
	done := Tested{OK: true, Text: fmt.Sprintf("%s has taken the mail to %s. If it does not arrive, look among the "+
		"unwanted mails there, and at the log of the mail server.", s.cfg.Mail.Where(), address)}
	line, err := s.cfg.Mail.dial(ctx, s.cfg.Pauses.Connect, s.cfg.Pauses.Connect)
	if err == nil {
		defer line.close()
		m, composed := s.compose(l)
		err = line.send(ctx, m, composed)
	}
	state, problem := Sent, ""
	if err != nil {
		var refused *refusal
		var away *serverError
		if !errors.As(err, &refused) && !errors.As(err, &away) {
			return Tested{}, err
		}
		state, problem = Failed, err.Error()
		done = Tested{Text: problem}
	} else {
		s.setTrouble("")
	}
	now := s.now().UnixMilli()
	// It counts for the limits, and stands in the list.
	_, err = s.cfg.DB.ExecContext(context.WithoutCancel(
		ctx), `INSERT INTO mails (message_id, kind, asked_by, address, subject, body, state, created_at, next_at, tries,
			problem, ended_at)
		VALUES (?, ?, ?, ?, ?, '', ?, ?, ?, 1, ?,
		?)`, l.messageID, l.kind, by, address, l.subject, state, now, now, problem, now)
	if err != nil {
		return Tested{}, fmt.Errorf("note a test mail: %w", err)
	}
	return done, nil
}
