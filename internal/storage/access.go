package storage

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/gpulab/gpulab/internal/users"
)

// share is one folder as one person sees it.
type share struct {
	folder *Folder
	sub    string // the person's own part of a hand-in; "" for the whole
	write  bool
	gid    int
}

// reach is how u gets at a folder, nil for not at all. This is the one place that says so.
func reach(f *Folder, u users.User, of []users.Membership) *share {
	if f.Deleted != nil || u.Suspended {
		return nil
	}
	member, lead := false, false
	for _, m := range of {
		if slices.Contains(f.Groups, m.Group) {
			member, lead = true, lead || m.Lead
		}
	}
	admin := u.Role == users.RoleAdmin
	writes, reads := share{folder: f, write: true, gid: f.GID}, share{folder: f, gid: f.GID + 1}
	switch f.Kind {
	case Group:
		switch {
		case member && (u.Role != users.RoleGuest || lead || f.Guests == Write):
			return &writes
		case member && f.Guests == Read || f.Others == Read:
			return &reads
		}
	case HandIn:
		switch {
		case lead || admin:
			return &reads
		case member:
			return &share{folder: f, sub: u.Handle, write: true}
		}
	case Dataset:
		switch {
		case admin:
			return &writes
		case member || f.Others == Read:
			return &reads
		}
	case Host:
		if admin || member || f.Others == Read {
			return &share{folder: f}
		}
	}
	return nil
}

// MayOpen says what u may do in a folder: write, read or none. of are the groups u is in.
func MayOpen(f Folder, u users.User, of []users.Membership) Access {
	switch r := reach(&f, u, of); {
	case r == nil:
		return None
	case r.write:
		return Write
	}
	return Read
}

// MayManage reports whether u may change and delete a folder.
func MayManage(f Folder, u users.User) bool {
	if f.Kind == Dataset || f.Kind == Host {
		return u.Scope(users.ActionManageDatasets) == users.Everybody
	}
	switch u.Scope(users.ActionManageFolders) {
	case users.Everybody:
		return true
	case users.OwnGroups:
		return slices.Contains(f.Leads, u.Handle)
	}
	return false
}

// MayMake reports whether u may make a folder of this kind, for these groups. groups are all there are.
func MayMake(kind Kind, names []string, u users.User, groups []users.Group) bool {
	if kind == Dataset || kind == Host {
		return u.Scope(users.ActionManageDatasets) == users.Everybody
	}
	switch u.Scope(users.ActionManageFolders) {
	case users.Everybody:
		return true
	case users.OwnGroups:
		return len(names) > 0 && !slices.ContainsFunc(names, func(name string) bool {
			return !slices.ContainsFunc(groups, func(g users.Group) bool {
				return g.Name == name && slices.Contains(g.Leads, u.Handle)
			})
		})
	}
	return false
}

// shares lists what u may see now, by name.
func (s *Service) shares(ctx context.Context, u users.User) ([]share, error) {
	list, err := s.folders(ctx, " AND f.deleted_at IS NULL ORDER BY f.name")
	if err != nil || len(list) == 0 {
		return nil, err
	}
	of, err := s.cfg.People.Memberships(ctx, u.ID)
	if err != nil {
		return nil, err
	}
	var shares []share
	for i := range list {
		if r := reach(&list[i], u, of); r != nil {
			shares = append(shares, *r)
		}
	}
	return shares, nil
}

// Seen is a folder as somebody sees it; who only manages it may do nothing in it.
type Seen struct {
	Folder
	May Access
}

// FoldersOf lists the folders that u sees or manages, by name; deleted ones only for those who manage them.
func (s *Service) FoldersOf(ctx context.Context, u users.User) ([]Seen, error) {
	list, err := s.Folders(ctx)
	if err != nil {
		return nil, err
	}
	of, err := s.cfg.People.Memberships(ctx, u.ID)
	if err != nil {
		return nil, err
	}
	var seen []Seen
	for _, f := range list {
		if may := MayOpen(f, u, of); may != None || MayManage(f, u) {
			seen = append(seen, Seen{f, may})
		}
	}
	return seen, nil
}

// path is where a share lies on this machine.
func (s *Service) path(sh *share) string {
	if sh.folder.Kind == Host {
		return sh.folder.Path
	}
	return filepath.Join(s.folder(sh.folder.ID), sh.sub)
}

// PlacesOf lists what somebody may see now, the home first; users.ErrNotFound for nobody. A folder that is not
// there as it should be, such as one of the machine that was moved away, is left out.
func (s *Service) PlacesOf(ctx context.Context, userID int64) ([]Place, error) {
	u, err := s.cfg.People.ByID(ctx, userID)
	if err != nil {
		return nil, err
	}
	if err := s.ensureHome(u); err != nil {
		return nil, fmt.Errorf("the home of %s: %w", u.Handle, err)
	}
	state, err := s.HomeState(ctx, u)
	if err != nil {
		return nil, err
	}
	// As for a new notebook: a full home can be read and emptied, unless the file system itself keeps it.
	places := []Place{{Path: s.Home(u.ID), ReadOnly: state.Over && !state.Kept}}
	shares, err := s.shares(ctx, u)
	if err != nil {
		return nil, err
	}
	shares = s.ready(u, shares)
	for i := range shares {
		places = append(places, Place{
			Name: shares[i].folder.Name, Path: s.path(&shares[i]), ReadOnly: !shares[i].write, GID: shares[i].gid,
		})
	}
	return places, nil
}

// ready are those of the shares of u whose folders are there, after those that are made for u alone were.
func (s *Service) ready(u users.User, shares []share) []share {
	return slices.DeleteFunc(shares, func(sh share) bool {
		err := s.prepare(&sh, u)
		if err != nil {
			s.cfg.Log.Warn("a shared folder is left out", "folder", sh.folder.Name, "user", u.Handle, "err", err)
		}
		return err != nil
	})
}

func (s *Service) prepare(sh *share, u users.User) error {
	switch {
	case sh.folder.Kind == Host:
		path, err := s.checkHost(sh.folder.Path)
		if err == nil && path != sh.folder.Path {
			err = refused(ErrPath, "%s leads to %s now.", sh.folder.Path, path)
		}
		return err
	case sh.sub != "":
		return s.makePart(sh.folder.ID, sh.sub, u.UID, sh.folder.GID+1)
	}
	return s.isFolder(sh.folder.ID)
}
