package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpulab/gpulab/internal/audit"
	"github.com/gpulab/gpulab/internal/config"
	"github.com/gpulab/gpulab/internal/cookies"
	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/embedk8s"
	"github.com/gpulab/gpulab/internal/gpu"
	"github.com/gpulab/gpulab/internal/supervise"
	"github.com/gpulab/gpulab/internal/units"
	"github.com/gpulab/gpulab/internal/users"
	"github.com/gpulab/gpulab/internal/version"
)

// linkTTL is how long one-time links work.
const linkTTL = time.Hour

var _ ctl.Daemon = (*appliance)(nil)

// errStarting is what callers hear before the parts they need exist.
var errStarting = errors.New("the lab is still starting; see `gpulab status`")

// WatchBoot implements ctl.Daemon.
func (l *appliance) WatchBoot(ctx context.Context, fn func(ctl.Boot) error) error {
	return l.boot.watch(ctx, fn)
}

// Status implements ctl.Daemon.
func (l *appliance) Status(ctx context.Context) (ctl.Status, error) {
	state, _ := l.boot.now()
	s := ctl.Status{
		URL: l.url(), LocalURL: l.localURL(), Version: version.Version, GPUs: l.fleet.Snapshots(), Network: l.network(ctx),
	}
	if s.GPUs == nil {
		s.GPUs = []gpu.Snapshot{}
	}
	if before := l.before.Load(); before != nil {
		s.Before = *before
	}
	if c, failing := startComponent(state); failing {
		s.Components = append(s.Components, c)
	}
	for _, st := range state.Stages {
		c := stageComponent(st)
		if st.Name == stageAddress && c.State == ctl.OK {
			c.Detail = l.addressWords()
		}
		s.Components = append(s.Components, c)
	}
	node := l.headNode(ctx, state.Ready)
	if state.Ready {
		s.Components = append(s.Components, l.liveComponents(ctx)...)
	}
	s.Nodes = append([]ctl.Node{node}, l.joinedNodes(ctx)...)
	if c, ok := l.machinesComponent(s.Nodes); ok {
		s.Components = append(s.Components, c)
	}
	if c, ok := l.exportComponent(); ok && state.Ready {
		s.Components = append(s.Components, c)
	}
	s.Ready = state.Ready && node.Ready
	for _, c := range s.Components {
		s.Ready = s.Ready && c.State != ctl.Failed && c.State != ctl.Starting
	}
	return s, nil
}

// stageComponent shows a stage of the start as a component.
func stageComponent(st ctl.Stage) ctl.Component {
	c := ctl.Component{Name: st.Name, Detail: st.Detail}
	switch st.State {
	case "done":
		c.State = ctl.OK
	case "failed":
		c.State, c.NextStep = ctl.Failed, "mend what the detail says; gpulab tries again by itself"
	default:
		c.State = ctl.Starting
	}
	return c
}

func (l *appliance) nodeReady(ctx context.Context) (bool, string) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	n, err := l.client.Load().CoreV1().Nodes().Get(ctx, l.id.NodeName, metav1.GetOptions{})
	if err != nil {
		return false, "the Kubernetes API does not answer"
	}
	for _, a := range n.Status.Addresses {
		if here := l.where.Load().address.String(); a.Type == corev1.NodeInternalIP && a.Address != here {
			return false, "the node is moving from " + a.Address + " to " + here
		}
	}
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue, c.Message
		}
	}
	return false, "the node has not reported yet"
}

// liveComponents looks at what may break after the start.
func (l *appliance) liveComponents(ctx context.Context) []ctl.Component {
	out := []ctl.Component{k3sComponent(l.cluster.Load())}
	hub := ctl.Component{Name: "hub", State: ctl.OK}
	addr, there := l.attached.Load().kube.HubAddress()
	switch {
	case there && l.attached.Load().notebooks.Connected():
		hub.Detail = "at " + addr
	case there:
		hub.State, hub.Detail, hub.NextStep = ctl.Starting, "at "+addr+", but it does not reach gpulab yet",
			"wait a minute; then `gpulab logs hub`"
	default:
		hub.State, hub.Detail, hub.NextStep = ctl.Starting, "its pod is not ready", "wait a minute; then `gpulab logs hub`"
	}
	out = append(out, lineComponents(l.attached.Load().line.Trouble())...)
	out = append(out, l.sharesWithoutGroup(ctx)...)
	out = append(out, hub, l.podsComponent(ctx), l.sleepComponent(), diskComponent(l.disk.Filesystems()),
		l.historyComponent(), l.homesComponent(ctx), l.filesComponent(), l.backupComponent(ctx),
		networkComponent(l.network(ctx)))
	out = append(out, l.names.component()...)
	if c, ok := l.quotasComponent(ctx); ok {
		out = append(out, c)
	}
	out = append(out, l.localNameComponent(), l.certificatesComponent())
	out = append(out, signInComponent(l.signin.Health())...)
	out = append(out, l.tailnetComponent()...)
	out = append(out, l.mailComponent(ctx)...)
	if l.cfg.GPUs == config.GPUsNone {
		if driver, ok := l.driverComponent(); ok {
			return append(out, driver)
		}
		return append(out, ctl.Component{
			Name: "gpu probe", State: ctl.Off, Detail: "this machine offers no GPU",
			NextStep: "with an NVIDIA card and driver: `gpulab init --gpus real`; to try it out: `gpulab init --gpus simulated`",
		})
	}
	return append(out, probeComponent(l.ownSnapshot()))
}

// k3sComponent tells of the Kubernetes that runs on this machine.
func k3sComponent(cluster *embedk8s.Cluster) ctl.Component {
	c := k3sProcess(cluster.Process())
	if lost := cluster.Lost(); lost != "" && c.State == ctl.OK {
		c.State, c.Detail = ctl.Starting, lost
		c.NextStep = "gpulab restarts k3s within a minute, at most three times per hour; if this lasts: `gpulab logs`"
	}
	return c
}

func k3sProcess(p supervise.State) ctl.Component {
	k3s := ctl.Component{Name: "k3s", State: ctl.OK}
	if !p.Running {
		k3s.State, k3s.Detail, k3s.NextStep = ctl.Failed, "it ended: "+p.LastExit,
			"gpulab starts it again by itself; see `gpulab logs k3s`"
		return k3s
	}
	k3s.Detail = fmt.Sprintf("process %d, up for %s", p.PID, units.Lasting(time.Since(p.Since)))
	if p.Restarts > 0 {
		k3s.Detail += fmt.Sprintf(", started again %d times", p.Restarts)
	}
	return k3s
}

// probeComponent tells of this machine's GPUs and their driver.
func probeComponent(snap gpu.Snapshot, ok bool) ctl.Component {
	probe := ctl.Component{Name: "gpu probe", State: ctl.OK}
	switch {
	case !ok:
		probe.State, probe.Detail = ctl.Starting, "no reading yet"
	case snap.Error != "":
		probe.State, probe.Detail, probe.NextStep = ctl.Warning, snap.Error, "see `gpulab logs probe`"
	case troubles(snap) != "":
		probe.State, probe.Detail, probe.NextStep = ctl.Warning, troubles(snap),
			"the page of the GPU says what happened and what to do"
	default:
		probe.Detail = fmt.Sprintf("%d GPUs, driver %s", len(snap.GPUs), snap.DriverVersion)
		if snap.Simulated {
			probe.Detail = fmt.Sprintf("%d simulated GPUs, driver %s", len(snap.GPUs), snap.DriverVersion)
		}
	}
	return probe
}

// ownSnapshot is the latest of this machine, with what was decided about it.
func (l *appliance) ownSnapshot() (gpu.Snapshot, bool) {
	for _, s := range l.fleet.Snapshots() {
		if s.Node == l.id.NodeName {
			return s, true
		}
	}
	return gpu.Snapshot{}, false
}

// troubles says which GPUs cannot be read, or are kept from notebooks.
func troubles(s gpu.Snapshot) string {
	var list []string
	for _, g := range s.GPUs {
		switch {
		case g.Error != "":
			list = append(list, g.Error)
		case g.Withheld != "":
			list = append(list, fmt.Sprintf("GPU %d is not lent out: %s", g.Index, g.Withheld))
		}
	}
	return strings.Join(list, " ")
}

// AdminLink implements ctl.Daemon.
func (l *appliance) AdminLink(ctx context.Context) (ctl.Link, error) {
	link, err := l.link(ctx, users.Link{Purpose: users.PurposeAdminSetup}, "/setup")
	if err == nil {
		l.recordRoot(ctx, "admin.link", "", "")
	}
	return link, err
}

func (l *appliance) link(ctx context.Context, link users.Link, path string) (ctl.Link, error) {
	token, err := l.people.CreateLink(ctx, link, linkTTL)
	if err != nil {
		return ctl.Link{}, err
	}
	return ctl.Link{URL: l.url() + path + "?token=" + token, Expires: time.Now().Add(linkTTL)}, nil
}

// Charts implements ctl.Daemon.
func (l *appliance) Charts(ctx context.Context) ([]ctl.Chart, error) {
	if l.client.Load() == nil {
		return nil, errStarting
	}
	releases, err := l.charts().Status(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]ctl.Chart, 0, len(releases))
	for _, r := range releases {
		out = append(out, ctl.Chart{
			Name: r.Release, Namespace: r.Namespace, Chart: r.Chart, Version: r.Version, AppVersion: r.AppVersion,
			State: r.State, Revision: r.Revision, Updated: r.Updated, Detail: r.Detail,
		})
	}
	return out, nil
}

// AddUser implements ctl.Daemon.
func (l *appliance) AddUser(ctx context.Context, u ctl.NewUser) (ctl.UserWithLink, error) {
	created, err := l.people.Create(ctx, users.NewUser{Handle: u.Handle, Name: u.Name, Email: u.Email, Role: u.Role})
	if err != nil {
		return ctl.UserWithLink{}, err
	}
	l.recordRoot(ctx, "user.add", created.Handle, "")
	return l.withPasswordLink(ctx, created)
}

// PasswordLink implements ctl.Daemon.
func (l *appliance) PasswordLink(ctx context.Context, handle string) (ctl.UserWithLink, error) {
	u, err := l.people.ByHandle(ctx, handle)
	if err != nil {
		return ctl.UserWithLink{}, err
	}
	l.recordRoot(ctx, "user.password-link", handle, "")
	return l.withPasswordLink(ctx, u)
}

func (l *appliance) withPasswordLink(ctx context.Context, u users.User) (ctl.UserWithLink, error) {
	link, err := l.link(ctx, users.Link{Purpose: users.PurposePassword, UserID: &u.ID}, "/welcome")
	return ctl.UserWithLink{User: u, Link: link}, err
}

// recordRoot records what root did with a command on this machine. What was done stands even if it cannot be recorded.
func (l *appliance) recordRoot(ctx context.Context, action, target, detail string) {
	_ = l.people.AuditLog().Record(ctx, audit.Entry{Actor: "root", Action: action, Target: target, Detail: detail})
}

// sessionUser finds who is signed in.
func (l *appliance) sessionUser(r *http.Request) (users.User, bool) {
	s, ok := l.FromRequest(r)
	return s.User, ok
}

// FromRequest finds the session of a request's cookie.
func (l *appliance) FromRequest(r *http.Request) (users.Session, bool) {
	c, ok := cookies.FromRequest(r)
	if !ok {
		return users.Session{}, false
	}
	s, err := l.people.SessionUser(r.Context(), c.Token)
	return s, err == nil
}
