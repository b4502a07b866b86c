package webui

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/gpulab/gpulab/internal/mail"
	"github.com/gpulab/gpulab/internal/users"
)

// Mail writes to people. Errors are sentences for people around the sentinel errors of package mail.
type Mail interface {
	On() bool
	Choices(ctx context.Context, u users.User) ([]mail.Choice, error)
	Choose(ctx context.Context, u users.User, wanted map[mail.Kind]bool) error
	Status(ctx context.Context) (mail.Status, error)
	Entries(ctx context.Context, state mail.State, limit int) ([]mail.Entry, error)
	Test(ctx context.Context, by, address string) (mail.Tested, error)
}

// mailsShown is how many mails the page lists.
const mailsShown = 100

// A mailChoicesView is which mails somebody gets.
type mailChoicesView struct {
	Address string
	Choices []mail.Choice
}

// mailChoices is nil where there is nothing to choose.
func (s *Server) mailChoices(ctx context.Context, u users.User) (*mailChoicesView, error) {
	if s.cfg.Mail == nil || !s.cfg.Mail.On() {
		return nil, nil
	}
	choices, err := s.cfg.Mail.Choices(ctx, u)
	return &mailChoicesView{Address: u.Email, Choices: choices}, err
}

func (s *Server) chooseMail(_ http.ResponseWriter, r *http.Request, v visitor) error {
	if s.cfg.Mail == nil {
		return errNoPage
	}
	wanted := map[mail.Kind]bool{}
	for _, rule := range mail.Kinds(v.session.User.Role) {
		wanted[rule.Kind] = r.PostForm.Get(string(rule.Kind)) != ""
	}
	if err := s.cfg.Mail.Choose(r.Context(), v.session.User, wanted); err != nil {
		return err
	}
	s.audit(r, v, "account.mail", v.session.User.Handle, "")
	return seeOther("/account?done=mail#mail")
}

// A mailView is the outbox as administrators see it.
type mailView struct {
	mail.Status
	Mails []mail.Entry
	Ago   func(*time.Time) string
	// Address is what stands in the form of a test, Wrong what is wrong with it, Tested what came of the test.
	Address, Wrong string
	Tested         *mail.Tested
}

func (s *Server) mailPage(w http.ResponseWriter, r *http.Request, v visitor) error {
	return s.showMail(w, r, v, http.StatusOK, mailView{Address: v.session.User.Email})
}

func (s *Server) showMail(w http.ResponseWriter, r *http.Request, v visitor, status int, view mailView) error {
	view.Ago = s.ago
	if s.cfg.Mail != nil {
		var err error
		if view.Status, err = s.cfg.Mail.Status(r.Context()); err != nil {
			return err
		}
		if view.Mails, err = s.cfg.Mail.Entries(r.Context(), "", mailsShown); err != nil {
			return err
		}
	}
	p := s.page(w, r, v, "Mail", "")
	p.Path = "/status"
	s.render(w, r, status, mailPage(p, view))
	return nil
}

func (s *Server) testMail(w http.ResponseWriter, r *http.Request, v visitor) error {
	if s.cfg.Mail == nil {
		return errNoPage
	}
	view := mailView{Address: strings.TrimSpace(r.PostForm.Get("address"))}
	tested, err := s.cfg.Mail.Test(r.Context(), v.session.User.Handle, view.Address)
	switch {
	case err == nil:
		s.audit(r, v, "mail.test", view.Address, "")
		view.Tested = &tested
		return s.showMail(w, r, v, http.StatusOK, view)
	case errors.Is(err, mail.ErrAddress), errors.Is(err, mail.ErrLimit), errors.Is(err, mail.ErrOff):
		view.Wrong = message(err)
		return s.showMail(w, r, v, http.StatusUnprocessableEntity, view)
	}
	return err
}

var mailTones = map[mail.State]tone{mail.Waiting: "info", mail.Sent: "ok", mail.Failed: "bad"}
