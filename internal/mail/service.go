package mail

import (
	"context"
	"database/sql"
	"log/slog"
	"sync"
	"time"

	"github.com/gpulab/gpulab/internal/users"
)

// People are those who have accounts.
type People interface {
	List(ctx context.Context) ([]users.User, error)
}

// ServiceConfig wires a Service. All but Sources and Log are required.
type ServiceConfig struct {
	DB     *sql.DB
	Mail   Config
	People People
	Lab    string        // what the lab is called
	URL    func() string // where people open it now
	Log    *slog.Logger
	// Pauses are short in tests; the zero value is the usual.
	Pauses Pauses
}

// Pauses are how long things take that wait for others.
type Pauses struct {
	First, Longest time.Duration // between tries; each is twice the one before
	Poll           time.Duration // between looks into the outbox
	Connect        time.Duration // for the server to answer
	Send           time.Duration // for the server to take a mail: it may look through it first
	GiveUp         time.Duration // after which a mail is not tried any more
}

func (p Pauses) orUsual() Pauses {
	if p.First == 0 {
		p.First = 15 * time.Second
	}
	if p.Longest == 0 {
		p.Longest = 30 * time.Minute
	}
	if p.Poll == 0 {
		p.Poll = 2 * time.Second
	}
	if p.Connect == 0 {
		p.Connect = 20 * time.Second
	}
	if p.Send == 0 {
		p.Send = 10 * time.Minute // RFC 5321, 4.5.3.2.6
	}
	if p.GiveUp == 0 {
		p.GiveUp = 4 * 24 * time.Hour
	}
	return p
}

func (p Pauses) after(tries int) time.Duration {
	if tries > 16 {
		return p.Longest
	}
	return min(p.First<<max(tries-1, 0), p.Longest)
}

// Service keeps the outbox and sends what is in it. Its methods may be called from any goroutine; mails are sent while
// Run runs.
type Service struct {
	cfg ServiceConfig
	now func() time.Time

	looking sync.Mutex // one look at a time
	over    map[told]time.Time

	mu      sync.Mutex
	trouble string // why the server takes nothing, "" while it does
	since   time.Time
}

// New returns a service that sends nothing before Run.
func New(cfg ServiceConfig) *Service {
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	cfg.Pauses = cfg.Pauses.orUsual()
	return &Service{cfg: cfg, now: time.Now, over: map[told]time.Time{}}
}

// On reports whether there is a mail server.
func (s *Service) On() bool { return s.cfg.Mail.On() }

// setTrouble notes why the server takes nothing, and logs what is new about it.
func (s *Service) setTrouble(why string) {
	s.mu.Lock()
	was := s.trouble
	s.trouble = why
	if was == "" {
		s.since = s.now()
	}
	s.mu.Unlock()
	switch {
	case why != "" && why != was:
		s.cfg.Log.Warn("mails wait", "server", s.cfg.Mail.Where(), "why", why)
	case why == "" && was != "":
		s.cfg.Log.Info("the mail server takes mails again", "server", s.cfg.Mail.Where())
	}
}

// Trouble is why the server takes nothing and since when, "" while it does.
func (s *Service) Trouble() (why string, since time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.trouble, s.since
}
