package webui

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/gpulab/gpulab/internal/storage"
	"github.com/gpulab/gpulab/internal/units"
	"github.com/gpulab/gpulab/internal/users"
)

// Storage is homes and the folders that people share.
type Storage interface {
	// FoldersOf lists the folders that a person sees or manages.
	FoldersOf(ctx context.Context, u users.User) ([]storage.Seen, error)
	Folder(ctx context.Context, name string) (storage.Folder, error)
	Create(ctx context.Context, n storage.NewFolder) (storage.Folder, error)
	SetAccess(ctx context.Context, name string, c storage.Change) (storage.Folder, error)
	Delete(ctx context.Context, name string) (storage.Folder, error)
	Undelete(ctx context.Context, name string) (storage.Folder, error)
	HomeState(ctx context.Context, u users.User) (storage.HomeState, error)
	// HomeNotice is what somebody is told of a home in that state, "" for nothing.
	HomeNotice(ctx context.Context, userID int64, state storage.HomeState) (string, error)
	// Largest is what takes most room in somebody's home, as of when it was
	// measured; a nil size is not known.
	Largest(ctx context.Context, user int64) ([]storage.Entry, *storage.Size, error)
	// Clear deletes something in somebody's home.
	ClearWithin(ctx context.Context, u users.User, name string, wait time.Duration) (done bool, err error)
	// Kept reports whether the file system itself keeps limits of homes.
	Kept() bool
}

// A foldersView is somebody's home and the folders they see.
type foldersView struct {
	Home   homeFiles
	List   []folderRow
	Kinds  []roleView // that the visitor may make; none for nobody
	Groups []roleView // that they may be for
	Form   folderForm
	Done   string
}

type folderRow struct {
	Name, Kind, Who, Mine, Note string
	Size, Measured              string
	Deleted                     string // until when it is kept, "" of one that is there
}

type folderForm struct {
	Name, Kind, Group, Guests, Path, Note string
	NameError, GroupError, PathError      string
}

// A folderView is the page of one folder.
type folderView struct {
	folderRow
	Path, Made  string
	Groups      string
	Guests      string
	Others      bool
	IsGroup     bool // it is a group folder
	Open        bool // a dataset, or of the machine: for any groups
	HostUsers   bool
	Host        bool
	Manages     bool
	Kept        string // until when it would be kept if it were deleted now
	Error       string // of the form about who may use it
	DeleteError string
	InNotebook  string // where JupyterLab shows it, "" where the visitor does not see it
}

var guestChoices = []roleView{
	{string(storage.Read), "read"}, {string(storage.Write), "read and write"}, {string(storage.None), "do not see it"},
}

func (s *Server) foldersPage(w http.ResponseWriter, r *http.Request, v visitor) error {
	return s.showFolders(w, r, v, http.StatusOK, folderForm{}, foldersDone[r.URL.Query().Get("done")])
}

func (s *Server) showFolders(w http.ResponseWriter, r *http.Request, v visitor, status int, form folderForm,
	done string) error {
	view := foldersView{Form: form, Done: done}
	var err error
	if view.List, err = s.folderRows(r.Context(), v.session.User); err != nil {
		return err
	}
	if view.Home, err = s.homeFilesOf(r.Context(), v.session.User); err != nil {
		return err
	}
	if view.Kinds, view.Groups, err = s.mayMake(r.Context(), v.session.User); err != nil {
		return err
	}
	s.render(w, r, status, foldersPage(s.page(w, r, v, "Folders", ""), view))
	return nil
}

// folderRows are the folders that u sees or manages.
func (s *Server) folderRows(ctx context.Context, u users.User) ([]folderRow, error) {
	list, err := s.cfg.Storage.FoldersOf(ctx, u)
	if err != nil {
		return nil, fmt.Errorf("list folders: %w", err)
	}
	rows := make([]folderRow, len(list))
	for i := range list {
		rows[i] = s.folderRow(&list[i].Folder, list[i].May)
	}
	return rows, nil
}

// manageOnly is what somebody may do in a folder that they only look after.
const manageOnly = "manage only"

func (s *Server) folderRow(f *storage.Folder, may storage.Access) folderRow {
	row := folderRow{Name: f.Name, Kind: f.Kind.Words(), Who: f.Who(), Note: f.Note}
	row.Mine = map[storage.Access]string{storage.Write: "read and write", storage.Read: "read",
		storage.None: manageOnly}[may]
	if f.Kind == storage.HandIn && may == storage.Write {
		row.Mine = "your own part"
	}
	if f.Size != nil {
		row.Size, row.Measured = units.Bytes(uint64(f.Size.Bytes)), s.measured(f.Size.At)
	}
	if f.Purge != nil {
		row.Deleted = date(*f.Purge)
	}
	return row
}

// measured says when a size was taken.
func (s *Server) measured(at time.Time) string {
	if s.now().Sub(at) < time.Minute {
		return "measured just now"
	}
	return "measured " + s.ago(&at)
}

// mayMake are the kinds of folders that u may make, and the groups for which.
func (s *Server) mayMake(ctx context.Context, u users.User) (kinds, groups []roleView, err error) {
	all, err := s.cfg.Users.Groups(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("list groups: %w", err)
	}
	for _, g := range all {
		if storage.MayMake(storage.Group, []string{g.Name}, u, all) {
			groups = append(groups, roleView{g.Name, g.Title})
		}
	}
	open := storage.MayMake(storage.Dataset, nil, u, all)
	for _, k := range storage.Kinds() {
		if forGroups := k == storage.Group || k == storage.HandIn; forGroups && len(groups) > 0 || !forGroups && open {
			kinds = append(kinds, roleView{string(k), kindChoices[k]})
		}
	}
	if open {
		groups = append([]roleView{{"", "Everybody in the lab (datasets, folders of the machine)"}}, groups...)
	}
	return kinds, groups, nil
}

var kindChoices = map[storage.Kind]string{
	storage.Group:   "Group folder: its members read and write",
	storage.HandIn:  "Hand-in: each member has a part of their own, leads read all",
	storage.Dataset: "Dataset: people read, admins write",
	storage.Host:    "Folder of the machine: people read, nothing is copied",
}

func (s *Server) createFolder(w http.ResponseWriter, r *http.Request, v visitor) error {
	get := func(name string) string { return strings.TrimSpace(r.PostForm.Get(name)) }
	form := folderForm{
		Name: get("name"), Kind: get("kind"), Group: get("group"), Guests: get("guests"), Path: get("path"),
		Note: get("note"),
	}
	n := storage.NewFolder{
		Name: form.Name, Kind: storage.Kind(form.Kind), Note: form.Note, Guests: storage.Access(form.Guests),
		By: v.session.User.Handle,
	}
	if form.Group != "" {
		n.Groups = []string{form.Group}
	}
	if n.Kind == storage.Host {
		n.Path = form.Path
	}
	groups, err := s.cfg.Users.Groups(r.Context())
	if err != nil {
		return fmt.Errorf("list groups: %w", err)
	}
	if slices.Contains(storage.Kinds(), n.Kind) && !storage.MayMake(n.Kind, n.Groups, v.session.User, groups) {
		return errNotAllowed
	}
	f, err := s.cfg.Storage.Create(r.Context(), n)
	switch {
	case err == nil:
		s.audit(r, v, "folder.add", f.Name, f.Detail())
		return seeOther(folderPath(f.Name))
	case errors.Is(err, storage.ErrName), errors.Is(err, storage.ErrTaken), errors.Is(err, storage.ErrFull):
		form.NameError = message(err)
	case errors.Is(err, storage.ErrPath):
		form.PathError = message(err)
	case errors.Is(err, storage.ErrGroup), errors.Is(err, storage.ErrKind):
		form.GroupError = message(err)
	default:
		return fmt.Errorf("make a folder: %w", err)
	}
	return s.showFolders(w, r, v, http.StatusUnprocessableEntity, form, "")
}

func folderPath(name string) string { return "/folders/" + name }

// folder finds the folder a page is about. Who neither sees nor manages it is
// not told whether it exists.
func (s *Server) folder(r *http.Request, v visitor, manages bool) (storage.Folder, storage.Access, error) {
	f, err := s.cfg.Storage.Folder(r.Context(), r.PathValue("name"))
	if errors.Is(err, storage.ErrNotFound) {
		if v.session.User.Scope(users.ActionManageFolders) == users.Everybody {
			return f, storage.None, errNoPage
		}
		return f, storage.None, errNotAllowed
	}
	if err != nil {
		return f, storage.None, err
	}
	of, err := s.cfg.Users.Memberships(r.Context(), v.session.User.ID)
	if err != nil {
		return f, storage.None, err
	}
	may := storage.MayOpen(f, v.session.User, of)
	if !storage.MayManage(f, v.session.User) && (manages || may == storage.None) {
		return f, may, errNotAllowed
	}
	return f, may, nil
}

func (s *Server) folderPage(w http.ResponseWriter, r *http.Request, v visitor) error {
	f, may, err := s.folder(r, v, false)
	if err != nil {
		return err
	}
	return s.showFolder(w, r, v, http.StatusOK, &f, may, func(*folderView) {})
}

func (s *Server) showFolder(w http.ResponseWriter, r *http.Request, v visitor, status int, f *storage.Folder,
	may storage.Access, edit func(*folderView)) error {
	view := folderView{folderRow: s.folderRow(f, may), Path: f.Path, Made: date(f.Created) + " by " + f.CreatedBy,
		Groups: strings.Join(f.Groups, " "),
		Guests: string(f.Guests), Others: f.Others == storage.Read, IsGroup: f.Kind == storage.Group,
		Open:      f.Kind == storage.Dataset || f.Kind == storage.Host,
		HostUsers: f.HostUsers, Host: f.Kind == storage.Host, Manages: storage.MayManage(*f, v.session.User),
		Kept: date(s.now().Add(storage.Kept))}
	if may != storage.None {
		view.InNotebook = storage.Shared + "/" + f.Name
	}
	edit(&view)
	s.render(w, r, status, folderPage(s.page(w, r, v, f.Name, ""), view))
	return nil
}

func (s *Server) changeFolder(w http.ResponseWriter, r *http.Request, v visitor) error {
	f, may, err := s.folder(r, v, true)
	if err != nil {
		return err
	}
	change := storage.Change{Note: new(strings.TrimSpace(r.PostForm.Get("note")))}
	others := storage.None
	if r.PostForm.Get("others") != "" {
		others = storage.Read
	}
	groups := strings.Fields(r.PostForm.Get("groups"))
	switch f.Kind {
	case storage.Group:
		change.Guests, change.Others = new(storage.Access(r.PostForm.Get("guests"))), &others
	case storage.Dataset, storage.Host:
		change.Groups, change.Others = append([]string{}, groups...), &others
	}
	changed, err := s.cfg.Storage.SetAccess(r.Context(), f.Name, change)
	if text, ok := users.Message(err); ok {
		return s.showFolder(w, r, v, http.StatusUnprocessableEntity, &f, may, func(view *folderView) {
			view.Error, view.Groups, view.Note, view.Others = text, strings.Join(groups, " "), *change.Note,
				others == storage.Read
		})
	}
	if err != nil {
		return fmt.Errorf("change a folder: %w", err)
	}
	s.audit(r, v, "folder.change", f.Name, changed.Detail())
	return seeOther(folderPath(f.Name))
}

func (s *Server) deleteFolder(w http.ResponseWriter, r *http.Request, v visitor) error {
	f, may, err := s.folder(r, v, true)
	if err != nil {
		return err
	}
	if strings.TrimSpace(r.PostForm.Get("confirm")) != f.Name {
		return s.showFolder(w, r, v, http.StatusUnprocessableEntity, &f, may, func(view *folderView) {
			view.DeleteError = "Type " + f.Name + " to delete it. Nothing was deleted."
		})
	}
	if _, err := s.cfg.Storage.Delete(r.Context(), f.Name); err != nil && !errors.Is(err, storage.ErrState) {
		return fmt.Errorf("delete a folder: %w", err)
	}
	s.audit(r, v, "folder.delete", f.Name, "")
	return seeOther(folderPath(f.Name))
}

func (s *Server) undeleteFolder(_ http.ResponseWriter, r *http.Request, v visitor) error {
	f, _, err := s.folder(r, v, true)
	if err != nil {
		return err
	}
	if _, err := s.cfg.Storage.Undelete(r.Context(), f.Name); err != nil && !errors.Is(err, storage.ErrState) {
		return fmt.Errorf("bring a folder back: %w", err)
	}
	s.audit(r, v, "folder.undelete", f.Name, "")
	return seeOther(folderPath(f.Name))
}
