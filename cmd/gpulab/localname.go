package main

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/gpulab/gpulab/internal/config"
	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/discover"
)

// localName keeps the lab answering for its name on the networks where it is now.
type localName struct {
	mu      sync.Mutex
	name    string // as it is answered for, "" for none
	taken   netip.Addr
	trouble string
}

func (n *localName) set(name string, taken netip.Addr, trouble string) (changed bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	changed = name != n.name
	n.name, n.taken, n.trouble = name, taken, trouble
	return changed
}

// now is the name, "" while there is none.
func (n *localName) now() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.name
}

// keepLocalName answers for the lab's name as long as ctx lasts, and anew wherever
// the machine goes. A lab without it works all the same.
func (l *appliance) keepLocalName(ctx context.Context) error {
	if !l.cfg.LocalName.On() {
		return nil
	}
	var host *discover.HostName
	var at []discover.Place
	drop := func() {
		if host != nil {
			_ = host.Close()
		}
		host, at = nil, nil
	}
	defer drop()
	told := ""
	for ok := true; ok; ok = sleep(ctx, announceEvery) {
		places, err := lanPlaces()
		if err == nil && host != nil && slices.Equal(places, at) {
			continue
		}
		drop()
		if err == nil && len(places) == 0 {
			err = errors.New("this machine is in no local network")
		}
		if err == nil {
			host, err = l.claim(ctx, places)
		}
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			if told != err.Error() {
				told = err.Error()
				slog.Warn("the lab has no name on the local network; its address works", "err", err)
			}
			l.answerTo("", netip.Addr{}, err.Error())
			continue
		}
		at, told = places, ""
		l.answerTo(host.Name, host.Taken, "")
	}
	return nil
}

func (l *appliance) claim(ctx context.Context, places []discover.Place) (*discover.HostName, error) {
	interfaces, own := make([]string, len(places)), make([]netip.Addr, len(places))
	for i, p := range places {
		interfaces[i], own[i] = p.Interface, p.Address
	}
	slices.Sort(interfaces)
	limited, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	return discover.Claim(limited, string(l.cfg.LocalName), slices.Compact(interfaces), own)
}

// answerTo makes the certificate and the pages take a name for the lab's own.
func (l *appliance) answerTo(name string, taken netip.Addr, trouble string) {
	if !l.local.set(name, taken, trouble) {
		return
	}
	slog.Info("the lab's name on the local network", "name", name, "taken", taken)
	if err := l.certs.Renew(l.certNames()); err != nil {
		slog.Error("the certificate could not be made for the local name", "err", err)
	}
}

// localURL is where machines on the local network open the lab, "" without a name.
func (l *appliance) localURL() string {
	name := l.local.now()
	if name == "" {
		return ""
	}
	return config.URL(name, l.cfg.HTTPSPort)
}

// localNameComponent says by which name the local network finds the lab.
func (l *appliance) localNameComponent() ctl.Component {
	c := ctl.Component{Name: "local name", State: ctl.OK}
	if !l.cfg.LocalName.On() {
		c.State, c.Detail = ctl.Off, "localName is off in the configuration"
		return c
	}
	l.local.mu.Lock()
	defer l.local.mu.Unlock()
	switch wanted := string(l.cfg.LocalName) + ".local"; {
	case l.local.trouble != "":
		c.State, c.Detail, c.NextStep = ctl.Warning, l.local.trouble,
			"people open the lab by its address; `localName: off` in the configuration ends this"
	case l.local.name == "":
		c.State, c.Detail = ctl.Starting, "asking whether "+wanted+" is free"
	case l.local.taken.IsValid():
		c.State, c.Detail, c.NextStep = ctl.Warning,
			l.local.name+", since "+wanted+" is the machine at "+l.local.taken.String(),
			"give this lab another `localName` in the configuration, then `gpulab init`"
	default:
		c.Detail = l.local.name + ", for machines on the same network"
	}
	return c
}
