package tailnet

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Visitor is who is at the other end of a connection that came over the tailnet, as the control server vouches.
type Visitor struct {
	// Subject is never somebody else's within one control server. It holds the login besides the server's number, for a
	// server that was set up anew counts from 1 again.
	Subject string
	// Login is what a person is called there, in small letters; "" for a tagged machine.
	Login  string
	Name   string   // as people read it
	Groups []string // of the tailnet, as far as it tells them
	Tags   []string // of a machine that is nobody's
	// Shared says that the person is of another tailnet, which this machine was shared with.
	Shared  bool
	Machine string // what their machine is called
}

// ErrUnknown says that nobody vouches for a visitor.
var ErrUnknown = errors.New("the tailnet does not know this visitor")

// Visitor says who is at an address from which a connection came over the tailnet. For connections that came another
// way it means nothing.
func (s *Service) Visitor(ctx context.Context, remote string) (Visitor, error) {
	from, err := netip.ParseAddrPort(remote)
	if err != nil {
		return Visitor{}, fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	s.mu.Lock()
	n := s.node
	s.mu.Unlock()
	if n == nil {
		return Visitor{}, ErrUnknown
	}
	who, err := n.local.WhoIs(ctx, remote)
	if err != nil {
		return Visitor{}, fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	// The library also knows machines by connections of its own; only one's own address counts here.
	own := slices.ContainsFunc(who.Node.Addresses, func(p netip.Prefix) bool {
		return p.IsSingleIP() && p.Addr() == from.Addr().Unmap()
	})
	if !own || !who.Node.KeyExpiry.IsZero() && who.Node.KeyExpiry.Before(time.Now()) || who.Node.Expired {
		return Visitor{}, ErrUnknown
	}
	v := Visitor{Machine: who.Node.ComputedName}
	v.Shared = !who.Node.Sharer.IsZero() || who.Node.Hostinfo.Valid() && who.Node.Hostinfo.ShareeNode()
	if who.Node.IsTagged() {
		if v.Shared {
			return Visitor{}, ErrUnknown // its tags are those of another tailnet
		}
		v.Subject, v.Tags, v.Name = "machine "+string(who.Node.StableID), slices.Clone(who.Node.Tags), v.Machine
		return v, nil
	}
	if who.UserProfile == nil || who.UserProfile.ID.IsZero() || who.UserProfile.LoginName == "" {
		return Visitor{}, ErrUnknown
	}
	v.Login = strings.ToLower(who.UserProfile.LoginName)
	v.Subject = strconv.FormatInt(int64(who.UserProfile.ID), 10) + " " + v.Login
	v.Name, v.Groups = who.UserProfile.DisplayName, slices.Clone(who.UserProfile.Groups)
	return v, nil
}

// Realm is within what visitors' subjects are unique.
func (s *Service) Realm() string { return "tailnet " + s.now().LoginServer }
