package webui

import (
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpulab/gpulab/internal/signin"
	"github.com/gpulab/gpulab/internal/users"
)

// freshSession is how old a sign-in may be with which somebody without a password links or unlinks an account.
const freshSession = 15 * time.Minute

// An identityView is one way to sign in besides the password.
type identityView struct {
	ID              string // of the link; empty where there is none
	Provider, Title string
	Username        string
	Used, Linked    string
	Configured      bool
	// Untold is since when the provider leaves out groups that the rules need, and Kept is until when the person keeps
	// role and groups nevertheless. Either may be empty.
	Untold, Kept string
}

func (i identityView) path() string { return "/account/identities/" + url.PathEscape(i.Provider) }

// identityViews lists the outside accounts of a person, with the providers that they have linked nothing of.
func (s *Server) identityViews(list []users.Identity) []identityView {
	views := make([]identityView, 0, len(list))
	for i := range list {
		id := &list[i]
		_, configured := s.provider(id.Provider)
		view := identityView{ID: strconv.FormatInt(id.ID, 10), Provider: id.Provider, Title: s.providerTitle(id.Provider),
			Username: id.Username,
			Used:     s.ago(id.Used), Linked: day(id.Linked), Configured: configured}
		if id.UntoldSince != nil {
			view.Untold = day(*id.UntoldSince)
		}
		if id.KeptUntil != nil {
			view.Kept = day(*id.KeptUntil)
		}
		views = append(views, view)
	}
	return views
}

// otherWays lists all ways besides the password, linked or not.
func (s *Server) otherWays(list []users.Identity) []identityView {
	views := s.identityViews(list)
	for _, p := range s.providers() {
		if !slices.ContainsFunc(list, func(id users.Identity) bool { return id.Provider == p.Name }) {
			views = append(views, identityView{Provider: p.Name, Title: p.Title, Configured: true})
		}
	}
	return views
}

// An identityPageView is the form that links or unlinks one outside account.
type identityPageView struct {
	Identity    identityView
	Directory   bool   // name and password are typed here
	Network     bool   // the connection tells who they are
	Guest       string // who that is; empty for somebody who came another way
	HasPassword bool   // of the lab's own, to confirm with
	Stale       bool   // there is none, and the sign-in is too long ago
	Home        string // the page by a name of the lab that the provider knows, where the browser uses another
	Username    string

	PasswordError, OutsideError string
}

func (s *Server) identityView(r *http.Request, v visitor) (identityPageView, error) {
	name := r.PathValue("provider")
	list, err := s.cfg.Users.Identities(r.Context(), v.session.User.ID)
	if err != nil {
		return identityPageView{}, err
	}
	for _, way := range s.otherWays(list) {
		if way.Provider != name {
			continue
		}
		view := identityPageView{Identity: way, HasPassword: v.session.User.HasPassword, Stale: s.stale(v)}
		if p, is := s.provider(name); is {
			view.Directory, view.Network = p.Directory, p.Network
		}
		if view.Network {
			if who, ok := s.cfg.Network.Visitor(r); ok {
				view.Guest = who.Username
			}
		} else if way.ID == "" && !view.Directory {
			if home, here := s.homeFor(r, name); !here {
				view.Home = home + way.path()
			}
		}
		return view, nil
	}
	return identityPageView{}, errNoPage
}

// stale tells whether somebody who has no password to confirm with has to sign in anew first.
func (s *Server) stale(v visitor) bool {
	return !v.session.User.HasPassword && s.now().Sub(v.session.Created) > freshSession
}

func (s *Server) identityPage(w http.ResponseWriter, r *http.Request, v visitor) error {
	view, err := s.identityView(r, v)
	if err != nil {
		return err
	}
	s.showIdentity(w, r, v, http.StatusOK, view)
	return nil
}

func (s *Server) showIdentity(w http.ResponseWriter, r *http.Request, v visitor, status int, view identityPageView) {
	p := s.page(w, r, v, view.Identity.Title, "")
	p.Path = "/account"
	s.render(w, r, status, identityPage(p, view))
}

// confirm makes sure that it is the person themself who asks: with their password, or by a sign-in of just now.
// Otherwise it answers with the form again.
func (s *Server) confirm(w http.ResponseWriter, r *http.Request, v visitor,
	view identityPageView) (confirmed bool, err error) {
	if view.Stale {
		s.showIdentity(w, r, v, http.StatusForbidden, view)
		return false, nil
	}
	status, why, err := s.tryOwnPassword(w, r, v, "old")
	if err != nil || why == "" {
		return err == nil, err
	}
	view.PasswordError = why
	s.showIdentity(w, r, v, status, view)
	return false, nil
}

// tryOwnPassword looks at the password in a field of the form. Why it does not confirm who asks is a sentence for that
// field, with the status of the answer; "" where it does.
func (s *Server) tryOwnPassword(w http.ResponseWriter, r *http.Request, v visitor,
	field string) (status int, why string, err error) {
	err = s.cfg.Users.ConfirmPassword(r.Context(), v.session.User.ID, r.PostForm.Get(field), remote(r))
	status, tooMany := limited(w, err)
	switch {
	case err == nil:
		return 0, "", nil
	case tooMany:
	case errors.Is(err, users.ErrBadCredentials):
		status = http.StatusUnprocessableEntity
	default:
		return 0, "", err
	}
	return status, message(err), nil
}

// linkIdentity links an account of a directory at once; for the others it sends the browser to the provider.
func (s *Server) linkIdentity(w http.ResponseWriter, r *http.Request, v visitor) error {
	view, err := s.identityView(r, v)
	if err != nil {
		return err
	}
	if !view.Identity.Configured || view.Identity.ID != "" {
		return seeOther(view.Identity.path())
	}
	view.Username = clip(strings.TrimSpace(r.PostForm.Get("username")), 200)
	confirmed, err := s.confirm(w, r, v, view)
	if err != nil || !confirmed {
		return err
	}
	name := view.Identity.Provider
	if view.Network {
		return s.linkByNetwork(r, v)
	}
	if !view.Directory {
		return s.sendTo(w, r, v, name, signin.Flow{Next: "/account", LinkTo: v.session.User.ID, Session: v.session.ID})
	}
	done, err := s.cfg.Users.LimitOutside("account "+v.session.User.Handle, remote(r))
	if err != nil {
		return outsideProblem(err)
	}
	outside, err := s.cfg.SignIn.SignIn(r.Context(), name, view.Username, r.PostForm.Get("password"))
	done(err == nil && outside == nil)
	switch {
	case err != nil:
		return outsideProblem(err)
	case outside == nil:
		s.cfg.Users.FailOutside(r.Context(), v.session.User.Handle, name, "wrong name or password, to link it", remote(r))
		view.OutsideError = "Name or password is wrong there. Check both."
		s.showIdentity(w, r, v, http.StatusUnprocessableEntity, view)
		return nil
	}
	return s.link(r, v, *outside)
}

// finishLink links the account that a provider vouched for: to the person who asked for it in this session, and to
// nobody else.
func (s *Server) finishLink(r *http.Request, v visitor, flow signin.Flow, outside users.Outside) error {
	if !v.signedIn || v.session.User.ID != flow.LinkTo || v.session.ID != flow.Session {
		return outsideProblem(&signin.Error{
			Kind: signin.ErrExpired, Text: "You are not signed in any more as you were when you began. Nothing was linked; " +
				"sign in and begin again.",
		})
	}
	return s.link(r, v, outside)
}

func (s *Server) link(r *http.Request, v visitor, outside users.Outside) error {
	if err := s.cfg.Users.LinkOutside(r.Context(), v.session.User.ID, outside); err != nil {
		return outsideProblem(err)
	}
	s.audit(r, v, "identity.link", v.session.User.Handle, outside.Username+" at "+outside.Provider)
	return seeOther("/account?done=linked")
}

func (s *Server) unlinkIdentity(w http.ResponseWriter, r *http.Request, v visitor) error {
	id, err := pathID(r)
	if err != nil {
		return err
	}
	list, err := s.cfg.Users.Identities(r.Context(), v.session.User.ID)
	if err != nil {
		return err
	}
	for _, way := range s.identityViews(list) {
		if way.ID != strconv.FormatInt(id, 10) {
			continue
		}
		view := identityPageView{Identity: way, HasPassword: v.session.User.HasPassword, Stale: s.stale(v)}
		confirmed, err := s.confirm(w, r, v, view)
		if err != nil || !confirmed {
			return err
		}
		gone, err := s.cfg.Users.Unlink(r.Context(), v.session.User.ID, id, false)
		if errors.Is(err, users.ErrLastWayIn) {
			view.OutsideError = message(err)
			s.showIdentity(w, r, v, http.StatusConflict, view)
			return nil
		}
		if err != nil && !errors.Is(err, users.ErrIdentityNotFound) {
			return err
		}
		if err == nil {
			s.audit(r, v, "identity.unlink", v.session.User.Handle, gone.Username+" at "+gone.Provider)
		}
		break
	}
	return seeOther("/account?done=unlinked") // as was wanted, somebody else's untouched
}

// unlinkOther takes an outside account off somebody's, whoever it belongs to.
func (s *Server) unlinkOther(_ http.ResponseWriter, r *http.Request, v visitor) error {
	who, err := s.person(r, v)
	if err != nil {
		return err
	}
	id, err := pathID(r)
	if err != nil {
		return err
	}
	gone, err := s.cfg.Users.Unlink(r.Context(), who.ID, id, true)
	switch {
	case errors.Is(err, users.ErrIdentityNotFound): // as was wanted
	case err != nil:
		return err
	default:
		s.audit(r, v, "identity.unlink", who.Handle, gone.Username+" at "+gone.Provider)
	}
	return seeOther(personPath(who.Handle))
}

// roleByRules lets the rules decide somebody's role again, which an admin gave by hand.
func (s *Server) roleByRules(_ http.ResponseWriter, r *http.Request, v visitor) error {
	who, err := s.act(r, v, "You cannot leave your own role to the rules", s.cfg.Users.RoleByRules)
	if err != nil {
		return err
	}
	s.audit(r, v, "user.role-by-rules", who.Handle, "")
	return seeOther(personPath(who.Handle))
}

// titles names the providers that somebody signs in with.
func (s *Server) titles(list []users.Identity) []string {
	var out []string
	for i := range list {
		out = append(out, s.providerTitle(list[i].Provider))
	}
	return out
}

// ownPasswordField asks for the password of this account, to confirm something.
func ownPasswordField(wrong string) field {
	return field{
		ID: "old", Name: "old", Label: "Your password here", Type: "password", Error: wrong, Autocomplete: "current-password",
	}
}
