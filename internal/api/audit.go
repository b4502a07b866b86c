package api

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/gpulab/gpulab/internal/audit"
	"github.com/gpulab/gpulab/internal/users"
)

// AuditEntry is one line of the audit log.
type AuditEntry struct {
	ID     int64     `json:"id" doc:"Without gaps"`
	At     time.Time `json:"at"`
	Actor  string    `json:"actor" doc:"A sign-in name, root for the command line on the head machine, or system"`
	Action string    `json:"action"`
	Words  string    `json:"words" doc:"The action for people"`
	Target string    `json:"target,omitempty"`
	Detail string    `json:"detail,omitempty"`
	Remote string    `json:"remote,omitempty"`
	Prev   string    `json:"prev" doc:"Hash of the entry before, in hexadecimal"`
	Hash   string    `json:"hash"`
}

// AuditList is one page of the log, the newest first.
type AuditList struct {
	Entries []AuditEntry `json:"entries"`
}

type auditInput struct {
	AuditFilter
	Before int64 `query:"before" minimum:"1" doc:"Entries with a smaller number only: how to go on where a page ended; the header Link says it"`
	Limit  int   `query:"limit" default:"50" minimum:"1" maximum:"500"`
}

// AuditFilter says which entries are asked for.
type AuditFilter struct {
	Person  string    `query:"person" json:"person,omitempty" maxLength:"64" doc:"Who did it, or to whom"`
	Action  string    `query:"action" json:"action,omitempty" maxLength:"64"`
	Address string    `query:"address" json:"address,omitempty" maxLength:"64" doc:"From where; the beginning of one ends with . or :"`
	Since   time.Time `query:"since" json:"since,omitempty" doc:"From this time on"`
	Until   time.Time `query:"until" json:"until,omitempty" doc:"Before this time"`
}

func (f AuditFilter) filter() audit.Filter {
	return audit.Filter{
		Person: strings.TrimSpace(f.Person), Action: strings.TrimSpace(f.Action), Remote: strings.TrimSpace(f.Address),
		Since: f.Since, Until: f.Until,
	}
}

type auditPage struct {
	Link string `header:"Link"`
	Body AuditList
}

type exportInput struct {
	Body struct {
		AuditFilter
		Format string `json:"format" enum:"csv,json"`
	}
}

func (s *Server) addAudit() {
	add(s, Operation{Method: "GET", Path: "/audit", ID: "listAudit", Need: users.ActionSeeAudit, tag: "audit",
		summary: "The audit log, filtered, the newest first"}, s.listAudit)
	add(s, Operation{Method: "POST", Path: "/audit/export", ID: "exportAudit", Need: users.ActionSeeAudit, tag: "audit",
		summary: "Export the audit log as a file",
		description: "The oldest first. That somebody exports is itself recorded. JSON is what `gpulab audit verify " +
			"--file` checks."}, s.exportAudit)
	export := s.api.OpenAPI().Paths["/audit/export"].Post
	export.Responses["200"] = &huma.Response{Description: "The log", Content: map[string]*huma.MediaType{
		"text/csv":         {Schema: &huma.Schema{Type: huma.TypeString}},
		"application/json": {Schema: &huma.Schema{Type: huma.TypeObject}},
	}}
}

func (s *Server) listAudit(ctx context.Context, c *call, in *auditInput) (*auditPage, error) {
	filter := in.filter()
	filter.Before, filter.Limit = in.Before, in.Limit+1 // one more, to know whether there are older ones
	entries, err := s.cfg.Audit.List(ctx, filter)
	if err != nil {
		return nil, err
	}
	out := auditPage{Body: AuditList{Entries: []AuditEntry{}}}
	if len(entries) > in.Limit {
		entries = entries[:in.Limit]
		out.Link = link(c, "next", "before", int(entries[in.Limit-1].ID))
	}
	for i := range entries {
		e := &entries[i]
		out.Body.Entries = append(out.Body.Entries,
			AuditEntry{ID: e.ID, At: e.At, Actor: e.Actor, Action: e.Action, Words: audit.Words(e.Action),
				Target: e.Target, Detail: e.Detail, Remote: e.Remote, Prev: e.Prev.String(), Hash: e.Hash.String()})
	}
	return &out, nil
}

// exportAudit sends what is filtered as it is read. That somebody exports is recorded first, so that it stands in the
// export itself.
func (s *Server) exportAudit(ctx context.Context, c *call, in *exportInput) (*huma.StreamResponse, error) {
	filter, format := in.Body.filter(), audit.Format(in.Body.Format)
	kind := map[audit.Format]string{audit.CSV: "text/csv; charset=utf-8",
		audit.JSON: "application/json"}[format]
	s.audit(ctx, c, "audit.export", "", string(format)+filter.Words())
	return &huma.StreamResponse{Body: func(to huma.Context) {
		// The server's limit for a request to arrive would cut a long answer off.
		_, w := humago.Unwrap(to)
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
		to.SetHeader("Content-Type", kind)
		to.SetHeader("Content-Disposition", `attachment; filename="gpulab-audit-`+s.now().Format(time.DateOnly)+"."+
			string(format)+`"`)
		if err := s.cfg.Audit.Export(ctx, to.BodyWriter(), format, filter); err != nil {
			if ctx.Err() == nil {
				s.cfg.Log.Error("audit export broke off", "error", err)
			}
			panic(http.ErrAbortHandler) // part of it is sent: the program must see that it is not all
		}
	}}, nil
}
