package webui

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/gpulab/gpulab/internal/audit"
)

// auditPerPage is how many entries a page shows.
const auditPerPage = 50

// An auditView is a page of the audit log.
type auditView struct {
	Filter  auditForm
	Actions []roleView
	Rows    []auditRow
	Older   string // address of the page with the next older ones, if there are any
	Newest  string // address of the first page, unless this is it
	Head    string // hash of the newest entry
}

// An auditForm is the filter as it stands in the address.
type auditForm struct{ Person, Action, Since, Until, Address, Error string }

func (f auditForm) empty() bool { return f == auditForm{} }

// query is the filter for an address, without an empty part.
func (f auditForm) query(before int64) string {
	q := url.Values{}
	for name, value := range map[string]string{
		"person": f.Person, "action": f.Action, "since": f.Since, "until": f.Until, "address": f.Address,
	} {
		if value != "" {
			q.Set(name, value)
		}
	}
	if before > 0 {
		q.Set("before", strconv.FormatInt(before, 10))
	}
	if len(q) == 0 {
		return "/audit"
	}
	return "/audit?" + q.Encode()
}

type auditRow struct {
	ID, Time, Exact, Actor, Action, Name, Target, Detail, Remote string
}

// auditForm reads a filter. Both days are whole ones, in the lab's own time.
func readAuditForm(values url.Values) (auditForm, audit.Filter) {
	get := func(name string) string { return clip(strings.TrimSpace(values.Get(name)), 128) }
	form := auditForm{
		Person: get("person"), Action: get("action"), Since: get("since"), Until: get("until"), Address: get("address"),
	}
	filter := audit.Filter{Person: form.Person, Action: form.Action, Remote: form.Address}
	date := func(text *string, into *time.Time, more int) {
		if *text == "" {
			return
		}
		day, err := time.ParseInLocation(time.DateOnly, *text, time.Local)
		if err != nil {
			*text = "" // no browser shows it in a field for days
			form.Error = "A day is written as 2026-03-01. This one was left out."
			return
		}
		*into = day.AddDate(0, 0, more)
	}
	date(&form.Since, &filter.Since, 0)
	date(&form.Until, &filter.Until, 1)
	return form, filter
}

func (s *Server) auditPage(w http.ResponseWriter, r *http.Request, v visitor) error {
	query := r.URL.Query()
	form, filter := readAuditForm(query)
	filter.Limit = auditPerPage + 1 // one more, to know whether there are older ones
	if before := query.Get("before"); before != "" {
		id, err := strconv.ParseInt(before, 10, 64)
		if err != nil || id < 1 {
			return errNoPage
		}
		filter.Before = id
	}
	entries, err := s.cfg.Audit.List(r.Context(), filter)
	if err != nil {
		return err
	}
	head, err := s.cfg.Audit.Head(r.Context())
	if err != nil {
		return err
	}
	view := auditView{Filter: form, Actions: []roleView{{"", "Everything"}}, Head: head.Hash.String()}
	for _, a := range audit.Actions() {
		view.Actions = append(view.Actions, roleView{a.Name, sentenceCase(a.Words)})
	}
	if len(entries) > auditPerPage {
		entries = entries[:auditPerPage]
		view.Older = form.query(entries[auditPerPage-1].ID)
	}
	if filter.Before > 0 {
		view.Newest = form.query(0)
	}
	for i := range entries {
		view.Rows = append(view.Rows, auditRowOf(&entries[i]))
	}
	s.render(w, r, http.StatusOK, auditPage(s.page(w, r, v, "Audit log", ""), view))
	return nil
}

func auditRowOf(e *audit.Entry) auditRow {
	row := auditRow{ID: strconv.FormatInt(e.ID, 10), Time: e.At.Local().Format("2 Jan 2006 15:04:05"),
		Exact: e.At.Format(time.RFC3339Nano),
		Actor: e.Actor, Action: audit.Words(e.Action), Name: e.Action, Target: e.Target, Detail: e.Detail,
		Remote: e.Remote}
	if e.Target == e.Actor {
		row.Target = "" // people do most to themselves
	}
	return row
}

func sentenceCase(text string) string { return strings.ToUpper(text[:1]) + text[1:] }

// exportAudit sends what is filtered as a file, as it is read. That somebody
// exports is recorded first, so that it stands in the export itself.
func (s *Server) exportAudit(w http.ResponseWriter, r *http.Request, v visitor) error {
	_, filter := readAuditForm(r.PostForm)
	format := audit.Format(r.PostForm.Get("format"))
	kind := map[audit.Format]string{audit.CSV: "text/csv; charset=utf-8",
		audit.JSON: "application/json"}[format]
	if kind == "" {
		return errNoPage
	}
	s.audit(r, v, "audit.export", "", string(format)+filter.Words())
	// The server's limit for a request to arrive would cut a long answer off.
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	w.Header().Set("Content-Type", kind)
	w.Header().Set("Content-Disposition", `attachment; filename="gpulab-audit-`+s.now().Format(time.DateOnly)+"."+
		string(format)+`"`)
	if err := s.cfg.Audit.Export(r.Context(), w, format, filter); err != nil {
		if r.Context().Err() == nil {
			s.cfg.Log.Error("audit export broke off", "error", err)
		}
		panic(http.ErrAbortHandler) // part of it is sent: the browser must see that it is not all
	}
	return nil
}
