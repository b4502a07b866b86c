package storage

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"

	"github.com/gpulab/gpulab/internal/store"
	"github.com/gpulab/gpulab/internal/users"
)

// Mount is one shared folder as a notebook gets it.
type Mount struct {
	Claim    string `json:"claim"`    // in the person's namespace
	Name     string `json:"name"`     // below the home's Shared
	ReadOnly bool   `json:"readOnly"` // of the mount, whatever modes say
	GID      int    `json:"gid"`      // that the notebook needs, 0 for none
	Path     string `json:"-"`        // on the machine
}

// Opened is what a launch gets.
type Opened struct {
	Mounts []Mount
	// HomeReadOnly because it is full, and only measuring keeps it within its limit.
	HomeReadOnly bool
	// HostUsers says that the notebook cannot have user IDs of its own.
	HostUsers bool
}

// claim names the claim of a share. The same name always means the same folder of the machine.
func (sh *share) claim() string {
	if sh.sub != "" {
		return "part-" + number(sh.folder.ID)
	}
	return "folder-" + number(sh.folder.ID)
}

// Open makes ready what a launch of u is about to get, and notes it, so that the launch ends when u loses any
// of it. It may be called again for the same launch.
func (s *Service) Open(ctx context.Context, launch int64, u users.User) (Opened, error) {
	if err := s.ensureHome(u); err != nil {
		return Opened{}, fmt.Errorf("the home of %s: %w", u.Handle, err)
	}
	all, err := s.shares(ctx, u)
	if err != nil {
		return Opened{}, err
	}
	names := make([]string, len(all)) // those of folders that are away for now stay
	for i := range all {
		names[i] = all[i].folder.Name
	}
	if err := s.withRoom(u, func() error { return s.mountPoints(u, names) }); err != nil {
		return Opened{}, fmt.Errorf("the places for shared folders in the home of %s: %w", u.Handle, err)
	}
	shares := s.ready(u, all)
	state, err := s.HomeState(ctx, u)
	if err != nil {
		return Opened{}, err
	}
	opened := Opened{HomeReadOnly: state.Over && !state.Kept}
	err = store.InTx(ctx, s.cfg.DB, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, `INSERT INTO launch_homes (launch_id, read_only) VALUES (?, ?)
			ON CONFLICT DO UPDATE SET read_only = min(read_only, excluded.read_only)`, launch, opened.HomeReadOnly); err != nil {
			return err
		}
		for i := range shares {
			sh := &shares[i]
			// A start that is asked for twice may have begun with more than it would get now.
			if _, err := tx.ExecContext(ctx, `INSERT INTO launch_folders (launch_id, folder_id, sub, read_only)
			VALUES (?, ?, ?, ?)
				ON CONFLICT DO UPDATE SET read_only = min(read_only,
				excluded.read_only)`, launch, sh.folder.ID, sh.sub, !sh.write); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return Opened{}, fmt.Errorf("note which folders a notebook gets: %w", err)
	}
	paths := []string{s.Home(u.ID)} // which may be a disk of its own
	for i := range shares {
		sh := &shares[i]
		opened.Mounts = append(opened.Mounts, Mount{
			Claim: sh.claim(), Name: sh.folder.Name, ReadOnly: !sh.write, GID: sh.gid, Path: s.path(sh),
		})
		opened.HostUsers = opened.HostUsers || sh.folder.HostUsers
		paths = append(paths, s.path(sh))
	}
	if !opened.HostUsers {
		own, err := takeOwnUserIDs(paths)
		if err != nil {
			return Opened{}, fmt.Errorf("look what is mounted in the folders of a notebook: %w", err)
		}
		opened.HostUsers = !own
	}
	return opened, nil
}

// Claims are the claims that should be there for u now, whether or not a notebook runs.
func (s *Service) Claims(ctx context.Context, u users.User) ([]Mount, error) {
	shares, err := s.shares(ctx, u)
	if err != nil {
		return nil, err
	}
	list := make([]Mount, len(shares))
	for i := range shares {
		list[i] = Mount{Claim: shares[i].claim(), Name: shares[i].folder.Name, Path: s.path(&shares[i])}
	}
	return list, nil
}

// held is one folder that a launch has open.
type held struct {
	launch, folder int64
	sub, name      string
	readOnly       bool
	deleted        bool
}

// watch ends launches whose owner may no longer use a folder that they have open. A mount could be taken away
// from under them, but not the files that are open: only the end of the notebook ends its access.
func (s *Service) watch(ctx context.Context) error {
	open, err := s.held(ctx)
	if err != nil {
		return err
	}
	// In this order: what is open and not active any more has ended.
	active, err := s.cfg.Active(ctx)
	if err != nil {
		return err
	}
	owners := map[int64]int64{}
	for _, r := range active {
		if r.Waiting {
			continue // what its last run had open is not any more
		}
		owners[r.Launch] = r.UserID
		s.use(r.UserID)
	}
	var errs []error
	may := map[int64][]share{}
	lost := map[int64]bool{}
	for _, h := range open {
		id, runs := owners[h.launch]
		if !runs || lost[h.launch] {
			continue
		}
		if !h.readOnly {
			s.touch(h.folder)
		}
		if _, known := may[id]; !known {
			u, err := s.cfg.People.ByID(ctx, id)
			if err == nil {
				may[id], err = s.shares(ctx, u)
			}
			if err != nil && !errors.Is(err, users.ErrNotFound) {
				errs = append(errs, err)
				continue
			}
		}
		if slices.ContainsFunc(may[id], func(sh share) bool {
			return sh.folder.ID == h.folder && sh.sub == h.sub && (sh.write || h.readOnly)
		}) {
			continue
		}
		lost[h.launch] = true
		errs = append(errs, s.cfg.End(ctx, h.launch, LostFolder, h.lostWords()))
	}
	return errors.Join(append(errs, s.forget(ctx, owners))...)
}

// lostWords say to the owner of a notebook why it ended.
func (h held) lostWords() string {
	if h.deleted {
		return "It was ended: the shared folder " + h.name + ", which it had open, was deleted. Files in the home folder " +
			"stay; a new notebook starts without that folder."
	}
	return "It was ended: you may no longer use the shared folder " + h.name +
		", which it had open, as you did. Files in the home folder stay; a new notebook starts with what you may use now."
}

func (s *Service) held(ctx context.Context) ([]held, error) {
	list, err := store.All(ctx, s.cfg.DB, func(row store.Row) (h held, err error) {
		return h, row.Scan(&h.launch, &h.folder, &h.sub, &h.readOnly, &h.name, &h.deleted)
	}, `SELECT l.launch_id, l.folder_id, l.sub, l.read_only, f.name, f.deleted_at IS NOT NULL
		FROM launch_folders l JOIN folders f ON f.id = l.folder_id ORDER BY l.launch_id, f.name`)
	if err != nil {
		return nil, fmt.Errorf("read which folders are open: %w", err)
	}
	return list, nil
}

// forget drops what is noted of launches that have nothing open any more, and has measured what they used.
func (s *Service) forget(ctx context.Context, active map[int64]int64) error {
	ids, err := s.ids(ctx, "read which notebooks have nothing open",
		"SELECT h.launch_id FROM launch_homes h JOIN launches l ON l.id = h.launch_id WHERE l.state IN ('waiting', 'ended')")
	if err != nil {
		return err
	}
	for _, id := range ids {
		if _, runs := active[id]; runs {
			continue
		}
		if err := s.forgetOne(ctx, id); err != nil {
			return fmt.Errorf("note that a notebook has closed its folders: %w", err)
		}
	}
	return nil
}

func (s *Service) forgetOne(ctx context.Context, launch int64) error {
	var user int64
	if err := s.cfg.DB.QueryRowContext(ctx, "SELECT user_id FROM launches WHERE id = ?", launch).Scan(&user); err != nil {
		return err
	}
	folders, err := s.ids(ctx, "read its folders", "SELECT folder_id FROM launch_folders WHERE launch_id = ? AND "+
		"read_only = 0", launch)
	if err != nil {
		return err
	}
	err = store.InTx(ctx, s.cfg.DB, func(tx *sql.Tx) error {
		for _, table := range []string{"launch_folders", "launch_homes"} {
			if _, err := tx.ExecContext(ctx, "DELETE FROM "+table+` WHERE launch_id = ?
				AND (SELECT state FROM launches WHERE id = launch_id) IN ('waiting', 'ended')`, launch); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	s.measureSoon(target{ofHome, user})
	for _, id := range folders {
		s.measureSoon(target{ofFolder, id})
	}
	return nil
}
