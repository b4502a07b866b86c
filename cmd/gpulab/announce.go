package main

import (
	"encoding/hex"
	"log/slog"
	"slices"
	"time"

	"github.com/gpulab/gpulab/internal/discover"
	"github.com/gpulab/gpulab/internal/embedk8s"
	"github.com/gpulab/gpulab/internal/version"
)

// announcer keeps the head announced on the networks where it is now.
type announcer struct {
	places []discover.Place
	end    func()
	looked time.Time
	failed string
}

// announceEvery is how often the interfaces are looked at.
const announceEvery = 10 * time.Second

func (a *announcer) set(wanted bool, what func() discover.Announcement) {
	if !wanted {
		a.stop()
		return
	}
	if time.Since(a.looked) < announceEvery {
		return
	}
	a.looked = time.Now()
	places, err := lanPlaces()
	if err == nil && a.end != nil && slices.Equal(places, a.places) {
		return
	}
	a.stop()
	a.looked = time.Now()
	if err == nil {
		a.places = places
		a.end, err = discover.Announce(what(), places)
	}
	if err == nil {
		a.failed = ""
	} else if err.Error() != a.failed {
		a.failed = err.Error()
		slog.Warn("machines on the local network do not find this head by themselves; codes work", "err", err)
	}
}

func (a *announcer) stop() {
	if a.end != nil {
		a.end()
	}
	a.end, a.places, a.looked = nil, nil, time.Time{}
}

// lanPlaces are the interfaces by which other machines come in: none of k3s's, of
// containers or of virtual machines.
func lanPlaces() ([]discover.Place, error) {
	list, err := embedk8s.Candidates()
	var out []discover.Place
	for _, c := range list {
		out = append(out, discover.Place{Interface: c.Interface, Address: c.Address})
	}
	return out, err
}

// announcement is what the network is told of this head.
func (p *pool) announcement() discover.Announcement {
	id := p.authority.Fingerprint()
	return discover.Announcement{
		Lab: p.lab.cfg.Lab, Head: p.lab.id.NodeName, Version: version.Version, ID: hex.EncodeToString(id[:6]),
		Port: p.lab.cfg.NodesPort,
	}
}
