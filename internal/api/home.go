package api

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/gpulab/gpulab/internal/storage"
	"github.com/gpulab/gpulab/internal/users"
)

// Home is the room in somebody's home.
type Home struct {
	Size  *FolderSize `json:"size,omitempty" doc:"Left out while it is not known"`
	Limit *int64      `json:"limit,omitempty" doc:"In bytes; left out for none"`
	Why   string      `json:"why,omitempty" doc:"Whom the limit is set for, in words"`
	Kept  bool        `json:"kept" doc:"The file system itself refuses more than the limit; otherwise it is measured"`
	Over  bool        `json:"over" doc:"It is full"`
}

// MyHome is the room in one's own home, and what takes it.
type MyHome struct {
	Home
	Notice  string       `json:"notice,omitempty" doc:"What to know of it, such as that it is nearly full"`
	Largest []LargeEntry `json:"largest" doc:"What takes most room, as of when it was measured; the largest first"`
}

// LargeEntry is a file or folder that takes much room.
type LargeEntry struct {
	Path    string `json:"path" doc:"Within the home; what is no UTF-8 is shown as �"`
	Encoded string `json:"encoded" doc:"The same, byte for byte, as the parameter path of DELETE /me/home/files takes it"`
	Bytes   int64  `json:"bytes"`
	Folder  bool   `json:"folder"`
}

type clearInput struct {
	Path string `query:"path" required:"true" minLength:"1" maxLength:"4096" doc:"Within the home, such as checkpoints/old" example:"checkpoints/old"`
}

type clearAnswer struct{ Status int }

// clearWait is how long an answer waits for something to be deleted.
const clearWait = 20 * time.Second

func (s *Server) addHome() {
	add(s, Operation{Method: "GET", Path: "/me/home", ID: "getMyHome", Need: users.ActionSeeFolders, tag: "folders",
		summary: "The room in your home, and what takes it"}, s.myHome)
	add(s, Operation{Method: "DELETE", Path: "/me/home/files", ID: "clearMyHome", Need: users.ActionSeeFolders,
		tag: "folders", summary: "Delete a file or folder of your home",
		description: "With all that is in it, and for good. A link is deleted, not what it leads to. 202 says that it " +
			"takes longer and goes on by itself.",
		status: http.StatusNoContent, also: []int{conflict}}, s.clearMyHome)
	s.api.OpenAPI().Paths["/me/home/files"].Delete.Responses["202"] = &huma.Response{Description: "It is being deleted"}
	add(s, Operation{Method: "GET", Path: "/users/{handle}/home", ID: "getUserHome", Need: users.ActionSeePeople,
		tag: "people", summary: "The room in a person's home",
		description: "What is in it is theirs alone.", also: []int{gone}}, s.personHome)
}

func homeOf(state storage.HomeState) Home {
	h := Home{Size: folderSize(state.Size), Kept: state.Kept, Over: state.Over}
	if state.Limit != nil {
		h.Limit, h.Why = &state.Limit.Bytes, state.Limit.Why
	}
	return h
}

func (s *Server) myHome(ctx context.Context, c *call, _ *noInput) (*body[MyHome], error) {
	state, err := s.cfg.Storage.HomeState(ctx, c.user)
	if err != nil {
		return nil, err
	}
	out := MyHome{Home: homeOf(state), Largest: []LargeEntry{}}
	if out.Notice, err = s.cfg.Storage.HomeNotice(ctx, c.user.ID, state); err != nil {
		return nil, err
	}
	largest, _, err := s.cfg.Storage.Largest(ctx, c.user.ID)
	if err != nil {
		return nil, err
	}
	for _, e := range largest {
		out.Largest = append(out.Largest, LargeEntry{
			Path: strings.ToValidUTF8(string(e.Path), "�"), Encoded: url.QueryEscape(string(e.Path)), Bytes: e.Bytes,
			Folder: e.Folder,
		})
	}
	return answerWith(out)
}

// clearMyHome deletes something in the own home. What takes long goes on when the answer is sent.
func (s *Server) clearMyHome(ctx context.Context, c *call, in *clearInput) (*clearAnswer, error) {
	done, err := s.cfg.Storage.ClearWithin(ctx, c.user, in.Path, clearWait)
	if err != nil {
		return nil, err
	}
	status := http.StatusNoContent
	if !done {
		status = http.StatusAccepted
	}
	s.audit(ctx, c, "home.clear", c.user.Handle, in.Path)
	return &clearAnswer{status}, nil
}

func (s *Server) personHome(ctx context.Context, c *call, in *HandleInput) (*body[Home], error) {
	who, err := s.person(ctx, c, in.Handle)
	if err != nil {
		return nil, err
	}
	state, err := s.cfg.Storage.HomeState(ctx, who.User)
	if err != nil {
		return nil, err
	}
	return answerWith(homeOf(state))
}
