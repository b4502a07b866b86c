package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"html"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/gpulab/gpulab/internal/api"
	"github.com/gpulab/gpulab/internal/config"
	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/signin"
	"github.com/gpulab/gpulab/internal/tailnet"
	"github.com/gpulab/gpulab/internal/users"
	"github.com/gpulab/gpulab/internal/webui"
)

func tailnetDir(cfg config.Config) string { return filepath.Join(cfg.DataDir, "tailnet") }

// newTailnet makes the same doors open on the tailnet, once somebody turns that on.
func (l *appliance) newTailnet() (err error) {
	if l.visits, err = l.cfg.Tailnet.Way(); err != nil {
		return err
	}
	var doors []tailnet.Door
	for _, d := range l.doors() {
		doors = append(doors, l.tailnetDoor(d))
	}
	l.tailnet = tailnet.New(tailnet.Config{
		Dir: tailnetDir(l.cfg), Doors: doors, Log: slog.Default(),
		OwnCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) { return l.certs.GetCertificate(hello) },
		Renamed: func() {
			if err := l.certs.Renew(l.certNames()); err != nil {
				slog.Error("the certificate could not be made for the name on the tailnet", "err", err)
			}
		},
	})
	return nil
}

// tailnetDoor is the same door on the tailnet.
func (l *appliance) tailnetDoor(d door) tailnet.Door {
	public := l.publicDoor(d)
	d.handler, d.proxies = l.admitVisitors(d.handler, d.what == "pages"), nil // who is there, the tailnet says
	return tailnet.Door{Port: d.port, Public: public, Serve: func(ctx context.Context, ln net.Listener) error {
		srv := d.server(l.tailnet.GetCertificate)
		srv.ConnContext = visiting
		return d.serve(ctx, srv, ln)
	}}
}

// serviceOnTailnet serves a service's port there, until close is called.
func (l *appliance) serviceOnTailnet(port int, server func() *http.Server) (close func()) {
	return l.tailnet.Open(tailnet.Door{Port: port, Serve: func(ctx context.Context, ln net.Listener) error {
		srv := server()
		srv.Handler, srv.ConnContext = l.admitVisitors(srv.Handler, false), visiting
		defer context.AfterFunc(ctx, func() { _ = srv.Close() })()
		return srv.ServeTLS(limitPerAddress(ln, connectionsPerAddress, nil), "", "")
	}})
}

// visiting takes note that a connection came over the tailnet.
func visiting(ctx context.Context, _ net.Conn) context.Context {
	return context.WithValue(ctx, visitKey{}, &visit{})
}

// publicDoor is a door for the public internet, where nobody vouches for anybody; nil where signing in by the tailnet
// is required, and for what is not encrypted.
func (l *appliance) publicDoor(d door) func(context.Context, net.Listener) error {
	// Funnel passes on 443, 8443 and 10000 alone, so no notebook has an origin of its
	// own there.
	if l.cfg.Tailnet.SignIn == config.TailnetRequire || !d.tls || d.forwards {
		return nil
	}
	d.tls, d.proxies = false, nil   // the tailnet's library has ended TLS
	d.handler = l.starting(l.pages) // without labels
	return func(ctx context.Context, ln net.Listener) error { return d.serve(ctx, d.server(nil), ln) }
}

// visit is a connection that came over the tailnet, and who is there. Only such a connection has one, so nothing that a
// request says can claim it.
type visit struct {
	mu    sync.Mutex
	asked time.Time
	who   tailnet.Visitor
	err   error
}

type visitKey struct{}

// visitFresh is for how long a visitor is not asked for again on the same connection: a page has many files.
const visitFresh = 5 * time.Second

// visitor says who is there, as the lab's rules judge; false for whoever did not come over the tailnet, or whom it does
// not know.
func (l *appliance) visitor(r *http.Request) (users.Outside, bool) {
	v, ok := r.Context().Value(visitKey{}).(*visit)
	if !ok {
		return users.Outside{}, false
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if time.Since(v.asked) > visitFresh {
		v.who, v.err = l.tailnet.Visitor(r.Context(), r.RemoteAddr)
		if r.Context().Err() != nil {
			return users.Outside{}, false
		}
		v.asked = time.Now()
	}
	if v.err != nil {
		return users.Outside{}, false
	}
	name := v.who.Login
	if name == "" {
		name = v.who.Machine
	}
	who := l.visits.Judge(signin.Vouched{
		Realm: l.tailnet.Realm(), Subject: v.who.Subject, Username: name, Name: v.who.Name, Groups: config.KeysOf(v.who),
	})
	who.Machine = v.who.Login == ""
	return l.shared(r.Context(), v.who, who)
}

// shared lets somebody of another tailnet in whom no entry names, once an account of this lab was linked with them;
// false while that is not known.
func (l *appliance) shared(ctx context.Context, v tailnet.Visitor, who users.Outside) (users.Outside, bool) {
	who.ByHand = v.Shared && v.Login != ""
	if who.Refused == "" || !who.ByHand {
		return who, true
	}
	linked, err := l.people.LinkedByHand(ctx, who)
	if err != nil && ctx.Err() == nil {
		slog.Error("whether a visitor over the tailnet has an account is not known", "err", err)
	}
	if linked {
		who.Refused, who.Create = "", false
	}
	return who, err == nil
}

// admitVisitors keeps strangers out where signing in by the tailnet is required there. Whom the rules admit gets the
// lab's pages as everywhere; only the other ways to sign in are closed. At the pages' door, somebody of another tailnet
// may show what an admin has sent them.
func (l *appliance) admitVisitors(next http.Handler, pages bool) http.Handler {
	if l.cfg.Tailnet.SignIn != config.TailnetRequire {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who, known := l.visitor(r)
		switch {
		case !known:
			l.turnAway(w, "The tailnet does not tell this lab who you are. Sign in to the tailnet on this device again, or "+
				"ask an admin of the lab.")
		case who.Refused != "" && !who.ByHand:
			l.turnAway(w, who.Refused)
		case who.Refused != "" && (!pages || !forInvited(r.URL.Path)):
			l.turnAway(w, who.Refused+" With an invitation or a one-time link from them, open that here.")
		case otherWayIn(r):
			l.turnAway(w, "Over the tailnet, passwords are not taken, nor is another way to sign in: sign in as who you are "+
				"there, on the sign-in page.")
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// forInvited tells whether a path is needed by somebody who has been sent a link, and has no account yet.
func forInvited(path string) bool {
	return path == "/join" || path == "/welcome" || path == "/handle/check" || strings.HasPrefix(path, "/assets/")
}

// otherWayIn tells whether a request takes somebody in who is not who the tailnet says.
func otherWayIn(r *http.Request) bool {
	switch way, is := strings.CutPrefix(r.URL.Path, "/signin/"); {
	case r.URL.Path == "/setup" || r.URL.Path == "/signup":
		return true
	case r.Method != http.MethodPost:
		return false
	case is:
		return way != config.TailnetWay
	}
	return r.URL.Path == "/login" || r.URL.Path == api.Prefix+"/tokens"
}

func (l *appliance) turnAway(w http.ResponseWriter, why string) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	ownPage(w)
	w.WriteHeader(http.StatusForbidden)
	fmt.Fprintf(w,
		`<!doctype html><html lang="en"><meta name="viewport" content="width=device-width"><title>%s</title>
<style>:root{color-scheme:light dark}
body{font:16px/1.5 system-ui;margin:3rem auto;max-width:34rem;padding:0 1rem}</style>
<h1>You cannot come in this way</h1><p>%s</p></html>`,
		html.EscapeString(l.cfg.Lab), html.EscapeString(why))
}

// networkWay lets people sign in as who they are in the tailnet; nil where they do not.
func (l *appliance) networkWay() *webui.Network {
	if l.cfg.Tailnet.SignIn == config.Off {
		return nil
	}
	return &webui.Network{Info: signin.Info{Name: config.TailnetWay, Title: "the tailnet", Network: true},
		Visitor: l.visitor,
		Required: func(r *http.Request) bool {
			_, over := r.Context().Value(visitKey{}).(*visit)
			return over && l.cfg.Tailnet.SignIn == config.TailnetRequire
		}}
}

// tailnets is the tailnet for the pages and for programs, which record themselves who did what.
type tailnets struct{ l *appliance }

// Status implements webui.Tailnet.
func (t tailnets) Status(context.Context) (ctl.Tailnet, error) { return t.l.tailnetNow(), nil }

// Up implements webui.Tailnet.
func (t tailnets) Up(ctx context.Context, r ctl.TailnetRequest) (ctl.Tailnet, error) {
	err := t.l.tailnet.Up(ctx, tailnet.UpRequest{
		AuthKey: strings.TrimSpace(r.AuthKey), LoginServer: r.LoginServer, Hostname: r.Hostname,
	})
	return t.l.tailnetNow(), tailnetWords(err)
}

// Down implements webui.Tailnet.
func (t tailnets) Down(ctx context.Context) (ctl.Tailnet, error) {
	err := t.l.tailnet.Down(ctx)
	return t.l.tailnetNow(), tailnetWords(err)
}

// Funnel implements webui.Tailnet.
func (t tailnets) Funnel(ctx context.Context, on bool) (ctl.Tailnet, error) {
	err := t.l.tailnet.Funnel(ctx, on)
	return t.l.tailnetNow(), tailnetWords(err)
}

// Logout implements webui.Tailnet.
func (t tailnets) Logout(ctx context.Context) (ctl.Tailnet, error) {
	server := t.l.tailnet.Status().LoginServer
	// Whoever asks may do so over the tailnet, and lose the connection by it.
	told, err := t.l.tailnet.Logout(context.WithoutCancel(ctx))
	now := t.l.tailnetNow()
	if err == nil && !told {
		now.Detail = "The lab has left, but the control server did not answer and does not know it."
		now.NextStep = "Delete the machine in the list of " + cmp.Or(server, "the tailnet") + "."
	}
	return now, tailnetWords(err)
}

// tailnetWords makes a sentence for people of what cannot be.
func tailnetWords(err error) error {
	var wrong *tailnet.Error
	if errors.As(err, &wrong) {
		return &users.Error{Kind: ctl.ErrTailnet, Text: sentenceOf(wrong.Text)}
	}
	return err
}

func sentenceOf(text string) string {
	return strings.ToUpper(text[:1]) + text[1:] + "."
}

// Tailnet implements ctl.Daemon.
func (l *appliance) Tailnet(ctx context.Context) (ctl.Tailnet, error) { return tailnets{l}.Status(ctx) }

// TailnetUp implements ctl.Daemon.
func (l *appliance) TailnetUp(ctx context.Context, r ctl.TailnetRequest) (ctl.Tailnet, error) {
	now, err := tailnets{l}.Up(ctx, r)
	if err == nil {
		l.recordRoot(ctx, "tailnet.up", "", now.LoginServer)
	}
	return now, err
}

// TailnetDown implements ctl.Daemon.
func (l *appliance) TailnetDown(ctx context.Context) (ctl.Tailnet, error) {
	now, err := tailnets{l}.Down(ctx)
	if err == nil {
		l.recordRoot(ctx, "tailnet.down", "", "")
	}
	return now, err
}

// TailnetLogout implements ctl.Daemon.
func (l *appliance) TailnetLogout(ctx context.Context) (ctl.Tailnet, error) {
	now, err := tailnets{l}.Logout(ctx)
	if err == nil {
		l.recordRoot(ctx, "tailnet.logout", "", "")
	}
	return now, err
}

// TailnetFunnelOff implements ctl.Daemon.
func (l *appliance) TailnetFunnelOff(ctx context.Context) (ctl.Tailnet, error) {
	now, err := tailnets{l}.Funnel(ctx, false)
	if err == nil {
		l.recordRoot(ctx, "tailnet.funnel-off", "", "")
	}
	return now, err
}

// tailnetNow says in words how it stands.
func (l *appliance) tailnetNow() ctl.Tailnet {
	st := l.tailnet.Status()
	out := ctl.Tailnet{
		State: string(st.State), LoginServer: st.LoginServer, LoginURL: st.LoginURL, Expires: st.Expires,
		SignIn: string(l.cfg.Tailnet.SignIn),
	}
	trouble := strings.Join(st.Problems, " ")
	switch st.State {
	case tailnet.Off:
		out.Detail = "The lab is in no tailnet."
		if st.Known {
			out.Detail, out.NextStep = "It is off; the lab belongs to a tailnet of "+st.LoginServer+".",
				"`gpulab tailnet up` turns it on again."
		}
	case tailnet.Starting:
		out.Detail, out.NextStep = "Waiting for "+st.LoginServer+".",
			"If it stays so, make sure that this machine reaches "+st.LoginServer+"."
		if trouble != "" {
			out.Detail = st.LoginServer + " has not let the lab in yet: " + trouble
		}
	case tailnet.Login:
		// Without the address: with it, whoever reads the status could take the lab into a tailnet of theirs.
		out.Detail, out.NextStep = "Somebody of the tailnet has to let the lab in.",
			"`gpulab tailnet up` shows the address to open, as the page Tailnet does; or give a key: gpulab tailnet up "+
				"--auth-key-file FILE"
		if st.Expired {
			out.Detail = "The tailnet wants somebody to let the lab in again: its key there ran out."
		}
		if trouble != "" {
			out.Detail += " " + trouble
		}
	case tailnet.Approval:
		out.Detail, out.NextStep = "An admin of the tailnet has to approve this machine.",
			"Ask them, or approve it in the list of machines of "+st.LoginServer+"."
	case tailnet.Failed:
		out.Detail, out.NextStep = "It cannot be turned on: "+trouble+".", "Mend that, then run `gpulab tailnet up`."
		if !st.Known {
			out.NextStep = "`gpulab tailnet up --login-server SERVER` joins again (" + tailnet.TailscaleServer +
				" for Tailscale’s); `gpulab tailnet logout` forgets the tailnet."
		}
	case tailnet.Up:
		l.describeUp(&out, st)
	}
	if st.Funnel || st.State == tailnet.Up {
		describeFunnel(&out, st)
	}
	return out
}

func describeFunnel(out *ctl.Tailnet, st tailnet.Status) {
	switch {
	case !st.Funnel:
		out.Funnel = ctl.FunnelOff
	case st.Public:
		out.Funnel = ctl.FunnelOpen
		out.Detail += " Everybody on the internet reaches it there (Funnel)."
	case st.FunnelError != nil:
		out.Funnel = ctl.FunnelFailed
		out.Detail += " It could not be opened to the internet (Funnel): " + st.FunnelError.Error() + "."
		out.NextStep = "It is tried again every minute; `gpulab tailnet funnel off` ends that."
	default:
		out.Funnel = ctl.FunnelOpening
		out.Detail += " It is being opened to the internet (Funnel)."
	}
}

func (l *appliance) describeUp(out *ctl.Tailnet, st tailnet.Status) {
	out.Name, out.Addresses, out.Tailnet, out.Trusted = st.Name, st.Addresses, st.Tailnet, st.Certificate
	host := st.Name
	if host == "" && len(st.Addresses) > 0 {
		host = st.Addresses[0]
	}
	out.URL = config.URL(host, l.cfg.HTTPSPort)
	out.Detail = "The lab is at " + out.URL + "."
	switch {
	case st.Certificate:
	case st.Offered && st.CertificateError == nil:
		out.Detail += " The tailnet’s certificate is on its way; until then it is the lab’s own."
	case st.Offered:
		out.Detail += " The tailnet’s certificate could not be had, so it is the lab’s own: " + st.CertificateError.Error() +
			"."
		out.NextStep = "It is tried again every few minutes; devices that trust the lab’s own certificate need no other."
	case st.LoginServer == tailnet.TailscaleServer:
		out.Detail += " Browsers see the lab’s own certificate there, for the tailnet has none."
		out.NextStep = "Switch on MagicDNS and HTTPS Certificates at https://login.tailscale.com/admin/dns; nothing has " +
			"to be done here."
	default:
		out.Detail += " Browsers see the lab’s own certificate there, for this control server gives none."
		out.NextStep = "Devices trust it as they do elsewhere: " + out.URL + "/trust."
	}
	if st.Expires != nil && time.Until(*st.Expires) < 14*24*time.Hour {
		out.Detail += " Its key in the tailnet runs out on " + st.Expires.Local().Format(time.DateOnly) + "."
		out.NextStep = "Switch key expiry off for this machine in the tailnet’s list, or run `gpulab tailnet up` that day."
	}
	if unencrypted(st.LoginServer) {
		out.Detail += " Its control server is asked without encryption: whoever is on the way there could visit as " +
			"anybody of the tailnet."
		out.NextStep = "Give the control server https, then `gpulab tailnet logout` and `gpulab tailnet up --login-server " +
			"https://…`."
	}
}

// unencrypted tells whether others can read, and answer, what this machine asks a server.
func unencrypted(server string) bool {
	u, err := url.Parse(server)
	if err != nil || u.Scheme != "http" {
		return false
	}
	ip, err := netip.ParseAddr(u.Hostname())
	return u.Hostname() != "localhost" && (err != nil || !ip.IsLoopback())
}

// tailnetComponent is how the tailnet is, nothing where the lab is in none. That it is away makes no lab unready.
func (l *appliance) tailnetComponent() []ctl.Component {
	now := l.tailnetNow()
	c := ctl.Component{Name: "tailnet", State: ctl.Warning, Detail: now.Detail, NextStep: now.NextStep}
	switch {
	case now.State == ctl.TailnetOff && now.LoginServer == "":
		return nil
	case now.State == ctl.TailnetOff:
		c.State = ctl.Off
	case unencrypted(now.LoginServer):
	case now.Funnel == ctl.FunnelFailed:
	case now.State == ctl.TailnetUp && (now.Expires == nil || time.Until(*now.Expires) > 14*24*time.Hour):
		c.State = ctl.OK
	}
	return []ctl.Component{c}
}
