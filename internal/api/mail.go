package api

import (
	"context"

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

// MyMail is which mails somebody gets.
type MyMail struct {
	On      bool          `json:"on" doc:"The lab has a mail server"`
	Address string        `json:"address,omitempty" doc:"Where they go; empty while the account has none"`
	Choices []mail.Choice `json:"choices"`
}

// Outbox is the lab's mails.
type Outbox struct {
	mail.Status
	Mails []mail.Entry `json:"mails" doc:"The newest first; what they say is not told"`
}

type myMailInput struct {
	Body struct {
		Wanted map[string]bool `json:"wanted" maxProperties:"50" doc:"By kind; those that are left out stay as they are"`
	}
}

type outboxInput struct {
	State string `query:"state" enum:"waiting,sent,failed" doc:"Only those; all, if left out"`
	Limit int    `query:"limit" default:"50" minimum:"1" maximum:"1000"`
}

type testMailInput struct {
	Body struct {
		Address string `json:"address" minLength:"1" maxLength:"254"`
	}
}

func (s *Server) addMail() {
	add(s, Operation{
		Method: "GET", Path: "/me/mail", ID: "getMyMail", Need: users.ActionOwnAccount, tag: "account",
		summary: "Which mails you get",
	},
		func(ctx context.Context, c *call, _ *noInput) (*body[MyMail], error) { return s.mailOf(ctx, c) })
	add(s, Operation{Method: "PATCH", Path: "/me/mail", ID: "changeMyMail", Need: users.ActionOwnAccount, tag: "account",
		summary: "Choose which mails you get"}, s.changeMyMail)
	add(s, Operation{
		Method: "GET", Path: "/mail", ID: "getMail", Need: users.ActionManageLab, tag: "lab",
		summary: "The lab's mails: what waits, what was sent, what failed and why",
	},
		func(ctx context.Context, _ *call, in *outboxInput) (*body[Outbox], error) {
			status, err := s.cfg.Mail.Status(ctx)
			if err != nil {
				return nil, err
			}
			list, err := s.cfg.Mail.Entries(ctx, mail.State(in.State), in.Limit)
			if err != nil {
				return nil, err
			}
			return answerWith(Outbox{status, list})
		})
	add(s, Operation{Method: "POST", Path: "/mail/test", ID: "testMail", Need: users.ActionManageLab, tag: "lab",
		summary:     "Send a mail now, and hear what came of it",
		description: "That the mail server does not take it is an answer, with ok false.", also: []int{conflict}}, s.testMail)
}

func (s *Server) mailOf(ctx context.Context, c *call) (*body[MyMail], error) {
	choices, err := s.cfg.Mail.Choices(ctx, c.user)
	if err != nil {
		return nil, err
	}
	return answerWith(MyMail{On: s.cfg.Mail.On(), Address: c.user.Email, Choices: choices})
}

func (s *Server) changeMyMail(ctx context.Context, c *call, in *myMailInput) (*body[MyMail], error) {
	wanted := map[mail.Kind]bool{}
	for kind, want := range in.Body.Wanted {
		wanted[mail.Kind(kind)] = want
	}
	if err := s.cfg.Mail.Choose(ctx, c.user, wanted); err != nil {
		return nil, err
	}
	s.audit(ctx, c, "account.mail", c.user.Handle, "")
	return s.mailOf(ctx, c)
}

func (s *Server) testMail(ctx context.Context, c *call, in *testMailInput) (*body[mail.Tested], error) {
	tested, err := s.cfg.Mail.Test(ctx, c.user.Handle, in.Body.Address)
	if err != nil {
		return nil, err
	}
	s.audit(ctx, c, "mail.test", in.Body.Address, "")
	return answerWith(tested)
}
