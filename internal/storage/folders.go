package storage

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/moby/sys/mountinfo"

	"github.com/gpulab/gpulab/internal/audit"
	"github.com/gpulab/gpulab/internal/beneath"
	"github.com/gpulab/gpulab/internal/store"
	"github.com/gpulab/gpulab/internal/users"
)

// Kind is what a shared folder is for.
type Kind string

// The kinds.
const (
	Group   Kind = "group"   // members of a group read and write
	HandIn  Kind = "hand-in" // each member of a group has a part of their own, which its leads read
	Dataset Kind = "dataset" // everybody, or some groups, read; admins write
	Host    Kind = "host"    // a folder of the machine, which everybody or some groups read
)

// Kinds lists every kind, in the order in which people see them.
func Kinds() []Kind { return []Kind{Group, HandIn, Dataset, Host} }

var kindWords = map[Kind]string{
	Group: "group folder", HandIn: "hand-in", Dataset: "dataset", Host: "folder of the machine",
}

// Words names the kind for people.
func (k Kind) Words() string { return kindWords[k] }

// Access is what somebody may do in a folder.
type Access string

// The kinds of access.
const (
	Write Access = "write"
	Read  Access = "read"
	None  Access = "none"
)

// Folder is a folder that people share.
type Folder struct {
	ID   int64  `json:"id"`
	Name string `json:"name"` // in the tree of files, below "shared"
	Kind Kind   `json:"kind"`
	Note string `json:"note,omitempty"`
	// Groups are whom it is for: one of a group folder or hand-in; none of a
	// group that was removed.
	Groups []string `json:"groups"`
	// Guests is what guests in the group may: write, read or none.
	Guests Access `json:"guests,omitempty"`
	// Others is what everybody in the lab may, besides: read or none.
	Others Access `json:"others"`
	// Path of the machine's own folder, "" of all others.
	Path string `json:"path,omitempty"`
	// HostUsers says that notebooks with it share the machine's user IDs, because
	// its file system cannot do otherwise, or another one is mounted in it.
	HostUsers bool `json:"hostUsers,omitempty"`
	// GID may write, GID+1 only reads; 0 of a folder of the machine.
	GID       int        `json:"gid,omitempty"`
	CreatedBy string     `json:"createdBy"`
	Created   time.Time  `json:"created"`
	Deleted   *time.Time `json:"deleted,omitempty"`
	// Purge is when a deleted folder goes for good.
	Purge *time.Time `json:"purge,omitempty"`
	// Size as last measured; nil while it is not known.
	Size *Size `json:"size,omitempty"`
	// Leads of its groups: who manages a group folder or hand-in, and reads the
	// whole of a hand-in.
	Leads []string `json:"leads,omitempty"`
}

// The numbers of folders' groups: below 65536, so that they are the same with and without user namespaces,
// and above those of people.
const (
	firstGID = 60000
	lastGID  = 64998
)

// Kept is how long a deleted folder can come back.
const Kept = 30 * 24 * time.Hour

const maxNote = 200 // characters

// NewFolder is what it takes to make a folder.
type NewFolder struct {
	Name   string   `json:"name"`
	Kind   Kind     `json:"kind"`
	Note   string   `json:"note,omitempty"`
	Groups []string `json:"groups,omitempty"`
	Guests Access   `json:"guests,omitempty"` // of a group folder; "" = read
	Others Access   `json:"others,omitempty"` // "" = none, of a dataset or folder of the machine without groups read
	Path   string   `json:"path,omitempty"`   // of the machine's own folder
	By     string   `json:"-"`                // a handle, or "root"
}

// checkName refuses what cannot be a folder's name, which has the form of handles and groups.
func checkName(name string) error {
	if !users.WellFormed(name) {
		return refused(ErrName, "%q cannot be a folder's name. It takes 2 to 30 characters from a–z, 0–9 and single "+
			"hyphens, with a letter first, such as vision-data.", clip(name))
	}
	return nil
}

// checked fills in what is left out and refuses what does not go together.
func (n NewFolder) checked() (NewFolder, error) {
	if err := checkName(n.Name); err != nil {
		return n, err
	}
	n.Note = strings.TrimSpace(n.Note)
	if utf8.RuneCountInString(n.Note) > maxNote || strings.ContainsFunc(n.Note, func(r rune) bool {
		return !unicode.IsPrint(r)
	}) {
		return n, refused(ErrName, "The note is one line of at most %d characters.", maxNote)
	}
	if n.Guests == "" {
		n.Guests = Read
	}
	open := n.Kind == Dataset || n.Kind == Host
	if n.Others == "" {
		n.Others = None
		if open && len(n.Groups) == 0 {
			n.Others = Read
		}
	}
	switch {
	case !slices.Contains(Kinds(), n.Kind):
		return n, refused(ErrKind, "There is no kind of folder %q. There are group, hand-in, dataset and host.",
			clip(string(n.Kind)))
	case !open && len(n.Groups) != 1:
		return n, refused(ErrGroup, "A %s is for one group. Say which.", n.Kind.Words())
	case n.Kind == HandIn && n.Others != None:
		return n, refused(ErrGroup, "A hand-in is for its group alone.")
	case open && n.Others == None && len(n.Groups) == 0:
		return n, refused(ErrGroup, "Nobody would see it. Name a group, or let everybody read.")
	case n.Guests != Write && n.Guests != Read && n.Guests != None:
		return n, refused(ErrKind, "Guests of a group write, read or have none.")
	case n.Others != Read && n.Others != None:
		return n, refused(ErrKind, "Others read or have none; only members of a group write.")
	case (n.Kind == Host) != (n.Path != ""):
		if n.Kind == Host {
			return n, refused(ErrPath, "Say which folder of the machine it is, such as /srv/data.")
		}
		return n, refused(ErrPath, "Only a folder of the machine has a path. Others lie where gpulab keeps them.")
	}
	return n, nil
}

// Create makes a folder, on disk too. The caller has asked MayMake.
func (s *Service) Create(ctx context.Context, n NewFolder) (Folder, error) {
	n, err := n.checked()
	if err != nil {
		return Folder{}, err
	}
	groups, err := s.groupIDs(ctx, n.Groups)
	if err != nil {
		return Folder{}, err
	}
	hostUsers := false
	if n.Kind == Host {
		if n.Path, err = s.checkHost(n.Path); err != nil {
			return Folder{}, err
		}
		hostUsers = !CanMapIDs(n.Path)
	}
	var id int64
	err = store.InTx(ctx, s.cfg.DB, func(tx *sql.Tx) error {
		var deleted sql.NullInt64
		switch err := tx.QueryRowContext(ctx, "SELECT deleted_at FROM folders WHERE name = ? AND purged_at IS NULL",
			n.Name).Scan(&deleted); {
		case err == nil && deleted.Valid:
			return refused(ErrTaken, "A deleted folder is called %s, and can come back until %s. Choose another name.", n.Name,
				time.UnixMilli(deleted.Int64).Add(Kept).Local().Format("2 January"))
		case err == nil:
			return refused(ErrTaken, "There is a folder %s already. Choose another name.", n.Name)
		case !errors.Is(err, sql.ErrNoRows):
			return err
		}
		var gid sql.NullInt64
		if n.Kind != Host {
			// The setting is of folders that a rollback has taken away.
			if err := tx.QueryRowContext(ctx, `SELECT coalesce(max(gid) + 2, ?) FROM (SELECT max(gid) AS gid FROM folders
				UNION ALL SELECT CAST(value AS INTEGER) FROM settings WHERE key = 'last.gid')`, firstGID).Scan(&gid); err != nil {
				return err
			}
			for gid.Int64 <= lastGID && s.cfg.Taken != nil &&
				(s.cfg.Taken(ctx, int(gid.Int64)) || s.cfg.Taken(ctx, int(gid.Int64)+1)) {
				gid.Int64 += 2
			}
			if gid.Int64 > lastGID {
				return refused(ErrFull, "All %d numbers for folders have been given out or are known to this machine, and none "+
					"is used twice. Use a folder that there is.", (lastGID-firstGID)/2+1)
			}
		}
		res, err := tx.ExecContext(ctx, `INSERT INTO folders (name, kind, note, guests, others, path, host_users, gid,
			created_by, created_at)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
			n.Name, n.Kind, n.Note, n.Guests, n.Others, n.Path, hostUsers, gid, n.By, s.now().UnixMilli())
		if err != nil {
			return err
		}
		if id, err = res.LastInsertId(); err != nil {
			return err
		}
		if err := setGroups(ctx, tx, id, groups); err != nil {
			return err
		}
		if n.Kind == Host {
			return nil
		}
		// Last, so that nothing is left on disk of a folder that could not be noted.
		return s.makeFolder(id, n.Kind, int(gid.Int64))
	})
	if err != nil {
		return Folder{}, doing("make a folder", err)
	}
	s.touch(id)
	return s.Folder(ctx, n.Name)
}

// setGroups says whom a folder is for from now on.
func setGroups(ctx context.Context, tx *sql.Tx, folder int64, groups []int64) error {
	if _, err := tx.ExecContext(ctx, "DELETE FROM folder_groups WHERE folder_id = ?", folder); err != nil {
		return err
	}
	for _, g := range groups {
		if _, err := tx.ExecContext(ctx, "INSERT INTO folder_groups (folder_id, group_id) VALUES (?, ?)", folder,
			g); err != nil {
			return err
		}
	}
	return nil
}

// doing names what failed, but leaves sentences for people alone.
func doing(what string, err error) error {
	if _, ours := users.Message(err); err == nil || ours {
		return err
	}
	return fmt.Errorf("%s: %w", what, err)
}

func (s *Service) groupIDs(ctx context.Context, names []string) ([]int64, error) {
	all, err := s.cfg.People.Groups(ctx)
	if err != nil {
		return nil, err
	}
	var ids []int64
	for _, name := range names {
		i := slices.IndexFunc(all, func(g users.Group) bool { return g.Name == strings.ToLower(name) })
		if i < 0 {
			return nil, refused(ErrGroup, "There is no group %q. The list of groups shows which there are.", clip(name))
		}
		if !slices.Contains(ids, all[i].ID) {
			ids = append(ids, all[i].ID)
		}
	}
	return ids, nil
}

// Change is who may use a folder from now on; nil leaves it as it is.
type Change struct {
	Groups []string `json:"groups,omitempty"` // of a dataset or folder of the machine
	Guests *Access  `json:"guests,omitempty"`
	Others *Access  `json:"others,omitempty"`
	Note   *string  `json:"note,omitempty"`
}

// SetAccess changes who may use a folder. Who loses it by that loses their notebooks that have it open.
func (s *Service) SetAccess(ctx context.Context, name string, c Change) (Folder, error) {
	f, err := s.Folder(ctx, name)
	if err != nil {
		return Folder{}, err
	}
	n := NewFolder{
		Name: f.Name, Kind: f.Kind, Note: f.Note, Groups: f.Groups, Guests: f.Guests, Others: f.Others, Path: f.Path,
	}
	if c.Groups != nil {
		n.Groups = c.Groups
	}
	if c.Guests != nil {
		n.Guests = *c.Guests
	}
	if c.Others != nil {
		n.Others = *c.Others
	}
	if c.Note != nil {
		n.Note = *c.Note
	}
	if n, err = n.checked(); err != nil {
		return Folder{}, err
	}
	if (f.Kind == Group || f.Kind == HandIn) && !slices.Equal(n.Groups, f.Groups) {
		return Folder{}, refused(ErrGroup, "A %s stays with its group. Make another one for another group.", f.Kind.Words())
	}
	groups, err := s.groupIDs(ctx, n.Groups)
	if err != nil {
		return Folder{}, err
	}
	err = store.InTx(ctx, s.cfg.DB, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, "UPDATE folders SET guests = ?, others = ?, note = ? WHERE id = ?", n.Guests,
			n.Others, n.Note, f.ID); err != nil {
			return err
		}
		return setGroups(ctx, tx, f.ID, groups)
	})
	if err != nil {
		return Folder{}, doing("change a folder", err)
	}
	return s.Folder(ctx, f.Name)
}

const selectFolder = `SELECT f.id, f.name, f.kind, f.note, f.guests, f.others, f.path, f.host_users, coalesce(f.gid,
	0), f.created_by, f.created_at, f.deleted_at,
	coalesce((SELECT group_concat(name, ' ') FROM (SELECT g.name FROM folder_groups x JOIN groups g ON g.id = x.group_id
	WHERE x.folder_id = f.id ORDER BY g.name)), ''),
	coalesce((SELECT group_concat(handle, ' ') FROM (SELECT DISTINCT u.handle FROM folder_groups x JOIN group_members m
	ON m.group_id = x.group_id AND m.lead = 1
		JOIN users u ON u.id = m.user_id AND u.removed_at IS NULL WHERE x.folder_id = f.id ORDER BY u.handle)), ''),
	z.bytes, z.files, z.at
	FROM folders f LEFT JOIN sizes z ON z.what = 'folder' AND z.id = f.id WHERE f.purged_at IS NULL`

// Folders lists every folder by name, deleted ones that can come back included.
func (s *Service) Folders(ctx context.Context) ([]Folder, error) {
	return withMounts(s.folders(ctx, " ORDER BY f.name"))
}

// withMounts notes of folders of the machine what is mounted in them now.
func withMounts(list []Folder, err error) ([]Folder, error) {
	if err != nil || !slices.ContainsFunc(list, func(f Folder) bool { return f.Kind == Host }) {
		return list, err
	}
	mounts, err := mountinfo.GetMounts(nil)
	if err != nil {
		return nil, fmt.Errorf("look what is mounted in folders: %w", err)
	}
	for i := range list {
		f := &list[i]
		f.HostUsers = f.HostUsers || f.Kind == Host && mountedIn(mounts, f.Path)
	}
	return list, nil
}

// Folder finds one by its name, a deleted one that can come back included; ErrNotFound.
func (s *Service) Folder(ctx context.Context, name string) (Folder, error) {
	list, err := withMounts(s.folders(ctx, " AND f.name = ?", strings.ToLower(name)))
	if err != nil {
		return Folder{}, err
	}
	if len(list) == 0 {
		return Folder{}, refused(ErrNotFound, "There is no folder %q. The list of folders shows which there are.", clip(name))
	}
	return list[0], nil
}

func (s *Service) folders(ctx context.Context, where string, args ...any) ([]Folder, error) {
	list, err := store.All(ctx, s.cfg.DB, scanFolder, selectFolder+where, args...)
	if err != nil {
		return nil, fmt.Errorf("read folders: %w", err)
	}
	return list, nil
}

func scanFolder(row store.Row) (f Folder, err error) {
	var created int64
	var deleted, bytes, files, at sql.NullInt64
	var groups, leads string
	err = row.Scan(&f.ID, &f.Name, &f.Kind, &f.Note, &f.Guests, &f.Others, &f.Path, &f.HostUsers, &f.GID, &f.CreatedBy,
		&created, &deleted,
		&groups, &leads, &bytes, &files, &at)
	f.Created, f.Groups, f.Leads = time.UnixMilli(created).UTC(), strings.Fields(groups), strings.Fields(leads)
	if deleted.Valid {
		f.Deleted = new(time.UnixMilli(deleted.Int64).UTC())
		f.Purge = new(f.Deleted.Add(Kept))
	}
	if at.Valid {
		f.Size = &Size{Bytes: bytes.Int64, Files: files.Int64, At: time.UnixMilli(at.Int64).UTC()}
	}
	return f, err
}

// Delete takes a folder out of use. It can come back for Kept; then its files are deleted. Those of a folder
// of the machine stay where they are.
func (s *Service) Delete(ctx context.Context, name string) (Folder, error) {
	return s.mark(ctx, name, func(f Folder) (any, error) {
		if f.Deleted != nil {
			return nil, refused(ErrState, "The folder %s is deleted already.", f.Name)
		}
		return s.now().UnixMilli(), nil
	})
}

// Undelete brings a deleted folder back as it was.
func (s *Service) Undelete(ctx context.Context, name string) (Folder, error) {
	return s.mark(ctx, name, func(f Folder) (any, error) {
		if f.Deleted == nil {
			return nil, refused(ErrState, "The folder %s is not deleted.", f.Name)
		}
		return nil, nil
	})
}

func (s *Service) mark(ctx context.Context, name string, deleted func(Folder) (any, error)) (Folder, error) {
	f, err := s.Folder(ctx, name)
	if err != nil {
		return Folder{}, err
	}
	at, err := deleted(f)
	if err != nil {
		return Folder{}, err
	}
	if _, err := s.cfg.DB.ExecContext(ctx, "UPDATE folders SET deleted_at = ? WHERE id = ? AND purged_at IS NULL", at,
		f.ID); err != nil {
		return Folder{}, fmt.Errorf("change a folder: %w", err)
	}
	return s.Folder(ctx, f.Name)
}

// purgeDue deletes the files of folders whose time is over, unless a notebook still has one open.
func (s *Service) purgeDue(ctx context.Context) error {
	due, err := s.folders(ctx, " AND f.deleted_at <= ? AND NOT EXISTS (SELECT 1 FROM launch_folders l WHERE "+
		"l.folder_id = f.id)", s.now().Add(-Kept).UnixMilli())
	if err != nil {
		return err
	}
	var errs []error
	for i := range due {
		errs = append(errs, s.purge(ctx, &due[i]))
	}
	return errors.Join(errs...)
}

// purge marks the folder first: from then on nobody brings it back while its files go.
func (s *Service) purge(ctx context.Context, f *Folder) error {
	now := s.now()
	res, err := s.cfg.DB.ExecContext(ctx, "UPDATE folders SET purged_at = ? WHERE id = ? AND deleted_at <= ?",
		now.UnixMilli(), f.ID, now.Add(-Kept).UnixMilli())
	if err != nil {
		return fmt.Errorf("note that folder %s is gone: %w", f.Name, err)
	}
	if n, err := res.RowsAffected(); err != nil || n == 0 {
		return err // it has come back
	}
	return s.cfg.Audit.Record(ctx, audit.Entry{Actor: "system", Action: "folder.purge", Target: f.Name})
}

// deletePurged deletes the files of folders that are gone for good, also those that an earlier try left.
func (s *Service) deletePurged(ctx context.Context) error {
	ids, err := s.ids(ctx, "read deleted folders",
		"SELECT id FROM folders WHERE purged_at IS NOT NULL AND gid IS NOT NULL")
	if err != nil {
		return err
	}
	var errs []error
	for _, id := range ids {
		if err := beneath.Delete(ctx, s.cfg.FoldersDir, number(id)); err != nil {
			errs = append(errs, fmt.Errorf("delete the files of folder %d: %w", id, err))
		}
	}
	return errors.Join(errs...)
}
