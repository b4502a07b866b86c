package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpulab/gpulab/internal/audit"
	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/notebooks"
	"github.com/gpulab/gpulab/internal/quota"
)

// recommendedQuotas are for the largest machine that the pool has now.
func (l *appliance) recommendedQuotas() ([]quota.Rule, error) {
	now, err := l.host.Read()
	cores, memory := len(now.CPUs), int64(now.Memory["MemTotal"])
	if cores == 0 || memory == 0 {
		return nil, errors.Join(errors.New("this machine does not say how many processors and how much memory it has"), err)
	}
	if l.pool != nil {
		for _, h := range l.pool.hosts() {
			cores, memory = max(cores, h.CPUs), max(memory, h.MemoryTotal)
		}
	}
	return quota.Recommended(cores, memory, cardAsks(l.cfg.LaunchProfiles())), nil
}

// cardAsks is what launch cards take.
func cardAsks(profiles []notebooks.Profile) []quota.Ask {
	if len(profiles) == 0 {
		profiles = notebooks.DefaultProfiles()
	}
	asks := make([]quota.Ask, 0, len(profiles))
	for i := range profiles {
		ask := quota.Ask{GPUs: profiles[i].GPUs, CPUs: profiles[i].CPUs}
		if q, err := resource.ParseQuantity(cmp.Or(profiles[i].Memory, "0")); err == nil {
			ask.Memory = q.Value()
		}
		asks = append(asks, ask)
	}
	return asks
}

// startWithQuotas gives a new lab the recommended quotas. One that was made by a version without them keeps what it
// has; its admins are told instead.
func (l *appliance) startWithQuotas(ctx context.Context) error {
	settled, err := l.quotas.Settled(ctx)
	if err != nil || settled {
		return err
	}
	fresh, err := l.people.Fresh(ctx)
	if err != nil || !fresh {
		return err
	}
	_, err = l.settleQuotas(ctx, ctl.SettleSet, "system")
	return err
}

// settleQuotas does what is wanted with the recommendation, and returns it.
func (l *appliance) settleQuotas(ctx context.Context, act, by string) (rec ctl.RecommendedQuotas, err error) {
	if rec.Rules, err = l.recommendedQuotas(); err != nil {
		return rec, err
	}
	var entry audit.Entry
	everybody := quota.Subject{}.String()
	switch act {
	case "":
		rec.Advised, err = l.quotas.Advised(ctx)
		return rec, err
	case ctl.SettleSet:
		entry = audit.Entry{Actor: by, Action: "quota.set", Target: everybody, Detail: ruleWords(rec.Rules)}
		err = l.quotas.SetRecommended(ctx, rec.Rules)
	case ctl.SettleDecline:
		entry = audit.Entry{Actor: by, Action: "quota.decline", Target: everybody}
		err = l.quotas.DeclineRecommended(ctx)
	default:
		return rec, fmt.Errorf("%q is nothing that can be done with recommended quotas", act)
	}
	if err != nil {
		return rec, err
	}
	return rec, l.people.AuditLog().Record(ctx, entry)
}

// RecommendedQuotas implements ctl.Daemon.
func (l *appliance) RecommendedQuotas(ctx context.Context, act string) (ctl.RecommendedQuotas, error) {
	return l.settleQuotas(ctx, act, "root")
}

func ruleWords(rules []quota.Rule) string {
	var words []string
	for _, r := range rules {
		words = append(words, r.Kind.Words()+" "+r.Kind.Format(r.Value))
	}
	return strings.Join(words, ", ")
}

// quotaAdvice is what admins of a lab without quotas are told, "" for nothing.
func (l *appliance) quotaAdvice(ctx context.Context) (text, next string, err error) {
	if advised, err := l.quotas.Advised(ctx); err != nil || !advised {
		return "", "", err
	}
	rules, err := l.recommendedQuotas()
	if err != nil {
		return "", "", err
	}
	return "No quota bounds what one person may run at once. New labs begin with these for everybody: " + ruleWords(rules),
		"`sudo gpulab quota recommended --set` on the head machine sets them, `--decline` ends this notice", nil
}

// quotasComponent shows the advice beside the lab's parts.
func (l *appliance) quotasComponent(ctx context.Context) (ctl.Component, bool) {
	text, next, err := l.quotaAdvice(ctx)
	if err != nil {
		return ctl.Component{Name: "quotas", State: ctl.Warning, Detail: err.Error()}, true
	}
	return ctl.Component{Name: "quotas", State: ctl.OK, Detail: text, NextStep: next}, text != ""
}
