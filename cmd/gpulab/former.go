package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gpulab/gpulab/internal/config"
)

// placesSetting holds where this machine is and was, as JSON: links with an
// address that it had must say where to go.
const placesSetting = "places"

// formerKept is how many former addresses are remembered.
const formerKept = 16

// places is what is remembered of where this machine was.
type places struct {
	Now    string        `json:"now"` // its address when it was last seen
	Former []formerPlace `json:"former,omitempty"`
}

// formerPlace is an address that was this machine's.
type formerPlace struct {
	Address string    `json:"address"`
	Until   time.Time `json:"until"` // when it was first seen at another
}

// former is where this machine was, the latest first.
type former struct {
	mu     sync.Mutex
	places places
}

// loadFormer reads where this machine was before this start.
func (l *appliance) loadFormer(ctx context.Context) error {
	text, err := l.store.Setting(ctx, placesSetting)
	if err != nil {
		return err
	}
	var known places
	if text != "" {
		if err := json.Unmarshal([]byte(text), &known); err != nil {
			return fmt.Errorf("the setting %s: %w", placesSetting, err)
		}
	}
	l.former.mu.Lock()
	l.former.places = known
	l.former.mu.Unlock()
	before, _ := netip.ParseAddr(known.Now) // the zero one for none
	l.remember(ctx, before, l.where.Load().address)
	return nil
}

// remember notes that this machine is at another address than before.
func (l *appliance) remember(ctx context.Context, was, now netip.Addr) {
	if !now.IsValid() {
		return // it is offline, and nowhere else yet
	}
	l.former.mu.Lock()
	defer l.former.mu.Unlock()
	p := &l.former.places
	if !was.IsValid() {
		was, _ = netip.ParseAddr(p.Now)
	}
	if p.Now == now.String() && (!was.IsValid() || was == now) {
		return
	}
	p.Now = now.String()
	p.Former = slices.DeleteFunc(slices.Clone(p.Former), func(f formerPlace) bool {
		return f.Address == now.String() || f.Address == was.String()
	})
	if was.IsValid() && was != now {
		p.Former = slices.Insert(p.Former, 0, formerPlace{was.String(), time.Now().UTC().Truncate(time.Second)})
	}
	p.Former = p.Former[:min(len(p.Former), formerKept)]
	text, err := json.Marshal(p)
	if err == nil {
		err = l.store.SetSetting(ctx, placesSetting, string(text))
	}
	if err != nil {
		slog.Warn("where this machine was is forgotten with the next start", "err", err)
	}
}

// was tells whether an address was this machine's, and is not its first one now.
func (l *appliance) was(host string) bool {
	l.former.mu.Lock()
	defer l.former.mu.Unlock()
	return slices.ContainsFunc(l.former.places.Former, func(f formerPlace) bool { return f.Address == host })
}

// elsewhere says where the lab is for who has opened it under a host.
func (l *appliance) elsewhere(host string) (moved string, others []string) {
	if l.was(host) {
		moved = l.url()
	}
	for _, name := range l.certs.Names() {
		addr, err := netip.ParseAddr(name)
		if name == host || name == "localhost" || err == nil && addr.IsLoopback() || strings.HasSuffix(name, ".svc") ||
			strings.HasSuffix(name, ".cluster.local") {
			continue
		}
		others = append(others, config.URL(name, l.cfg.HTTPSPort))
	}
	return moved, others
}

// goesTo is where a request belongs that came under an address which this
// machine had and has no more, but which still leads here: through a forwarded
// port, or a name server that is behind. "" for all others. Only what reads is
// sent on: a form would be refused there, since its token is of another site.
func (l *appliance) goesTo(r *http.Request) string {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		return ""
	}
	host, port, err := net.SplitHostPort(r.Host)
	if err != nil {
		host, port = r.Host, ""
	}
	if !l.was(host) || l.allowedHost(host) {
		return ""
	}
	to := l.url()
	if n, err := strconv.Atoi(port); err == nil && l.servesNotebooks(n) {
		to = config.URL(l.cfg.HostOf(l.where.Load().address), n)
	}
	return to + r.URL.RequestURI()
}

// addressWords says where this machine is, and where it was.
func (l *appliance) addressWords() string {
	here := l.where.Load()
	text := fmt.Sprintf("%s on %s", here.address, here.iface)
	l.former.mu.Lock()
	defer l.former.mu.Unlock()
	if list := l.former.places.Former; len(list) > 0 {
		text += fmt.Sprintf("; until %s it was %s", list[0].Until.Local().Format("15:04 on Mon 2 Jan"), list[0].Address)
	}
	return text
}
