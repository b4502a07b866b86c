package main

import (
	"context"
	"net/url"
	"strconv"
	"time"

	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/users"
)

// Invitations implements ctl.Daemon.
func (l *appliance) Invitations(ctx context.Context) ([]users.Invitation, error) {
	return l.people.Invitations(ctx, users.Root())
}

// Invite implements ctl.Daemon.
func (l *appliance) Invite(ctx context.Context, n ctl.NewInvitation) (ctl.Invited, error) {
	ttl := time.Duration(n.Days) * 24 * time.Hour
	if n.Days < 1 || ttl > users.MaxInvitationTTL {
		ttl = -1 // refused with the sentence that says what is possible
	}
	invitation, token, err := l.people.Invite(ctx, users.Root(),
		users.NewInvitation{Role: n.Role, Group: n.Group, Note: n.Note, Uses: n.Uses, TTL: ttl, Emails: n.Emails})
	if err != nil {
		return ctl.Invited{}, err
	}
	l.recordRoot(ctx, "invitation.add", strconv.FormatInt(invitation.ID, 10), invitation.Detail())
	return ctl.Invited{Invitation: invitation, URL: l.url() + "/join?token=" + url.QueryEscape(token)}, nil
}

// RevokeInvitation implements ctl.Daemon.
func (l *appliance) RevokeInvitation(ctx context.Context, id int64) (users.Invitation, error) {
	invitation, err := l.people.RevokeInvitation(ctx, users.Root(), id)
	if err == nil {
		l.recordRoot(ctx, "invitation.revoke", strconv.FormatInt(id, 10),
			users.RoleDetail(invitation.Role, invitation.Group))
	}
	return invitation, err
}

// Requests implements ctl.Daemon.
func (l *appliance) Requests(ctx context.Context) ([]users.SignUp, error) {
	list, err := l.people.SignUps(ctx)
	if list == nil {
		list = []users.SignUp{}
	}
	return list, err
}

// ApproveRequest implements ctl.Daemon.
func (l *appliance) ApproveRequest(ctx context.Context, id int64, a ctl.Approval) (users.User, error) {
	user, err := l.people.Approve(ctx, id, a.Role, a.Group)
	if err != nil {
		return users.User{}, err
	}
	l.recordRoot(ctx, "sign-up.approve", user.Handle, users.RoleDetail(a.Role, a.Group))
	return user, nil
}

// DeclineRequest implements ctl.Daemon.
func (l *appliance) DeclineRequest(ctx context.Context, id int64) (users.SignUp, error) {
	request, err := l.people.Decline(ctx, id)
	if err == nil {
		l.recordRoot(ctx, "sign-up.decline", request.Handle, "")
	}
	return request, err
}
