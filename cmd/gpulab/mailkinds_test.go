package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/gpulab/gpulab/internal/config"
	"github.com/gpulab/gpulab/internal/diskspace"
	"github.com/gpulab/gpulab/internal/gpu"
	"github.com/gpulab/gpulab/internal/history"
	"github.com/gpulab/gpulab/internal/idle"
	"github.com/gpulab/gpulab/internal/mail"
	"github.com/gpulab/gpulab/internal/mail/mailtest"
	"github.com/gpulab/gpulab/internal/nodes"
	"github.com/gpulab/gpulab/internal/notebooks"
	"github.com/gpulab/gpulab/internal/quota"
	"github.com/gpulab/gpulab/internal/users"
	"github.com/gpulab/gpulab/internal/version"
)

// mailedLab is a lab that has a mail server, with two admins, ada and eve, and two members, ben and cleo. It is opened as
// the appliance is; notebooks run as far as the database says so.
type mailedLab struct {
	*appliance
	t     *testing.T
	of    map[string]users.User
	clock time.Time // of GPUs
}

func newMailedLab(t *testing.T) (l *mailedLab, server *mailtest.Server) {
	t.Helper()
	server, port := mailtest.Start(t, mailtest.Options{})
	config := servable(t, t.TempDir())
	text, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := loadConfig(writeConfig(t, string(text)+fmt.Sprintf("lab: Vision lab\nmail: {server: 127.0.0.1, port: %d, security: none, from: lab@mail.test}\n", port)))
	if err != nil {
		t.Fatal(err)
	}
	l = &mailedLab{t: t, of: map[string]users.User{}}
	if l.appliance, err = newAppliance(cfg, &app{}); err != nil {
		t.Fatal(err)
	}
	l.must(os.MkdirAll(l.homesDir(), 0o711))
	l.must(unix.Mount("tmpfs", l.homesDir(), "tmpfs", 0, "size=40m")) // a disk to be filled
	t.Cleanup(func() { l.must(unix.Unmount(l.homesDir(), unix.MNT_DETACH)) })
	l.must(l.open(t.Context()))
	t.Cleanup(func() { _ = l.store.Close() })
	l.watchHomes()
	l.history = history.New(history.Config{Store: l.store, Limit: 24 * time.Hour, Clock: func() (time.Time, time.Duration) { return l.clock, time.Duration(l.clock.UnixNano()) }})
	kube, err := notebooks.NewKubeCluster(fake.NewClientset(), systemNamespace, slog.Default())
	l.must(err)
	launches, err := notebooks.New(notebooks.Config{DB: l.store.DB()})
	l.must(err)
	l.idle = idle.New(idle.Config{
		DB: l.store.DB(), Audit: l.people.AuditLog().Record, Running: l.running, Changed: func() {},
		Queue:   func(context.Context) (q idle.Queue, err error) { return q, nil },
		Measure: func(context.Context) (map[string]idle.Usage, error) { return nil, nil },
		Ask:     func(context.Context, idle.Notebook) (c idle.Claims, err error) { return c, nil },
		Stop:    func(context.Context, int64, idle.Cause, string) error { return errors.New("it is stopped at once") },
	})
	l.attached.Store(&attached{kube: kube, notebooks: launches})
	for handle, role := range map[string]users.Role{"ada": users.RoleAdmin, "eve": users.RoleAdmin, "ben": users.RoleMember, "cleo": users.RoleMember} {
		l.of[handle], err = l.people.Create(t.Context(), users.NewUser{Handle: handle, Email: handle + "@mail.test", Role: role})
		l.must(err)
	}
	return l, server
}

// running are notebooks that may run for an hour.
func (l *mailedLab) running(ctx context.Context) (list []idle.Notebook, err error) {
	policy := idle.Default()
	policy.MaxAge = time.Hour
	active, err := l.attached.Load().notebooks.Active(ctx)
	for i := range active {
		n := &active[i]
		list = append(list, idle.Notebook{Launch: n.ID, UserID: n.UserID, Handle: n.Handle, Name: n.Name, Title: n.Title, GPUs: n.GPUs, Ready: n.Ready, Policy: policy})
	}
	return list, err
}

func (l *mailedLab) must(err error) {
	l.t.Helper()
	if err != nil {
		l.t.Fatal(err)
	}
}

func (l *mailedLab) exec(statement string, args ...any) {
	l.t.Helper()
	_, err := l.store.DB().Exec(statement, args...)
	l.must(err)
}

// during runs a part of the lab until something holds.
func (l *mailedLab) during(run func(context.Context) error, holds func() bool) {
	l.t.Helper()
	ctx, cancel := context.WithCancel(l.t.Context())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	for end := time.Now().Add(time.Minute); !holds(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			l.t.Error("it does not come about")
			break
		}
	}
	cancel()
	l.must(<-done)
}

// members does something for both of them.
func (l *mailedLab) members(do func(u users.User)) {
	for _, handle := range []string{"ben", "cleo"} {
		do(l.of[handle])
	}
}

// limit gives everybody a quota.
func (l *mailedLab) limit(kind quota.Kind, value float64) {
	l.t.Helper()
	everybody, err := quota.ParseSubject("everybody")
	l.must(err)
	l.must(l.quotas.Set(l.t.Context(), everybody, kind, "", &value))
}

const title = "Training\r\nBcc: victim@mail.test"

func (l *mailedLab) asksForAccount() {
	l.must(l.people.AskToJoin(l.t.Context(), users.NewUser{Handle: "zoe", Name: "Zoë"}, "for my thesis", "a long password of zoe", "10.0.0.9"))
}

func (l *mailedLab) turnComes() {
	now := time.Now()
	l.members(func(u users.User) {
		l.exec(`INSERT INTO launches (user_id, handle, name, title, profile, gpus, state, requested_at, started_at, ready_at) VALUES (?, ?, 'work', ?, 'gpu', 1, 'running', ?, ?, ?)`,
			u.ID, u.Handle, title, now.Add(-10*time.Minute).UnixMilli(), now.Add(-time.Second).UnixMilli(), now.UnixMilli())
	})
}

func (l *mailedLab) jobEnds() {
	now := time.Now()
	l.members(func(u users.User) {
		l.exec(`INSERT INTO launches (user_id, handle, name, title, profile, gpus, state, end_code, requested_at, started_at, ready_at, ended_at) VALUES (?, ?, 'train', ?, 'gpu', 1, 'ended', ?, ?, ?, ?, ?)`,
			u.ID, u.Handle, title, notebooks.EndExited, now.Add(-time.Hour).UnixMilli(), now.Add(-time.Hour).UnixMilli(), now.Add(-time.Hour).UnixMilli(), now.UnixMilli())
		l.exec(`INSERT INTO jobs (launch_id, output, time_limit) SELECT max(id), 'log', 7200 FROM launches`)
	})
}

// growOld has both notebooks run for longer than one may.
func (l *mailedLab) growOld() {
	l.exec("UPDATE launches SET ready_at = ready_at - ?", (2 * time.Hour).Milliseconds())
	l.during(func(ctx context.Context) error { return l.idle.Run(ctx, nil) }, func() bool {
		held := l.idle.Holdings()
		return len(held) == 2 && !slices.ContainsFunc(held, func(h idle.Holding) bool { return h.State != idle.Warned })
	})
}

// groupsAreLeftOut has a provider leave out the groups of somebody who is a lead by them.
func (l *mailedLab) groupsAreLeftOut() {
	o := users.Outside{Provider: "uni", Title: "University", Realm: "https://id.example.org", Subject: "eva", Username: "eva", Create: true, Role: users.RoleLead, Told: true}
	_, err := l.people.SignInOutside(l.t.Context(), o, "")
	l.must(err)
	o.Role, o.Told, o.Untold = users.RoleGuest, false, "there are too many"
	_, err = l.people.SignInOutside(l.t.Context(), o, "")
	l.must(err)
}

// holdGPUs has both members hold a GPU for some time until now.
func (l *mailedLab) holdGPUs(lasting time.Duration) {
	number := map[string]int{"ben": 0, "cleo": 1}
	s := gpu.Snapshot{Node: "gpu-one"}
	l.members(func(u users.User) {
		s.GPUs = append(s.GPUs, gpu.GPU{Device: gpu.Device{UUID: "GPU-" + u.Handle, Index: number[u.Handle]}, Holders: []gpu.Holder{{PodRef: gpu.PodRef{User: u.Handle}}}})
	})
	for _, l.clock = range []time.Time{time.Now().Add(-lasting), time.Now()} {
		l.history.Add(s)
	}
	l.must(l.history.Flush(l.t.Context()))
}

func (l *mailedLab) hoursNearlyUsed() {
	l.limit(quota.GPUHoursWeek, 10)
	l.holdGPUs(9*time.Hour + 30*time.Minute)
}

func (l *mailedLab) hoursUsed() {
	l.limit(quota.GPUHoursWeek, 9)
	l.during(func(ctx context.Context) error { return l.quotas.Keep(ctx, l.appliance) }, func() bool {
		all := true
		l.members(func(u users.User) {
			text, err := l.quotas.Notice(l.t.Context(), u.ID)
			l.must(err)
			all = all && text != ""
		})
		return all
	})
}

func (l *mailedLab) homeFills() {
	l.limit(quota.HomeSize, 10<<20)
	l.members(func(u users.User) {
		l.must(os.Mkdir(l.storage.Home(u.ID), 0o700))
		l.must(os.WriteFile(filepath.Join(l.storage.Home(u.ID), "data"), make([]byte, 9<<20+500<<10), 0o600))
		l.storage.MeasureHome(u.ID)
	})
	l.during(l.storage.Run, func() bool {
		all := true
		l.members(func(u users.User) {
			size, err := l.storage.HomeSize(l.t.Context(), u.ID)
			l.must(err)
			all = all && size != nil && size.Bytes > 9<<20
		})
		return all
	})
}

func (l *mailedLab) diskFills() {
	l.must(os.WriteFile(filepath.Join(l.homesDir(), "ballast"), make([]byte, 18<<20), 0o600))
	l.watchHomes()
}

// watchHomes looks at no disk of the machine that the test runs on.
func (l *mailedLab) watchHomes() {
	l.disk = diskspace.New(diskspace.Config{Places: []diskspace.Place{{Name: "homes", Path: l.homesDir()}}})
}

func (l *mailedLab) machineIsSilent() {
	ctx := l.t.Context()
	code, _, err := l.pool.registry.Invite(ctx, l.pool.authority.Fingerprint(), []netip.AddrPort{netip.MustParseAddrPort("10.0.0.5:8444")})
	l.must(err)
	_, _, err = l.pool.registry.Join(ctx, nodes.Application{
		CodeID: code.ID, Secret: code.Secret, Name: "gpu-two", Machine: strings.Repeat("0", 64), Address: "10.0.0.6",
		Version: version.Version, GPUs: config.GPUsReal,
	})
	l.must(err)
	l.exec("UPDATE nodes SET seen_at = ?", time.Now().Add(-time.Hour).UnixMilli())
	l.must(l.pool.reread(ctx))
	l.pool.began = time.Now().Add(-time.Hour) // it has heard others meanwhile
}

func (l *mailedLab) gpuFails() {
	l.clock = time.Now()
	l.history.Add(gpu.Snapshot{Node: "gpu-one", Events: []gpu.XIDEvent{{Time: l.clock, UUID: "GPU-ben", XID: 79}}})
	l.must(l.history.Flush(l.t.Context()))
}

// TestEveryKindOfMail: what happens in the lab is mailed to whom it concerns, once, but to nobody who does not want that
// kind, and not when they want it again.
func TestEveryKindOfMail(t *testing.T) {
	needRoot(t) // a file system is mounted
	l, server := newMailedLab(t)
	look := func() {
		t.Helper()
		l.must(l.mail.Look(t.Context(), l.mailSources()...))
	}
	look()
	type step struct {
		kind          mail.Kind
		happens       func()
		subject, text string
	}
	steps := []step{
		{mail.Requests, l.asksForAccount, "Zoë (zoe) asks for an account", "“for my thesis”"},
		{mail.Turn, l.turnComes, "It is your turn: “Training", "waited for 9 min"},
		{mail.Jobs, l.jobEnds, "Job “Training", "has ended after 1 h"},
		{mail.Stop, l.growOld, "” is about to be stopped", "has run for 1 h"},
		{mail.Quota, l.hoursNearlyUsed, "Your GPU hours are nearly used up", "9.5 h of 10 h"},
		{mail.Stop, l.hoursUsed, "Your notebooks are about to be stopped", "used up"},
		{mail.Home, l.homeFills, "Your home is nearly full", "10 MiB"},
		{mail.Disk, l.diskFills, "A disk of the lab gets full", "From 95 % on"},
		{mail.Machines, l.machineIsSilent, "gpu-two is not heard of", "See that it is on"},
		{mail.GPUs, l.gpuFails, "GPU 0 of gpu-one: GPU has fallen off the bus", "XID 79"},
		{mail.SignIn, l.groupsAreLeftOut, "uni does not send what the sign-in rules need about eva", "there are too many. eva has the role lead and keeps role and groups until"},
	}
	of := func(kind mail.Kind) (to, off users.User) {
		if slices.ContainsFunc(mail.Kinds(users.RoleMember), func(r mail.Rule) bool { return r.Kind == kind }) {
			return l.of["ben"], l.of["cleo"]
		}
		return l.of["ada"], l.of["eve"]
	}
	told := func(what string, kind mail.Kind, subject string) {
		t.Helper()
		list, err := l.mail.Entries(t.Context(), "", 100)
		l.must(err)
		to, _ := of(kind)
		var got []string
		for _, e := range list {
			if e.Kind == kind && strings.Contains(e.Subject, subject) {
				got = append(got, e.To)
			}
		}
		if want := []string{to.Email}; !slices.Equal(got, want) {
			t.Errorf("%s, %q: told were %v, want %v; all mails: %+v", what, subject, got, want, list)
		}
	}
	for _, s := range steps {
		_, off := of(s.kind)
		l.must(l.mail.Choose(t.Context(), off, map[mail.Kind]bool{s.kind: false}))
		s.happens()
		look()
		told("it has happened", s.kind, s.subject)
		l.must(l.mail.Choose(t.Context(), off, map[mail.Kind]bool{s.kind: true}))
	}
	look()
	for _, s := range steps {
		told("at the end", s.kind, s.subject)
	}
	if list, err := l.mail.Entries(t.Context(), "", 100); err != nil || len(list) != len(steps) {
		t.Errorf("%d mails, want %d: %+v, %v", len(list), len(steps), list, err)
	}
	if t.Failed() {
		return // what is missing would be waited for
	}
	l.during(l.mail.Run, func() bool { return len(server.Mails()) >= len(steps) })
	for _, s := range steps {
		to, _ := of(s.kind)
		m := server.Wait(t, to.Email, s.subject)
		if !strings.Contains(m.Text, s.text) || m.Header.Get("Bcc") != "" || strings.ContainsAny(m.Subject, "\r\n") {
			t.Errorf("%s: %q\n%s", s.kind, m.Subject, m.Text)
		}
	}
	for _, r := range mail.Kinds(users.RoleAdmin) {
		if !slices.ContainsFunc(steps, func(s step) bool { return s.kind == r.Kind }) {
			t.Errorf("nothing happens that %s is about", r.Kind)
		}
	}
}
