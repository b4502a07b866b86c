package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"html"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gpulab/gpulab/internal/config"
	"github.com/gpulab/gpulab/internal/cookies"
)

// formTimeout is for a whole request to arrive: whoever sends one byte a minute
// must not keep a connection for ever.
const formTimeout = 30 * time.Second

const (
	// closingPatience is for answers that are under way when gpulab ends.
	closingPatience = 2 * time.Second
	// startPatience is how long the request of a program, or of a script in a page
	// that was there before, waits for the start.
	startPatience = time.Minute
)

// switchHandler serves the "starting" page until the real handler is there.
type switchHandler struct {
	handler atomic.Pointer[http.Handler]
	there   chan struct{} // closed when it is
}

func newSwitchHandler() *switchHandler { return &switchHandler{there: make(chan struct{})} }

// set is called once.
func (s *switchHandler) set(h http.Handler) {
	s.handler.Store(&h)
	close(s.there)
}

// wait waits for the real handler, but not for ever.
func (s *switchHandler) wait(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	select {
	case <-s.there:
	case <-ctx.Done():
	}
}

// isPage says whether somebody looks at what comes, who is told that it is starting.
func isPage(r *http.Request) bool {
	if mode := r.Header.Get("Sec-Fetch-Mode"); mode != "" {
		return mode == "navigate"
	}
	return strings.Contains(r.Header.Get("Accept"), "text/html")
}

// door is a port of the lab, and who answers there.
type door struct {
	what    string
	port    int
	tls     bool
	handler http.Handler
	proxies []netip.Prefix // that are believed
	// forwards says that notebooks answer there: uploads may take their time, and
	// WebSockets need HTTP/1.1.
	forwards bool
	// isLabel says at which names notebooks answer on a port of pages; nil for none.
	isLabel func(host string) bool
}

func (l *appliance) doors() []door {
	doors := []door{
		{"pages", l.cfg.HTTPSPort, true, l.origins.AtLabels(l.starting(l.labs), l.starting(l.pages)), l.proxies, false,
			l.origins.IsLabel},
		{"notebooks", l.cfg.HubPort, true, l.starting(l.labs), l.proxies, true, nil},
	}
	if *l.cfg.HTTPPort != 0 {
		doors = append(doors, door{
			"the redirect to HTTPS", *l.cfg.HTTPPort, false, http.HandlerFunc(l.redirect), l.proxies, false, nil,
		})
	}
	return doors
}

// server is for one listener at a door.
func (d door) server(certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)) *http.Server {
	srv := &http.Server{
		Handler: forwarded{d.proxies, cookies.Limit(d.handler)}, ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout: 2 * time.Minute,
		ErrorLog:    slog.NewLogLogger(slog.Default().Handler(), slog.LevelDebug), // mostly browsers that do not trust us yet
	}
	cookies.Server(srv)
	if !d.forwards {
		// Forms are small. The pages' live streams take this deadline off.
		srv.ReadTimeout = formTimeout
	}
	if d.tls {
		srv.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: certificate}
		if d.forwards {
			srv.TLSConfig.NextProtos = []string{"http/1.1"}
			srv.TLSNextProto = map[string]func(*http.Server, *tls.Conn, http.Handler){}
		} else if d.isLabel != nil {
			srv.TLSConfig.GetConfigForClient = d.forLabels(certificate)
		}
	}
	return srv
}

// forLabels offers HTTP/1.1 alone where notebooks answer, as their ports do. A browser
// that has an HTTP/2 connection to the pages may use that for a label; it opens another
// one for WebSockets.
func (d door) forLabels(
	certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)) func(*tls.ClientHelloInfo) (*tls.Config, error) {
	older := &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: certificate, NextProtos: []string{"http/1.1"}}
	return func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		if d.isLabel(hello.ServerName) {
			return older, nil
		}
		return nil, nil
	}
}

// serve answers until ctx ends.
func (d door) serve(ctx context.Context, srv *http.Server, ln net.Listener) error {
	ended := make(chan struct{})
	context.AfterFunc(ctx, func() {
		// What is being answered gets its answer; live streams end.
		limited, cancel := context.WithTimeout(context.Background(), closingPatience)
		defer cancel()
		if srv.Shutdown(limited) != nil {
			_ = srv.Close()
		}
		close(ended)
	})
	ln = limitPerAddress(ln, connectionsPerAddress, d.proxies)
	var err error
	if d.tls {
		err = srv.ServeTLS(ln, "", "")
	} else {
		err = srv.Serve(ln)
	}
	if errors.Is(err, http.ErrServerClosed) {
		<-ended
		return nil
	}
	return fmt.Errorf("serving %s: %w", d.what, err)
}

// listen opens the ports. A port that is taken is an error at once, with the
// next step, and nothing else has begun.
func (l *appliance) listen(ctx context.Context, g *errgroup.Group) error {
	defer l.outlived.giveUpRest()
	for _, d := range l.doors() {
		ln, err := l.outlived.listen(net.JoinHostPort("", strconv.Itoa(d.port)))
		if err != nil {
			if !d.tls { // a machine's own web server may keep port 80
				slog.Warn("no redirect from HTTP", "err", err)
				continue
			}
			return explainListen(d.what, d.port, err)
		}
		g.Go(func() error { return d.serve(ctx, d.server(l.certs.GetCertificate), ln) })
	}
	l.openNotebookPorts(ctx, g)
	return nil
}

// starting answers for a handler that is not there yet.
func (l *appliance) starting(s *switchHandler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if to := l.goesTo(r); to != "" {
			http.Redirect(w, r, to, http.StatusTemporaryRedirect)
			return
		}
		state, _ := l.boot.now()
		if why := state.Failed + state.Before; why == "" && !isPage(r) {
			s.wait(r.Context())
		}
		if h := s.handler.Load(); h != nil {
			(*h).ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Header().Set("Cache-Control", "no-store")
		ownPage(w)
		w.Header().Set("Retry-After", "2")
		w.Header().Set("Refresh", "2")
		w.WriteHeader(http.StatusServiceUnavailable)
		var b strings.Builder
		fmt.Fprintf(&b,
			`<!doctype html><html lang="en"><meta name="viewport" content="width=device-width"><title>%s is starting</title>
<style>:root{color-scheme:light dark}body{font:16px/1.5 system-ui;margin:3rem auto;max-width:34rem;padding:0 1rem}
td{padding:.1rem .8rem .1rem 0;vertical-align:top}</style><h1>%[1]s is starting</h1>`,
			html.EscapeString(l.cfg.Lab))
		if why := state.Failed + state.Before; why != "" {
			fmt.Fprintf(&b, "<p>It could not start: %s</p><p>Next: %s An administrator runs <code>gpulab status</code> on "+
				"the machine.</p>", html.EscapeString(why), html.EscapeString(nextTry(state)))
		} else {
			b.WriteString("<p>This page comes back by itself.</p>")
		}
		b.WriteString("<table>")
		for _, s := range state.Stages {
			fmt.Fprintf(&b, "<tr><td>%s<td>%s<td>%s", html.EscapeString(s.Name), s.State, html.EscapeString(s.Detail))
		}
		b.WriteString("</table></html>")
		_, _ = w.Write([]byte(b.String()))
	})
}

// ownPage marks a page that stands in for another one, on whatever port: no page of another may show it in a frame.
func ownPage(w http.ResponseWriter) {
	w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'")
	w.Header().Set("X-Frame-Options", "DENY")
}

// hostOf is the name or address by which somebody came, without brackets and port.
func hostOf(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.Host)
	if err != nil {
		host = r.Host
	}
	return strings.Trim(host, "[]")
}

// byName answers under the lab's own names and addresses alone: links are made of the name that
// somebody came by, and no site elsewhere may have a name of its own lead here.
func (l *appliance) byName(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if l.allowedHost(hostOf(r)) {
			next.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		ownPage(w)
		w.WriteHeader(http.StatusMisdirectedRequest)
		at := html.EscapeString(l.url())
		fmt.Fprintf(w,
			`<!doctype html><html lang="en"><meta name="viewport" content="width=device-width"><title>Another name</title>
<style>:root{color-scheme:light dark}
body{font:16px/1.5 system-ui;margin:3rem auto;max-width:34rem;padding:0 1rem}</style>
<h1>This lab goes by another name</h1><p>Open <a href="%s">%[1]s</a>.</p>
<p>An administrator who wants it to answer here adds this name to <code>names</code> in /etc/gpulab/config.yaml
and runs <code>gpulab init</code>.</p></html>`,
			at)
	})
}

// redirect sends plain HTTP to HTTPS under the same name, if it is one of ours.
func (l *appliance) redirect(w http.ResponseWriter, r *http.Request) {
	target := l.url()
	if host := hostOf(r); l.allowedHost(host) || l.origins.IsLabel(host) {
		target = config.URL(host, l.cfg.HTTPSPort)
	}
	http.Redirect(w, r, target+r.URL.RequestURI(), http.StatusPermanentRedirect)
}
