package webui

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/gpulab/gpulab/internal/audit"
	"github.com/gpulab/gpulab/internal/users"
)

// maxImportForm leaves room for the largest list, with its line ends as
// browsers send them, and for telling somebody whose file is larger.
const maxImportForm = 4 << 20

// The steps of an import; a form names the one it asks for.
const (
	stepLook       = "look"
	stepImport     = "import"
	stepImportGood = "import-good"
)

// An importView is a list of people on its way into the lab.
type importView struct {
	Form          importForm
	Roles, Groups []roleView
	Report        *importReport
}

// newGroup is the group of a form that is not among the choices.
func (v importView) newGroup() string {
	if slices.ContainsFunc(v.Groups, func(g roleView) bool { return g.Value == v.Form.Group }) {
		return ""
	}
	return v.Form.Group
}

type importForm struct {
	Text, Group, Role, Days                     string
	MakeGroups                                  bool
	TextError, GroupError, RoleError, DaysError string
	Problem                                     string
}

// An importReport is what the import of a list would do.
type importReport struct {
	Digest             string
	New, Joins, Wrong  int
	Summary            string
	Ignored, NewGroups string
	Rows               []importRow
}

func (r *importReport) goodRows() string {
	if good := r.New + r.Joins; good != 1 {
		return "Import the " + strconv.Itoa(good) + " good rows"
	}
	return "Import the 1 good row"
}

type importRow struct {
	Line                                   int
	Status                                 string
	Tone                                   tone
	Name, Handle, Email, Role, Group, Text string
}

// A linksView is the ways in for people who were just imported.
type linksView struct {
	Summary, Until, Address string
	Cards                   []linkCard
	// Download is the same as a file, inside the page: the links stand nowhere
	// else.
	Download string
}

type linkCard struct{ Name, Handle, Link string }

func (s *Server) importPage(w http.ResponseWriter, r *http.Request, v visitor) error {
	form := importForm{
		Role: string(users.RoleMember), MakeGroups: true, Days: strconv.Itoa(int(users.ImportLinkTTL / (24 * time.Hour))),
	}
	return s.showImport(w, r, v, http.StatusOK, importView{Form: form})
}

func (s *Server) showImport(w http.ResponseWriter, r *http.Request, v visitor, status int, view importView) error {
	view.Roles = roles
	var err error
	if view.Groups, err = s.groupChoices(r.Context()); err != nil {
		return err
	}
	s.render(w, r, status, importPage(s.belowUsers(w, r, v, "Import a list"), view))
	return nil
}

// importPeople shows what a list would do, or does it. The plan is made anew
// from the list each time: a form says what somebody wants, never what is so.
func (s *Server) importPeople(w http.ResponseWriter, r *http.Request, v visitor) error {
	form, err := readImportForm(r)
	if err != nil {
		return err
	}
	options := users.ImportOptions{Role: users.Role(form.Role), Group: form.Group, MakeGroups: form.MakeGroups,
		LinkTTL: days(form.Days, users.ImportLinkTTL)}
	step := r.PostForm.Get("step")
	if step != stepImport && step != stepImportGood {
		plan, err := s.cfg.Users.PlanImport(r.Context(), []byte(form.Text), options)
		if err != nil {
			return s.importRefused(w, r, v, form, err)
		}
		return s.showImport(w, r, v, http.StatusOK, importView{Form: form, Report: planReport(plan)})
	}
	options.DropWrong, options.Expect = step == stepImportGood, r.PostForm.Get("agreed")
	plan, links, err := s.cfg.Users.Import(r.Context(), audit.Entry{Actor: v.session.User.Handle, Remote: remote(r)},
		[]byte(form.Text), options)
	if errors.Is(err, users.ErrImportStopped) {
		form.Problem = message(err)
		return s.showImport(w, r, v, http.StatusConflict, importView{Form: form, Report: planReport(plan)})
	}
	if err != nil {
		return s.importRefused(w, r, v, form, err)
	}
	return s.showLinks(w, r, v, plan, links)
}

// readImportForm takes the file where there is one, otherwise the text.
func readImportForm(r *http.Request) (importForm, error) {
	get := func(name string) string { return strings.TrimSpace(r.PostForm.Get(name)) }
	form := importForm{
		Text: r.PostForm.Get("text"), Group: get("group"), Role: get("role"), Days: get("days"),
		MakeGroups: get("make-groups") != "",
	}
	if named := get("new-group"); named != "" {
		form.Group = named
	}
	if r.MultipartForm == nil || len(r.MultipartForm.File["file"]) == 0 {
		return form, nil
	}
	file, err := r.MultipartForm.File["file"][0].Open()
	if err != nil {
		return form, fmt.Errorf("open an uploaded list: %w", err)
	}
	defer func() { _ = file.Close() }()
	text, err := io.ReadAll(file)
	if err != nil {
		return form, fmt.Errorf("read an uploaded list: %w", err)
	}
	if len(text) > 0 {
		form.Text = string(users.ListText(text))
	}
	return form, nil
}

// importRefused shows the form again with what is wrong, and what was typed.
func (s *Server) importRefused(w http.ResponseWriter, r *http.Request, v visitor, form importForm, err error) error {
	switch {
	case errors.Is(err, users.ErrListInvalid):
		form.TextError = message(err)
	case errors.Is(err, users.ErrGroupNotFound), errors.Is(err, users.ErrGroupInvalid):
		form.GroupError = message(err)
	case errors.Is(err, users.ErrRoleInvalid):
		form.RoleError = message(err)
	case errors.Is(err, users.ErrDaysInvalid):
		form.DaysError = message(err)
	default:
		return err
	}
	if !utf8.ValidString(form.Text) || strings.ContainsRune(form.Text, 0) || len(form.Text) > users.MaxImportBytes {
		form.Text = "" // no text that a page could show
	}
	return s.showImport(w, r, v, http.StatusUnprocessableEntity, importView{Form: form})
}

var importTones = map[users.ImportStatus]tone{users.ImportNew: "ok", users.ImportWrong: "bad"}

// importWords are what a status is called on the page.
var importWords = map[users.ImportStatus]string{
	users.ImportNew: "new", users.ImportExists: "there already", users.ImportWrong: "error",
}

// planReport shows a plan, what needs mending first.
func planReport(plan users.ImportPlan) *importReport {
	view := &importReport{Digest: plan.Digest(), New: plan.New, Joins: plan.Joins(), Wrong: plan.Wrong,
		Summary: importSummary(plan, false),
		Ignored: strings.Join(plan.Ignored, ", "), NewGroups: strings.Join(plan.Groups, ", ")}
	for i := range plan.Rows {
		row := &plan.Rows[i]
		view.Rows = append(view.Rows, importRow{Line: row.Line, Status: importWords[row.Status],
			Tone: importTones[row.Status],
			Name: row.Name, Handle: row.Handle, Email: row.Email, Role: string(row.Role), Group: row.Group, Text: row.Text})
	}
	slices.SortStableFunc(view.Rows, func(a, b importRow) int { return wrongFirst(a) - wrongFirst(b) })
	return view
}

func wrongFirst(row importRow) int {
	if row.Tone == "bad" {
		return 0
	}
	return 1
}

// importSummary says what would happen, or what has.
func importSummary(plan users.ImportPlan, done bool) string {
	parts, left := []string{strconv.Itoa(plan.New) + " new"}, "with an error"
	if done {
		parts[0], left = people(plan.New)+" added", "left out"
	}
	if plan.Exists > 0 {
		part := fmt.Sprintf("%d there already", plan.Exists)
		if joins := plan.Joins(); joins > 0 {
			part += fmt.Sprintf(" (%d of them for a group)", joins)
		}
		parts = append(parts, part)
	}
	if plan.Wrong == 1 {
		parts = append(parts, "1 row "+left)
	} else if plan.Wrong > 1 {
		parts = append(parts, fmt.Sprintf("%d rows %s", plan.Wrong, left))
	}
	return strings.Join(parts, ", ") + "."
}

func people(n int) string {
	if n == 1 {
		return "1 person"
	}
	return strconv.Itoa(n) + " people"
}

func (s *Server) showLinks(w http.ResponseWriter, r *http.Request, v visitor, plan users.ImportPlan,
	links []users.PersonalLink) error {
	view := linksView{Summary: importSummary(plan, true), Address: "https://" + r.Host + "/"}
	for i := range links {
		l := &links[i]
		l.URL = view.Address + "welcome?token=" + url.QueryEscape(l.Token)
		view.Cards = append(view.Cards, linkCard{Name: l.Name, Handle: l.Handle, Link: l.URL})
		view.Until = l.Expires.Local().Format("Monday, 2 January 2006, 15:04")
	}
	if len(links) > 0 {
		var file bytes.Buffer
		if err := users.WriteLinks(&file, links); err != nil {
			return fmt.Errorf("write the links: %w", err)
		}
		// Spreadsheets take a file without this mark for one in an old encoding.
		view.Download = "data:text/csv;charset=utf-8;base64," +
			base64.StdEncoding.EncodeToString(append([]byte("\ufeff"), file.Bytes()...))
	}
	s.render(w, r, http.StatusOK, linksPage(s.belowUsers(w, r, v, "Links"), view))
	return nil
}
