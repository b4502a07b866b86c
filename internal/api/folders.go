package api

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/gpulab/gpulab/internal/storage"
	"github.com/gpulab/gpulab/internal/users"
)

// Folder is a folder that people share.
type Folder struct {
	Name   string   `json:"name" doc:"Notebooks show it as shared/NAME"`
	Kind   string   `json:"kind" enum:"group,hand-in,dataset,host"`
	Note   string   `json:"note,omitempty"`
	Who    string   `json:"who" doc:"Who may do what in it, in words"`
	Groups []string `json:"groups" doc:"Whom it is for; none of a group that was removed"`
	Guests string   `json:"guests,omitempty" enum:"write,read,none" doc:"What guests in the group may"`
	Others string   `json:"others" enum:"read,none" doc:"What everybody else in the lab may"`
	Yours  string   `json:"yours" enum:"write,read,none" doc:"What you may; in a hand-in, write means a part of your own"`
	Manage bool     `json:"manage" doc:"You may change and delete it"`
	Path   string   `json:"path,omitempty" doc:"Of a folder of the machine, for those who manage it"`
	// HostUsers weakens the isolation of notebooks.
	HostUsers bool        `json:"hostUsers,omitempty" doc:"Notebooks with it share the machine's user IDs, because a file system of it cannot do otherwise"`
	CreatedBy string      `json:"createdBy"`
	Created   time.Time   `json:"created"`
	Deleted   *time.Time  `json:"deleted,omitempty"`
	Purge     *time.Time  `json:"purge,omitempty" doc:"When the files of a deleted folder go for good"`
	Size      *FolderSize `json:"size,omitempty" doc:"Left out while it is not known"`
}

// FolderSize is how much something takes on disk.
type FolderSize struct {
	Bytes    int64     `json:"bytes"`
	Files    int64     `json:"files"`
	Measured time.Time `json:"measured"`
}

// FolderList is the folders that somebody sees or manages, by name.
type FolderList struct {
	Folders []Folder `json:"folders"`
}

// FolderInput names a folder.
type FolderInput struct {
	Name string `path:"name" maxLength:"64" example:"vision-data"`
}

type newFolderInput struct {
	Body struct {
		Name   string   `json:"name" minLength:"2" maxLength:"30" doc:"2 to 30 of a–z, 0–9 and single hyphens, a letter first; it stays for good" example:"exercises"`
		Kind   string   `json:"kind" enum:"group,hand-in,dataset,host"`
		Note   string   `json:"note,omitempty" maxLength:"200" doc:"What it is for"`
		Groups []string `json:"groups,omitempty" nullable:"false" maxItems:"50" doc:"Whom it is for: one group for a group folder or a hand-in; none for everybody" example:"[\"vision\"]"`
		Guests string   `json:"guests,omitempty" enum:"write,read,none" doc:"What guests in the group may; read if left out"`
		Others string   `json:"others,omitempty" enum:"read,none" doc:"What everybody else may; none if left out, but read of a dataset or folder of the machine without groups"`
		Path   string   `json:"path,omitempty" maxLength:"4096" doc:"Of a folder of the machine, such as /srv/data"`
	}
}

type changeFolderInput struct {
	FolderInput
	Body struct {
		Note   *string  `json:"note,omitempty" maxLength:"200"`
		Groups []string `json:"groups,omitempty" nullable:"false" maxItems:"50" doc:"Of a dataset or folder of the machine: all that it is for from now on"`
		Guests *string  `json:"guests,omitempty" enum:"write,read,none"`
		Others *string  `json:"others,omitempty" enum:"read,none"`
	}
}

func (s *Server) addFolders() {
	add(s, Operation{Method: "GET", Path: "/folders", ID: "listFolders", Need: users.ActionSeeFolders, tag: "folders",
		summary:     "The shared folders that you see or manage",
		description: "Deleted ones that can come back are listed for those who manage them."}, s.listFolders)
	add(s, Operation{Method: "POST", Path: "/folders", ID: "createFolder", Need: users.ActionManageFolders, tag: "folders",
		summary: "Make a shared folder",
		description: "Leads make group folders and hand-ins for the groups that they lead; admins everything. Notebooks " +
			"get it when they start.",
		status: http.StatusCreated, also: []int{conflict}}, s.createFolder)
	add(s, Operation{Method: "GET", Path: "/folders/{name}", ID: "getFolder", Need: users.ActionSeeFolders, tag: "folders",
		summary: "One shared folder"}, s.getFolder)
	add(s, Operation{Method: "PATCH", Path: "/folders/{name}", ID: "changeFolder", Need: users.ActionManageFolders,
		tag: "folders", summary: "Change who may use a shared folder",
		description: "Who loses it, loses the notebooks that have it open, within seconds."}, s.changeFolder)
	add(s, Operation{Method: "DELETE", Path: "/folders/{name}", ID: "deleteFolder", Need: users.ActionManageFolders,
		tag: "folders", summary: "Delete a shared folder",
		description: "Notebooks that have it open end within seconds. It can come back for 30 days; then its files are " +
			"deleted. Those of a folder of the machine stay.",
		also: []int{conflict}}, s.deleteFolder)
	add(s, Operation{Method: "POST", Path: "/folders/{name}/undelete", ID: "undeleteFolder",
		Need: users.ActionManageFolders, tag: "folders", summary: "Bring a deleted shared folder back",
		also: []int{conflict}}, s.undeleteFolder)
}

func folderSize(size *storage.Size) *FolderSize {
	if size == nil {
		return nil
	}
	return &FolderSize{Bytes: size.Bytes, Files: size.Files, Measured: size.At}
}

// folderOf is a folder as the caller sees it, who may do in it what may says.
func folderOf(f *storage.Folder, c *call, may storage.Access) Folder {
	out := Folder{Name: f.Name, Kind: string(f.Kind), Note: f.Note, Who: f.Who(), Groups: f.Groups,
		Others: string(f.Others), Yours: string(may),
		Manage: storage.MayManage(*f, c.user), CreatedBy: f.CreatedBy, Created: f.Created, Deleted: f.Deleted, Purge: f.Purge,
		Size: folderSize(f.Size)}
	if f.Kind == storage.Group {
		out.Guests = string(f.Guests)
	}
	if out.Manage {
		out.Path, out.HostUsers = f.Path, f.HostUsers
	}
	return out
}

func (s *Server) listFolders(ctx context.Context, c *call, _ *noInput) (*body[FolderList], error) {
	folders, err := s.cfg.Storage.FoldersOf(ctx, c.user)
	if err != nil {
		return nil, err
	}
	list := FolderList{Folders: []Folder{}}
	for i := range folders {
		list.Folders = append(list.Folders, folderOf(&folders[i].Folder, c, folders[i].May))
	}
	return answerWith(list)
}

// folder finds the folder a call is about, and what the caller may do in it. Who neither sees nor manages it is not
// told whether it exists.
func (s *Server) folder(ctx context.Context, c *call, name string,
	manages bool) (storage.Folder, storage.Access, error) {
	f, err := s.cfg.Storage.Folder(ctx, name)
	if errors.Is(err, storage.ErrNotFound) && !c.everybody(users.ActionManageFolders) {
		return f, storage.None, errNoFolder(manages)
	}
	if err != nil {
		return f, storage.None, err
	}
	of, err := s.cfg.Users.Memberships(ctx, c.user.ID)
	if err != nil {
		return f, storage.None, err
	}
	may := storage.MayOpen(f, c.user, of)
	if !storage.MayManage(f, c.user) && (manages || may == storage.None) {
		return f, may, errNoFolder(manages)
	}
	return f, may, nil
}

// errNoFolder refuses the same, whether there is such a folder or not.
func errNoFolder(manages bool) error {
	if manages {
		return errMayNot
	}
	return problem(http.StatusForbidden, "This folder is not for you",
		"There is none of this name, or it is for others. GET /folders lists those that you see.")
}

func (s *Server) getFolder(ctx context.Context, c *call, in *FolderInput) (*body[Folder], error) {
	f, may, err := s.folder(ctx, c, in.Name, false)
	if err != nil {
		return nil, err
	}
	return answerWith(folderOf(&f, c, may))
}

// folderNow answers with a folder after something was done to it.
func (s *Server) folderNow(ctx context.Context, c *call, f *storage.Folder) (*body[Folder], error) {
	of, err := s.cfg.Users.Memberships(ctx, c.user.ID)
	if err != nil {
		return nil, err
	}
	return answerWith(folderOf(f, c, storage.MayOpen(*f, c.user, of)))
}

func (s *Server) createFolder(ctx context.Context, c *call, in *newFolderInput) (*body[Folder], error) {
	b := &in.Body
	n := storage.NewFolder{Name: b.Name, Kind: storage.Kind(b.Kind), Note: b.Note, Groups: b.Groups,
		Guests: storage.Access(b.Guests), Others: storage.Access(b.Others),
		Path: b.Path, By: c.user.Handle}
	groups, err := s.cfg.Users.Groups(ctx)
	if err != nil {
		return nil, err
	}
	if !storage.MayMake(n.Kind, n.Groups, c.user, groups) {
		return nil, errMayNot
	}
	f, err := s.cfg.Storage.Create(ctx, n)
	if err != nil {
		return nil, err
	}
	s.audit(ctx, c, "folder.add", f.Name, f.Detail())
	return s.folderNow(ctx, c, &f)
}

func (s *Server) changeFolder(ctx context.Context, c *call, in *changeFolderInput) (*body[Folder], error) {
	f, _, err := s.folder(ctx, c, in.Name, true)
	if err != nil {
		return nil, err
	}
	changed, err := s.cfg.Storage.SetAccess(ctx, f.Name,
		storage.Change{Note: in.Body.Note, Groups: slices.Clone(in.Body.Groups),
			Guests: (*storage.Access)(in.Body.Guests), Others: (*storage.Access)(in.Body.Others)})
	if err != nil {
		return nil, err
	}
	s.audit(ctx, c, "folder.change", f.Name, changed.Detail())
	return s.folderNow(ctx, c, &changed)
}

func (s *Server) deleteFolder(ctx context.Context, c *call, in *FolderInput) (*body[Folder], error) {
	f, _, err := s.folder(ctx, c, in.Name, true)
	if err == nil {
		f, err = s.cfg.Storage.Delete(ctx, f.Name)
	}
	if err != nil {
		return nil, err
	}
	s.audit(ctx, c, "folder.delete", f.Name, "")
	return s.folderNow(ctx, c, &f)
}

func (s *Server) undeleteFolder(ctx context.Context, c *call, in *FolderInput) (*body[Folder], error) {
	f, _, err := s.folder(ctx, c, in.Name, true)
	if err == nil {
		f, err = s.cfg.Storage.Undelete(ctx, f.Name)
	}
	if err != nil {
		return nil, err
	}
	s.audit(ctx, c, "folder.undelete", f.Name, "")
	return s.folderNow(ctx, c, &f)
}
