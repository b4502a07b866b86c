package webui

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/gpulab/gpulab/internal/units"
	"github.com/gpulab/gpulab/internal/users"
)

// homeFiles are the room in the own home.
type homeFiles struct {
	Used, Measured string // empty while not known
	Limit, Why     string // empty for none
	Meter          reading
	Notice         string
	Kept           bool
	Largest        []largeView
}

// A largeView is a file or folder that takes much room.
type largeView struct {
	Name, Value, Size string
	Folder            bool
}

// end marks folders.
func (l largeView) end() string {
	if l.Folder {
		return "/"
	}
	return ""
}

// foldersDone says what was done before the page was opened anew.
var foldersDone = map[string]string{
	"cleared":  "It is deleted. The sizes are measured anew in a moment.",
	"clearing": "It is being deleted, which takes a while. The sizes are measured anew then.",
}

func (s *Server) homeFilesOf(ctx context.Context, u users.User) (homeFiles, error) {
	state, err := s.cfg.Storage.HomeState(ctx, u)
	if err != nil {
		return homeFiles{}, fmt.Errorf("look at a home: %w", err)
	}
	view := homeFiles{Kept: state.Kept}
	if state.Size != nil {
		view.Used, view.Measured = units.Bytes(uint64(state.Size.Bytes)), s.measured(state.Size.At)
	}
	if state.Limit != nil {
		view.Limit, view.Why = units.Bytes(uint64(state.Limit.Bytes)), state.Limit.Why
		if state.Size != nil {
			part := min(float64(state.Size.Bytes)/float64(max(state.Limit.Bytes, 1)), 1)
			view.Meter = reading{Fraction: &part, High: state.Over}
		}
	}
	if view.Notice, err = s.cfg.Storage.HomeNotice(ctx, u.ID, state); err != nil {
		return homeFiles{}, fmt.Errorf("look at a home: %w", err)
	}
	largest, _, err := s.cfg.Storage.Largest(ctx, u.ID)
	if err != nil {
		return homeFiles{}, fmt.Errorf("look at a home: %w", err)
	}
	for _, e := range largest {
		if e.Bytes < 1<<20 {
			break // nobody makes room with less
		}
		view.Largest = append(view.Largest, largeView{Name: strings.ToValidUTF8(string(e.Path), "�"),
			Value: url.QueryEscape(string(e.Path)),
			Size:  units.Bytes(uint64(e.Bytes)), Folder: e.Folder})
	}
	return view, nil
}

// homeNotice is what stands on top of a person's home page about their home
// folder, "" for nothing.
func (s *Server) homeNotice(ctx context.Context, u users.User) string {
	state, err := s.cfg.Storage.HomeState(ctx, u)
	var text string
	if err == nil {
		text, err = s.cfg.Storage.HomeNotice(ctx, u.ID, state)
	}
	if err != nil && ctx.Err() == nil {
		s.cfg.Log.Error("notice of a home not read", "user", u.Handle, "error", err)
	}
	return text
}

// clearWait is how long a page waits for something to be deleted.
const clearWait = 5 * time.Second

// clearHome deletes something in the own home. What takes long goes on when
// the page is answered.
func (s *Server) clearHome(_ http.ResponseWriter, r *http.Request, v visitor) error {
	path, err := url.QueryUnescape(r.PostForm.Get("path"))
	if err != nil {
		return errFormUnreadable
	}
	done, err := s.cfg.Storage.ClearWithin(r.Context(), v.session.User, path, clearWait)
	if text, ok := users.Message(err); ok {
		return &problem{
			status: http.StatusConflict, title: "It was not deleted", text: text, linkText: "Back to the folders",
			link: "/folders",
		}
	}
	if err != nil {
		return fmt.Errorf("delete in a home: %w", err)
	}
	s.audit(r, v, "home.clear", v.session.User.Handle, path)
	if !done {
		return seeOther("/folders?done=clearing")
	}
	return seeOther("/folders?done=cleared")
}
