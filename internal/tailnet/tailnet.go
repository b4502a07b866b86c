package tailnet

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"tailscale.com/envknob"
	"tailscale.com/types/logger"
)

// Config is what a Service needs. All but Renamed and Log are required.
type Config struct {
	// Dir holds the lab's identity in the tailnet.
	Dir string
	// Doors are what is served on the tailnet.
	Doors []Door
	// OwnCertificate is the one for names that the tailnet has none of.
	OwnCertificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// Renamed hears that Names has changed.
	Renamed func()
	Log     *slog.Logger
}

// Door is a port of the lab.
type Door struct {
	Port int
	// Serve answers until ctx ends, and closes the listener.
	Serve func(ctx context.Context, l net.Listener) error
	// Public is Serve for who comes from the public internet, over connections whose TLS ends before; nil for a door
	// that stays closed to it.
	Public func(ctx context.Context, l net.Listener) error
}

// UpRequest is how to join a tailnet.
type UpRequest struct {
	// AuthKey lets the lab in without a person; it is used once and kept nowhere.
	AuthKey string
	// LoginServer is the control server; empty means the one it is known to, and Tailscale's for a lab that is new.
	LoginServer string
	// Hostname is the lab's name there; empty leaves it as it is.
	Hostname string
}

// Service is the lab as a machine of a tailnet, or of none. Its methods may be called from any goroutine.
type Service struct {
	cfg     Config
	pace    pace
	running chan struct{} // closed once Run has begun
	ctx     context.Context

	change sync.Mutex // held by whoever turns it on or off

	more further // doors

	mu     sync.Mutex
	wanted wanted
	node   *node // nil while it is off
	broken error // why it could not be turned on, or what was wanted is not known
	names  []string
}

// New reads what was wanted last, and contacts nobody. Where that is damaged, Status tells.
func New(cfg Config) *Service {
	w, err := loadWanted(cfg.Dir)
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Renamed == nil {
		cfg.Renamed = func() {}
	}
	s := &Service{cfg: cfg, pace: usualPace, wanted: w, broken: err, running: make(chan struct{})}
	if w.Up {
		s.names = loadNames(cfg.Dir)
	}
	return s
}

// damaged tells why it is not known what was wanted; nil where it is.
func (s *Service) damaged() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.wanted != (wanted{}) {
		return nil
	}
	return s.broken
}

// Run keeps the lab in its tailnet until ctx ends. Whatever is wrong there ends nothing else: Status tells.
func (s *Service) Run(ctx context.Context) error {
	s.mu.Lock()
	s.ctx = ctx
	s.mu.Unlock()
	s.change.Lock()
	close(s.running)
	if w := s.now(); w.Funnel && len(s.publicPorts()) == 0 {
		// The configuration closes the lab to the internet. Changed back, it does not open it.
		w.Funnel = false
		s.want(w)
		if err := w.save(s.cfg.Dir); err != nil {
			s.cfg.Log.Warn("that the lab is closed to the internet is not kept", "err", err)
		}
	}
	if s.now().Up {
		s.start("")
	}
	s.change.Unlock()
	<-ctx.Done()
	s.change.Lock()
	defer s.change.Unlock()
	s.stop()
	return nil
}

func (s *Service) now() wanted {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.wanted
}

// begin waits for Run and takes the right to change.
func (s *Service) begin(ctx context.Context) (end func(), err error) {
	select {
	case <-s.running:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	s.change.Lock()
	if s.ctx.Err() != nil {
		s.change.Unlock()
		return nil, errors.New("gpulab is ending")
	}
	return s.change.Unlock, nil
}

// Up turns it on, and keeps it on over restarts. Where it is on already, it is begun anew only for another name or
// server, for a key, and where a person or a key is needed.
func (s *Service) Up(ctx context.Context, r UpRequest) error {
	if err := checkKey(r.AuthKey); err != nil {
		return err
	}
	end, err := s.begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	w := s.now()
	before := w
	if err := s.damaged(); err != nil && r.LoginServer == "" {
		return &Error{Text: err.Error() + "; say whose tailnet it is, too: --login-server " + TailscaleServer +
			", or that of your own control server"}
	}
	if r.LoginServer != "" {
		server, err := checkServer(r.LoginServer)
		if err != nil {
			return err
		}
		if w.LoginServer != "" && w.LoginServer != server {
			return &Error{Text: fmt.Sprintf("this lab belongs to a tailnet of %s; `gpulab tailnet logout` ends that, then it "+
				"can join another", w.LoginServer)}
		}
		w.LoginServer = server
	}
	w.LoginServer = cmp.Or(w.LoginServer, TailscaleServer)
	w.Hostname = cmp.Or(r.Hostname, w.Hostname, usualHostname)
	if err := checkHostname(w.Hostname); err != nil {
		return err
	}
	w.Up = true
	if w != before {
		if err := w.save(s.cfg.Dir); err != nil {
			return err
		}
	}
	s.mu.Lock()
	s.wanted = w
	on := s.node
	s.mu.Unlock()
	if on != nil && w == before && (on.joined() || r.AuthKey == "" && on.asks()) {
		return nil
	}
	s.stop()
	s.start(r.AuthKey)
	return nil
}

// Down turns it off; the lab stays known to the tailnet.
func (s *Service) Down(ctx context.Context) error {
	end, err := s.begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	w := s.now()
	w.Up, w.Funnel = false, false // turned on again, the lab is not open to the internet at once
	s.want(w)                     // first, for a full disk must not keep it on
	s.stop()
	s.rename(nil)
	if w == (wanted{}) {
		return nil // of no tailnet
	}
	return w.save(s.cfg.Dir)
}

// logoutPatience is how long the control server has to forget the lab.
const logoutPatience = 10 * time.Second

// Logout turns it off and forgets the tailnet. It is done even where the control server does not answer: told then is
// false, and the machine stays in the tailnet's list.
func (s *Service) Logout(ctx context.Context) (told bool, err error) {
	end, err := s.begin(ctx)
	if err != nil {
		return false, err
	}
	defer end()
	damaged := s.damaged() != nil
	if s.now() == (wanted{}) && !damaged {
		return true, nil // of no tailnet
	}
	s.mu.Lock()
	n := s.node
	s.mu.Unlock()
	if n == nil && !damaged {
		n = s.start("")
	}
	if n != nil {
		limited, cancel := context.WithTimeout(ctx, logoutPatience)
		told = n.forget(limited)
		cancel()
	}
	s.stop()
	s.rename(nil)
	if err := os.RemoveAll(s.cfg.Dir); err != nil {
		return told, fmt.Errorf("the identity in the tailnet could not be deleted: %w", err)
	}
	s.mu.Lock()
	s.wanted, s.broken = wanted{}, nil
	s.mu.Unlock()
	return told, nil
}

// start begins a node; change is held.
func (s *Service) start(authKey string) *node {
	// Before anything of it runs: the library would upload its logs.
	envknob.SetNoLogsNoSupport()
	n, err := s.newNode(authKey)
	s.mu.Lock()
	s.node, s.broken = n, err
	s.mu.Unlock()
	if err != nil {
		s.cfg.Log.Error("the tailnet cannot be joined", "err", err)
		return nil
	}
	s.more.openAll(n)
	return n
}

// stop ends the node, if there is one; change is held.
func (s *Service) stop() {
	s.mu.Lock()
	n := s.node
	s.node = nil
	s.mu.Unlock()
	if n == nil {
		return
	}
	n.end()
}

// Names are what the lab is called on the tailnet, and its addresses there: as they are now, or were last while it is
// turned on.
func (s *Service) Names() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.names)
}

func (s *Service) rename(names []string) {
	s.mu.Lock()
	same := slices.Equal(s.names, names)
	s.names = names
	s.mu.Unlock()
	if same {
		return
	}
	if err := saveNames(s.cfg.Dir, names); err != nil {
		s.cfg.Log.Warn("the lab's names on the tailnet are not kept for the next start", "err", err)
	}
	s.cfg.Renamed()
}

// GetCertificate is the tailnet's for the lab's name there, and the lab's own for everything else.
func (s *Service) GetCertificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	s.mu.Lock()
	n := s.node
	s.mu.Unlock()
	if n != nil {
		if c := n.certificate(hello.ServerName); c != nil {
			return c, nil
		}
	}
	return s.cfg.OwnCertificate(hello)
}

// silent is where the library's messages go: they hold addresses with which somebody else could take the lab into
// their tailnet.
var silent = logger.Discard
