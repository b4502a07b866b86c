package main

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"github.com/gpulab/gpulab/internal/ctl"
)

// Times of keeping Kubernetes' certificates good.
const (
	certificatesEvery = 30 * time.Second // the clock may be set at any moment
	// certificatesLeft is how long they must be good at least. k3s makes new ones
	// for a year when it starts, from 120 days before the end on.
	certificatesLeft = 60 * 24 * time.Hour
	// ownLeft is when people are told of a certificate that somebody else renews: those
	// who do it by themselves have done so by then.
	ownLeft = 14 * 24 * time.Hour
)

// keepCertificates takes a renewed certificate of the lab's own over. It restarts k3s,
// and nothing else, before Kubernetes' certificates run out, or when they have because the
// clock was set. Notebooks go on.
func (l *appliance) keepCertificates(ctx context.Context) error {
	var tried time.Time // what ran out then; a restart that changes nothing is not repeated
	for sleep(ctx, certificatesEvery) {
		if l.ownCert.Look() {
			slog.Info("the lab's own certificate is a new one", "until", l.ownCert.Until(), "names", l.ownCert.Names())
			if err := l.certs.Renew(l.certNames()); err != nil {
				slog.Error("the lab does not answer to the names of its own certificate yet", "err", err)
			}
		}
		cluster := l.cluster.Load()
		if cluster == nil || !cluster.Process().Running {
			continue
		}
		until, err := cluster.CertificatesUntil()
		switch {
		case err != nil:
			slog.Warn("Kubernetes' certificates cannot be looked at", "err", err)
			continue
		case until.IsZero(), time.Until(until) > certificatesLeft, until.Equal(tried):
			continue
		}
		slog.Info("Kubernetes is started again to renew its certificates; notebooks go on", "until", until)
		tried = until
		cluster.Restart()
	}
	return nil
}

// certificatesComponent says until when the lab's certificates are good. They
// are renewed by themselves, unless the clock is wrong.
func (l *appliance) certificatesComponent() ctl.Component {
	c := ctl.Component{Name: "certificates", State: ctl.OK}
	kubernetes, err := l.cluster.Load().CertificatesUntil()
	switch trouble := l.certs.Trouble(); {
	case trouble != "":
		c.State, c.Detail, c.NextStep = ctl.Warning, trouble+": browsers refuse it",
			"set the clock: timedatectl set-ntp true; if it is right, see `gpulab ca --help`"
	case err != nil:
		c.State, c.Detail, c.NextStep = ctl.Warning, err.Error(), "restart gpulab; Kubernetes makes what is missing"
	case !kubernetes.IsZero() && time.Now().After(kubernetes):
		c.State, c.Detail, c.NextStep = ctl.Warning, "Kubernetes' ran out on "+kubernetes.Format(time.DateOnly),
			"gpulab restarts Kubernetes within a minute to renew them; if the clock is wrong, set it: timedatectl set-ntp true"
	case l.ownCert != nil && l.ownCert.Trouble(time.Now()) != "":
		c.State, c.Detail, c.NextStep = ctl.Warning, l.ownCert.Trouble(time.Now()),
			"renew the files that `tls` in the configuration names; they are taken over within a minute"
	case l.ownCert != nil && time.Until(l.ownCert.Until()) < ownLeft:
		c.State, c.Detail, c.NextStep = ctl.Warning,
			"the lab's own certificate runs out on "+l.ownCert.Until().Format(time.DateOnly),
			"renew the files that `tls` in the configuration names; they are taken over within a minute"
	case l.cfg.Uncovered(l.ownCert) != "":
		c.State, c.Detail, c.NextStep = ctl.Warning, l.cfg.Uncovered(l.ownCert),
			"get a certificate that names it, too, or take it out of `names`"
	default:
		c.Detail = "pages until " + l.certs.Until().Format(time.DateOnly) + ", Kubernetes until " +
			kubernetes.Format(time.DateOnly) + "; both are renewed before"
		if l.ownCert != nil {
			c.Detail += "; the lab's own, for " + strings.Join(l.ownCert.Names(),
				", ") + ", until " + l.ownCert.Until().Format(time.DateOnly)
		}
	}
	return c
}
