package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/diskspace"
	"github.com/gpulab/gpulab/internal/gpu"
	"github.com/gpulab/gpulab/internal/history"
	"github.com/gpulab/gpulab/internal/idle"
	"github.com/gpulab/gpulab/internal/mail"
	"github.com/gpulab/gpulab/internal/notebooks"
	"github.com/gpulab/gpulab/internal/quota"
	"github.com/gpulab/gpulab/internal/units"
	"github.com/gpulab/gpulab/internal/users"
)

const (
	// mailEvery is how often conditions are looked at that people are told of by mail.
	mailEvery = 5 * time.Second
	// seldom is how often those are that take a while to look at and change slowly.
	seldom = time.Minute
	// waitedLong is how long somebody must have waited to be somewhere else by now, and a job have taken to be written of.
	waitedLong, tookLong = time.Minute, 5 * time.Minute
	// missedLong is how long a machine must be silent: one that only restarts is back by then.
	missedLong = 2 * time.Minute
	// nearlyUsed is from what part of GPU hours somebody is told.
	nearlyUsed = 0.9
)

// mailSources are the conditions that people are told of.
func (l *appliance) mailSources() []mail.Source {
	return []mail.Source{
		{Name: "requests", Kinds: []mail.Kind{mail.Requests}, Notices: l.requestNotices},
		{Name: "launches", Kinds: []mail.Kind{mail.Turn, mail.Jobs}, Notices: l.launchNotices},
		{Name: "idle", Kinds: []mail.Kind{mail.Stop}, Notices: l.stopNotices},
		{Name: "quotas", Kinds: []mail.Kind{mail.Stop, mail.Quota}, Notices: now(l.quotaNotices)},
		{Name: "homes", Kinds: []mail.Kind{mail.Home}, Notices: notOften(seldom, l.homeNotices)},
		{Name: "disk", Kinds: []mail.Kind{mail.Disk}, Notices: now(l.diskNotices)},
		{Name: "machines", Kinds: []mail.Kind{mail.Machines}, Notices: now(l.machineNotices)},
		{Name: "gpus", Kinds: []mail.Kind{mail.GPUs}, Notices: l.gpuNotices},
		{Name: "sign-in", Kinds: []mail.Kind{mail.SignIn}, Notices: now(l.keptNotices)},
	}
}

// now is a source that knows only what holds now.
func now(ask func(context.Context) ([]mail.Notice, error)) func(context.Context, time.Time) ([]mail.Notice, error) {
	return func(ctx context.Context, _ time.Time) ([]mail.Notice, error) { return ask(ctx) }
}

// notOften is a source that is asked at most every so often, and says the same in between.
func notOften(every time.Duration, ask func(context.Context) ([]mail.Notice,
	error)) func(context.Context, time.Time) ([]mail.Notice, error) {
	var asked time.Time
	var last []mail.Notice
	return func(ctx context.Context, _ time.Time) ([]mail.Notice, error) {
		if time.Since(asked) < every {
			return last, nil
		}
		list, err := ask(ctx)
		if err != nil {
			return nil, err
		}
		asked, last = time.Now(), list
		return list, nil
	}
}

func (l *appliance) requestNotices(ctx context.Context, since time.Time) ([]mail.Notice, error) {
	list, err := l.people.SignUps(ctx)
	var out []mail.Notice
	for i := range list {
		r := &list[i]
		if r.Requested.Before(since) {
			continue
		}
		who := r.Handle
		if r.Name != "" {
			who = r.Name + " (" + r.Handle + ")"
		}
		text := who + " asks for an account."
		if r.Note != "" {
			text += " They write: “" + r.Note + "”"
		}
		out = append(out, mail.Notice{
			Kind: mail.Requests, Key: fmt.Sprint(r.ID), Subject: who + " asks for an account", Text: text, Path: "/requests",
		})
	}
	return out, err
}

// keptNotices reports people who keep role and groups for now, because an identity provider does not send their groups.
func (l *appliance) keptNotices(ctx context.Context) ([]mail.Notice, error) {
	list, err := l.people.KeptUntold(ctx)
	var out []mail.Notice
	for i := range list {
		k := &list[i]
		out = append(out, mail.Notice{
			Kind: mail.SignIn, Key: fmt.Sprintf("%d %d", k.ID, k.Until.Unix()), Path: "/users/" + k.Handle,
			Subject: k.Provider + " does not send what the sign-in rules need about " + k.Handle,
			Text: fmt.Sprintf("The identity provider %s did not send everything that the sign-in rules need to know about %s "+
				"(user name at the provider: %s): %s. "+
				"%[2]s has the role %[5]s and keeps role and groups until %[6]s. %[7]s Run `sudo gpulab signin check` to see "+
				"how to fix it.",
				k.Provider, k.Handle, k.Username, k.Why, k.Role, k.Until.Local().Format("Monday 2 January 2006"), keptThen(k)),
		})
	}
	return out, err
}

// keptThen is a sentence about what the rules do with a person who no longer keeps role and groups.
func keptThen(k *users.Kept) string {
	switch {
	case k.Refused:
		return "After that, the rules refuse the sign-in."
	case k.Then == "":
		return "After that, the rules give no role."
	}
	return "After that, the rules give the role " + string(k.Then) + "."
}

// launchNotices reports notebooks whose turn has come, and jobs that have begun or ended.
func (l *appliance) launchNotices(ctx context.Context, since time.Time) ([]mail.Notice, error) {
	parts := l.attached.Load()
	if parts == nil {
		return nil, mail.ErrNotKnown
	}
	active, err := parts.notebooks.Active(ctx)
	if err != nil {
		return nil, err
	}
	ended, err := parts.notebooks.EndedJobs(ctx, since)
	if err != nil {
		return nil, err
	}
	return slices.Concat(turnNotices(active, since), beginNotices(active, since), jobNotices(ended)), nil
}

func turnNotices(active []notebooks.Launch, since time.Time) (out []mail.Notice) {
	for i := range active {
		n := &active[i]
		if n.Job != nil || n.GPUs == 0 || n.State != notebooks.Running || n.Ready.Before(since) ||
			n.Started.Sub(n.Requested) < waitedLong {
			continue
		}
		out = append(out, mail.Notice{Kind: mail.Turn, Key: fmt.Sprint(n.ID), To: []int64{n.UserID},
			Subject: "It is your turn: “" + n.Title + "” has started",
			Text: fmt.Sprintf("Your notebook “%s” waited for %s and has started: it has %s now. Open it, or stop it if you "+
				"do not need it any more.",
				n.Title, units.Lasting(n.Started.Sub(n.Requested)), gpusInWords(n.GPUs)),
			Path: fmt.Sprintf("/launches/%d", n.ID)})
	}
	return out
}

// beginNotices reports jobs that have begun to owners who asked for that mail.
func beginNotices(active []notebooks.Launch, since time.Time) (out []mail.Notice) {
	for i := range active {
		n := &active[i]
		if !n.IsJob() || !slices.Contains(n.Job.Mail, notebooks.MailBegin) || n.State != notebooks.Running ||
			n.Ready.Before(since) {
			continue
		}
		out = append(out, mail.Notice{Kind: mail.Jobs, Key: fmt.Sprintf("%d began", n.ID), To: []int64{n.UserID}, Asked: true,
			Subject: "Job “" + n.Title + "” has begun", Text: fmt.Sprintf("Your job “%s” (number %d) has begun.", n.Title, n.ID),
			Path: fmt.Sprintf("/jobs/%d", n.ID)})
	}
	return out
}

// toldOfEnd reports whether a job's owner gets a mail about its end.
func toldOfEnd(n *notebooks.Launch) bool {
	wants := func(what string) bool { return slices.Contains(n.Job.Mail, what) }
	switch end := n.Finished(); {
	case end == "cancelled": // whoever cancels a job knows that it ended
		return false
	case n.Job.Mail == nil:
		return n.Ended.Sub(n.Requested) >= tookLong
	default:
		return wants(notebooks.MailEnd) || wants(notebooks.MailFail) && end != "succeeded" ||
			wants(notebooks.MailTimeLimit) && end == "timed out"
	}
}

func jobNotices(ended []notebooks.Launch) (out []mail.Notice) {
	for i := range ended {
		n := &ended[i]
		if !toldOfEnd(n) {
			continue
		}
		text := fmt.Sprintf("Your job “%s” (number %d) has ended", n.Title, n.ID)
		if !n.Ready.IsZero() {
			text += " after " + units.Lasting(n.Ended.Sub(n.Ready))
		}
		text += "."
		if n.Reason != "" {
			text += " " + n.Reason
		}
		out = append(out, mail.Notice{
			Kind: mail.Jobs, Key: fmt.Sprint(n.ID), To: []int64{n.UserID}, Asked: n.Job.Mail != nil,
			Subject: "Job “" + n.Title + "” has ended", Text: text, Path: fmt.Sprintf("/jobs/%d", n.ID),
		})
	}
	return out
}

func gpusInWords(n int) string {
	if n == 1 {
		return "a GPU"
	}
	return fmt.Sprintf("%d GPUs", n)
}

// stopNotices are notebooks that are about to be stopped because nobody uses their GPUs, or for their age.
func (l *appliance) stopNotices(context.Context, time.Time) ([]mail.Notice, error) {
	if l.attached.Load() == nil {
		return nil, mail.ErrNotKnown
	}
	var out []mail.Notice
	for _, h := range l.idle.Holdings() {
		if h.State == idle.Warned {
			out = append(out, mail.Notice{Kind: mail.Stop, Key: fmt.Sprintf("%d %d", h.Launch, h.Warned.Unix()),
				To:      []int64{h.UserID},
				Subject: "“" + h.Title + "” is about to be stopped", Text: h.Notice(), Path: fmt.Sprintf("/launches/%d", h.Launch)})
		}
	}
	return out, nil
}

// quotaNotices are people who hold GPUs while their hours are nearly used up, or are.
func (l *appliance) quotaNotices(ctx context.Context) ([]mail.Notice, error) {
	if l.attached.Load() == nil {
		return nil, mail.ErrNotKnown
	}
	people, err := l.WithGPU(ctx)
	if err != nil {
		return nil, err
	}
	var out []mail.Notice
	for _, u := range people {
		list, err := l.quotaNoticesOf(ctx, u)
		if err != nil {
			return nil, err
		}
		out = append(out, list...)
	}
	return out, nil
}

func (l *appliance) quotaNoticesOf(ctx context.Context, u users.User) ([]mail.Notice, error) {
	text, err := l.quotas.Notice(ctx, u.ID)
	if err != nil {
		return nil, err
	}
	if text != "" {
		return []mail.Notice{{Kind: mail.Stop, Key: fmt.Sprint(u.ID), To: []int64{u.ID},
			Subject: "Your notebooks are about to be stopped", Text: text, Path: "/"}}, nil
	}
	limits, err := l.quotas.Limits(ctx, u)
	if err != nil {
		return nil, err
	}
	var out []mail.Notice
	for i := range limits {
		q := &limits[i]
		if q.Kind != quota.GPUHoursWeek && q.Kind != quota.GPUHoursTerm || q.Unknown || q.Value == 0 ||
			q.Used < nearlyUsed*q.Value {
			continue
		}
		out = append(out, mail.Notice{Kind: mail.Quota, Key: fmt.Sprintf("%d %s", u.ID, quota.KindName(q.Kind, q.Model)),
			To: []int64{u.ID}, Subject: "Your GPU hours are nearly used up",
			Text: fmt.Sprintf("You have used %s of %s of %s (%s). When all are used up, notebooks with a GPU are stopped "+
				"after a notice. An admin can grant more hours.",
				q.Kind.Format(q.Used), q.Kind.Format(q.Value), q.What(), q.From.Words()), Path: "/use"})
	}
	return out, nil
}

// homeNotices are homes that are nearly full; what is only getting full stands on the page.
func (l *appliance) homeNotices(ctx context.Context) ([]mail.Notice, error) {
	people, err := l.people.List(ctx)
	if err != nil {
		return nil, err
	}
	var out []mail.Notice
	for _, u := range people {
		state, err := l.storage.HomeState(ctx, u)
		if err != nil {
			return nil, err
		}
		if state.Limit == nil || state.Size == nil || float64(state.Size.Bytes) < nearlyUsed*float64(state.Limit.Bytes) {
			continue
		}
		text, err := l.storage.HomeNotice(ctx, u.ID, state)
		if err != nil {
			return nil, err
		}
		subject, key := "Your home is nearly full", "nearly"
		if state.Over {
			subject, key = "Your home is full", "full"
		}
		out = append(out, mail.Notice{
			Kind: mail.Home, Key: fmt.Sprintf("%d %s", u.ID, key), To: []int64{u.ID}, Subject: subject, Text: text,
			Path: "/folders",
		})
	}
	return out, nil
}

// diskNotices are the lab's file systems that are short of room; one that gets shorter is told of again.
func (l *appliance) diskNotices(context.Context) ([]mail.Notice, error) {
	var out []mail.Notice
	list := l.disk.Filesystems()
	for i := range list {
		f := &list[i]
		text := f.Words()
		switch {
		case f.Silent:
			out = append(out, mail.Notice{
				Kind: mail.Disk, Key: strings.Join(f.Holds, ",") + " silent", Subject: "A disk of the lab does not answer",
				Text: text, Path: "/status",
			})
			continue
		case f.Level == diskspace.Fine:
			continue
		case f.Level == diskspace.Notice:
			text += " From 95 % on no notebook starts."
		default:
			text += " Nothing new starts before that is mended; what runs goes on."
		}
		subject := "A disk of the lab gets full"
		if f.Level >= diskspace.Full {
			subject = "A disk of the lab is " + f.Level.String()
		}
		out = append(out, mail.Notice{
			Kind: mail.Disk, Key: strings.Join(f.Holds, ",") + " " + f.Level.String(), Subject: subject,
			Text: text + " On the machine, gpulab disk lists what takes the room.", Path: "/status",
		})
	}
	return out, nil
}

func (l *appliance) machineNotices(ctx context.Context) ([]mail.Notice, error) {
	return lostNotices(l.joinedNodes(ctx), time.Now()), nil
}

func lostNotices(machines []ctl.Node, now time.Time) (out []mail.Notice) {
	for i := range machines {
		n := &machines[i]
		if n.State == ctl.NodeLost && now.Sub(n.LastContact) >= missedLong {
			out = append(out, mail.Notice{
				Kind: mail.Machines, Key: n.Name, Subject: n.Shown() + " is not heard of", Text: n.Detail, Path: "/machines",
			})
		}
	}
	return out
}

// gpuNotices are GPUs that the driver or the machine has lost, or that need somebody's hand. What a program did wrong
// is its owner's matter.
func (l *appliance) gpuNotices(ctx context.Context, since time.Time) ([]mail.Notice, error) {
	events, err := l.history.Events(ctx, history.EventFilter{From: since, Limit: 1000})
	if err != nil {
		return nil, err
	}
	return l.faultNotices(events), nil
}

func (l *appliance) faultNotices(events []history.Event) (out []mail.Notice) {
	for i := range events {
		e := &events[i]
		n := mail.Notice{Kind: mail.GPUs, Key: fmt.Sprintf("%s %s %s %d", e.Node, e.UUID, e.Kind, e.XID), Path: "/gpus"}
		which := "A GPU of " + l.called(e.Node)
		if e.Number != nil {
			which = fmt.Sprintf("GPU %d of %s", *e.Number, l.called(e.Node))
		}
		if e.UUID != "" {
			n.Path = "/gpus/" + e.UUID
		}
		at := e.Last.Local().Format("15:04 on Mon 2 Jan")
		switch e.Kind {
		case history.EventXID:
			means := gpu.ExplainXID(e.XID)
			if means.Severity != gpu.SeverityReset && means.Severity != gpu.SeverityRepair {
				continue
			}
			n.Subject = which + ": " + means.Title
			n.Text = fmt.Sprintf("%s reported an error at %s (XID %d). %s %s", which, at, e.XID, means.Meaning, means.Do)
		case history.EventGPULost:
			n.Subject = which + " cannot be read any more"
			n.Text = strings.TrimSpace(fmt.Sprintf("%s cannot be read since %s. %s", which, at, e.Detail))
		default:
			continue
		}
		out = append(out, n)
	}
	return out
}

// noJobMail says why a person gets no mail about their jobs; "" if they do.
func (l *appliance) noJobMail(u users.User) string {
	switch {
	case !l.mail.On():
		return "this lab has no mail server. An admin can set one up."
	case mail.CheckAddress(u.Email) != nil:
		return "your account has no mail address. The page Account takes one."
	}
	return ""
}
