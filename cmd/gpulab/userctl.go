package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/users"
)

// Users implements ctl.Daemon.
func (l *appliance) Users(ctx context.Context, q users.Query) ([]users.Person, error) {
	if q.Group != "" { // a group that is mistyped is not an empty one
		if _, err := l.people.Group(ctx, q.Group); err != nil {
			return nil, err
		}
	}
	found, err := l.people.Find(ctx, q)
	return found.People, err
}

// User implements ctl.Daemon.
func (l *appliance) User(ctx context.Context, handle string) (users.Person, error) {
	return l.people.Person(ctx, handle)
}

// ChangeUser implements ctl.Daemon.
func (l *appliance) ChangeUser(ctx context.Context, handle string, c users.Change) (users.Person, error) {
	u, err := l.people.ByHandle(ctx, handle)
	if err != nil {
		return users.Person{}, err
	}
	if err := l.people.Change(ctx, u.ID, c); err != nil {
		return users.Person{}, err
	}
	if c.Name != nil || c.Email != nil {
		l.recordRoot(ctx, "user.change", u.Handle, "")
	}
	if c.Role != nil && *c.Role != u.Role {
		l.recordRoot(ctx, "user.role", u.Handle, roleChange(u.Role, *c.Role))
	}
	return l.people.Person(ctx, u.Handle)
}

func roleChange(from, to users.Role) string { return "from " + string(from) + " to " + string(to) }

// SuspendUser implements ctl.Daemon. It works while the lab starts, too: what
// still runs then is stopped when the cluster answers.
func (l *appliance) SuspendUser(ctx context.Context, handle string, suspend bool) (users.Person, error) {
	u, err := l.people.ByHandle(ctx, handle)
	if err != nil {
		return users.Person{}, err
	}
	change, action := l.people.Resume, "user.resume"
	if suspend {
		change, action = l.people.Suspend, "user.suspend"
		if parts := l.attached.Load(); parts != nil {
			change = parts.people.Suspend
		}
	}
	if err := change(ctx, u.ID); err != nil {
		return users.Person{}, err
	}
	if u.Suspended != suspend {
		l.recordRoot(ctx, action, u.Handle, "")
	}
	return l.people.Person(ctx, u.Handle)
}

// RemoveUser implements ctl.Daemon: sessions and notebooks end with the account.
func (l *appliance) RemoveUser(ctx context.Context, handle string, purge bool) (ctl.Removal, error) {
	who, err := l.people.Person(ctx, handle)
	if err != nil {
		return ctl.Removal{}, err
	}
	parts := l.attached.Load()
	if parts == nil {
		return ctl.Removal{}, errStarting
	}
	switch {
	case who.Removed == nil:
		if err := parts.people.Remove(ctx, who.ID); err != nil {
			return ctl.Removal{}, err
		}
		l.recordRoot(ctx, "user.remove", who.Handle, "")
	case !purge:
		return ctl.Removal{}, fmt.Errorf("%s is removed already and can be brought back until %s; --purge deletes account "+
			"and home now",
			who.Handle, who.Purge.Local().Format("2 January 2006"))
	}
	removal := ctl.Removal{Handle: who.Handle, Home: filepath.Join(l.homesDir(), strconv.FormatInt(who.ID, 10))}
	if !purge {
		removal.Purge = time.Now().Add(users.RemovedKept).UTC()
		return removal, nil
	}
	removal.HomeDeleted, err = parts.people.Purge(ctx, who.ID)
	if err == nil {
		l.recordRoot(ctx, "user.purge", who.Handle, "")
	}
	return removal, err
}

// UndeleteUser implements ctl.Daemon.
func (l *appliance) UndeleteUser(ctx context.Context, handle string) (users.Person, error) {
	who, err := l.people.Person(ctx, handle)
	if err != nil {
		return users.Person{}, err
	}
	if err := l.people.Undelete(ctx, who.ID); err != nil {
		return users.Person{}, err
	}
	l.recordRoot(ctx, "user.undelete", who.Handle, "")
	return l.people.Person(ctx, who.Handle)
}

// Groups implements ctl.Daemon.
func (l *appliance) Groups(ctx context.Context) ([]users.Group, error) { return l.people.Groups(ctx) }

// Group implements ctl.Daemon.
func (l *appliance) Group(ctx context.Context, name string) (ctl.GroupWithMembers, error) {
	group, err := l.people.Group(ctx, name)
	if err != nil {
		return ctl.GroupWithMembers{}, err
	}
	members, err := l.people.Members(ctx, group.Name)
	return ctl.GroupWithMembers{Group: group, People: members}, err
}

// AddGroup implements ctl.Daemon.
func (l *appliance) AddGroup(ctx context.Context, g ctl.NewGroup) (users.Group, error) {
	added, err := l.people.CreateGroup(ctx, g.Name, g.Title)
	if err == nil {
		l.recordRoot(ctx, "group.add", added.Name, "")
	}
	return added, err
}

// RemoveGroup implements ctl.Daemon.
func (l *appliance) RemoveGroup(ctx context.Context, name string) error {
	err := l.people.RemoveGroup(ctx, name)
	if err == nil {
		l.recordRoot(ctx, "group.remove", strings.ToLower(name), "")
	}
	return err
}

// SetMember implements ctl.Daemon.
func (l *appliance) SetMember(ctx context.Context, group, handle string, lead bool) error {
	u, err := l.people.ByHandle(ctx, handle)
	if err == nil {
		err = l.people.SetMember(ctx, group, u.ID, lead)
	}
	if err == nil {
		l.recordRoot(ctx, "group.member", u.Handle, memberDetail(group, lead))
	}
	return err
}

func memberDetail(group string, lead bool) string {
	if lead {
		return "leads " + group
	}
	return "in " + group
}

// RemoveMember implements ctl.Daemon.
func (l *appliance) RemoveMember(ctx context.Context, group, handle string) error {
	u, err := l.people.ByHandle(ctx, handle)
	if err == nil {
		err = l.people.RemoveMember(ctx, group, u.ID)
	}
	if err == nil {
		l.recordRoot(ctx, "group.member-remove", u.Handle, "from "+group)
	}
	return err
}
