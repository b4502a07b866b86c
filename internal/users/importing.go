package users

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/gpulab/gpulab/internal/audit"
)

// ImportStatus is what becomes of a row.
type ImportStatus string

// What can become of a row.
const (
	ImportNew     ImportStatus = "new"
	ImportExists  ImportStatus = "exists"
	ImportSkipped ImportStatus = "skipped" // no person: an account of the system
	ImportWrong   ImportStatus = "error"
)

// How long the links of an import work.
const (
	ImportLinkTTL    = 7 * 24 * time.Hour
	MaxImportLinkTTL = 30 * 24 * time.Hour
)

// ImportOptions say how to import.
type ImportOptions struct {
	Role       Role          // where the list names none; member if empty
	Group      string        // where the list names none; empty for none
	MakeGroups bool          // groups that are not there yet
	DropWrong  bool          // import the good rows although others have errors
	LinkTTL    time.Duration // ImportLinkTTL if 0
	// Expect, if not empty, is the Digest of the plan that somebody has agreed to: a lab that has changed since imports
	// nothing.
	Expect string
}

// PlannedRow is what becomes of one row.
type PlannedRow struct {
	Line   int          `json:"line"`
	Status ImportStatus `json:"status"`
	Handle string       `json:"handle"` // made from the login, the name or the address where the list has none
	Name   string       `json:"name"`
	Email  string       `json:"email,omitempty"`
	Role   Role         `json:"role,omitempty"`
	Group  string       `json:"group,omitempty"` // that they join; empty where they are in it
	UID    int          `json:"uid,omitempty"`   // kept from a Linux account
	Text   string       `json:"text,omitempty"`  // a sentence: what is wrong, or worth knowing
}

// ImportPlan is what an import does, row by row. Nothing of it is done yet.
type ImportPlan struct {
	Rows    []PlannedRow `json:"rows"`
	New     int          `json:"new"`
	Exists  int          `json:"exists"`
	Skipped int          `json:"skipped"`
	Wrong   int          `json:"errors"`
	Groups  []string     `json:"newGroups"`      // that are made
	Ignored []string     `json:"ignoredColumns"` // columns that mean nothing here
}

// Joins counts the rows of people who have an account and join a group.
func (p *ImportPlan) Joins() int {
	n := 0
	for i := range p.Rows {
		if p.Rows[i].Status == ImportExists && p.Rows[i].Group != "" {
			n++
		}
	}
	return n
}

// Digest tells one plan from another.
func (p *ImportPlan) Digest() string {
	h := sha256.New()
	for i := range p.Rows {
		r := &p.Rows[i]
		fmt.Fprintf(h, "%d %s %q %q %q %s %q %d\n", r.Line, r.Status, r.Handle, r.Name, r.Email, r.Role, r.Group, r.UID)
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

func (p *ImportPlan) add(r PlannedRow) {
	p.Rows = append(p.Rows, r)
	switch r.Status {
	case ImportNew:
		p.New++
	case ImportExists:
		p.Exists++
	case ImportSkipped:
		p.Skipped++
	case ImportWrong:
		p.Wrong++
	}
}

// PersonalLink is the way in for one imported person.
type PersonalLink struct {
	Handle  string    `json:"handle"`
	Name    string    `json:"name"`
	Email   string    `json:"email,omitempty"`
	Token   string    `json:"-"`
	URL     string    `json:"url"` // filled in by who knows the lab's address
	Expires time.Time `json:"expires"`
}

// PlanImport says what importing the list would do, and changes nothing. The errors are those of ParseImport, of a role
// or a number of days that cannot be, and ErrGroupNotFound for opts.Group.
func (s *Service) PlanImport(ctx context.Context, text []byte, opts ImportOptions) (ImportPlan, error) {
	list, opts, err := readImport(text, opts)
	if err != nil {
		return ImportPlan{}, err
	}
	known, err := s.loadKnown(ctx, s.db)
	if err != nil {
		return ImportPlan{}, err
	}
	return planList(list, opts, known)
}

// Import does what PlanImport says, all of it or nothing, and returns a link for each new person, which stand nowhere
// else. Rows with errors stop it, ErrImportStopped, unless opts.DropWrong; so does a plan that is not opts.Expect any
// more. The plan is returned in both cases. who is the actor, with where from, of the entries in the audit log.
func (s *Service) Import(ctx context.Context, who audit.Entry, text []byte,
	opts ImportOptions) (ImportPlan, []PersonalLink, error) {
	list, opts, err := readImport(text, opts)
	if err != nil {
		return ImportPlan{}, nil, err
	}
	return s.carryOut(ctx, who, opts, func(known *known) (ImportPlan, error) { return planList(list, opts, known) })
}

func readImport(text []byte, opts ImportOptions) (ImportList, ImportOptions, error) {
	if opts.Role == "" {
		opts.Role = RoleMember
	}
	opts.Group = fold(opts.Group)
	opts, err := opts.checked()
	if err != nil {
		return ImportList{}, opts, err
	}
	list, err := ParseImport(text)
	return list, opts, err
}

func (o ImportOptions) checked() (ImportOptions, error) {
	if o.LinkTTL == 0 {
		o.LinkTTL = ImportLinkTTL
	}
	if o.LinkTTL < 0 || o.LinkTTL > MaxImportLinkTTL {
		return o, sentence(ErrDaysInvalid, "The links work for 1 to %d days.", MaxImportLinkTTL/(24*time.Hour))
	}
	return o, checkRole(o.Role)
}

// carryOut plans once more inside the transaction, where nobody changes anything meanwhile, and does it.
func (s *Service) carryOut(ctx context.Context, who audit.Entry, opts ImportOptions,
	plan func(*known) (ImportPlan, error)) (ImportPlan, []PersonalLink, error) {
	var p ImportPlan
	var links []PersonalLink
	err := s.inTx(ctx, "import people", func(tx *sql.Tx) error {
		known, err := s.loadKnown(ctx, tx)
		if err != nil {
			return err
		}
		if p, err = plan(known); err != nil {
			return err
		}
		switch {
		case opts.Expect != "" && opts.Expect != p.Digest():
			return sentence(ErrImportStopped, "Nothing was imported: the lab has changed since you looked at the report. "+
				"Look at the new one.")
		case p.Wrong > 0 && !opts.DropWrong:
			return sentence(ErrImportStopped, "Nothing was imported: the list has %s. Mend what the report says, or import "+
				"the other rows without them.", plural(p.Wrong, "row")+" with errors")
		}
		links, err = s.write(ctx, tx, who, opts, &p, known)
		return err
	})
	if err != nil {
		return p, nil, err
	}
	s.cache.drop()
	return p, links, nil
}

func (s *Service) write(ctx context.Context, tx *sql.Tx, who audit.Entry, opts ImportOptions, p *ImportPlan,
	known *known) ([]PersonalLink, error) {
	for _, name := range p.Groups {
		res, err := tx.ExecContext(ctx, "INSERT INTO groups (name, title, created_at) VALUES (?, ?, ?)", name, name,
			s.now().UnixMilli())
		if err != nil {
			return nil, err
		}
		if known.groups[name], err = res.LastInsertId(); err != nil {
			return nil, err
		}
		if err := s.record(ctx, tx, who, "group.add", name, "import"); err != nil {
			return nil, err
		}
	}
	var links []PersonalLink
	for i := range p.Rows {
		r := &p.Rows[i]
		switch {
		case r.Status == ImportNew:
			link, err := s.writeNew(ctx, tx, who, opts, r, known)
			if err != nil {
				return nil, fmt.Errorf("line %d: %w", r.Line, err)
			}
			links = append(links, link)
		case r.Status == ImportExists && r.Group != "":
			if err := s.setMember(ctx, tx, known.groups[r.Group], User{ID: known.people[r.Handle].id}, false); err != nil {
				return nil, fmt.Errorf("line %d: %w", r.Line, err)
			}
			if err := s.record(ctx, tx, who, "group.member", r.Handle, "in "+r.Group+", by import"); err != nil {
				return nil, err
			}
		}
	}
	return links, s.record(ctx, tx, who, "user.import", "",
		fmt.Sprintf("%d new, %d there already, %d left out", p.New, p.Exists, p.Wrong+p.Skipped))
}

func (s *Service) record(ctx context.Context, tx *sql.Tx, who audit.Entry, action, target, detail string) error {
	return s.log.RecordIn(ctx, tx, audit.Entry{
		Actor: who.Actor, Action: action, Target: target, Detail: detail, Remote: who.Remote,
	})
}

func (s *Service) writeNew(ctx context.Context, tx *sql.Tx, who audit.Entry, opts ImportOptions, r *PlannedRow,
	known *known) (PersonalLink, error) {
	u, err := s.insert(ctx, tx, NewUser{Handle: r.Handle, Name: r.Name, Email: r.Email, Role: r.Role, keptUID: r.UID}, "")
	if err != nil {
		return PersonalLink{}, err
	}
	if r.Group != "" {
		if err := s.setMember(ctx, tx, known.groups[r.Group], u, r.Role == RoleLead); err != nil {
			return PersonalLink{}, err
		}
	}
	token, expires, err := s.insertLink(ctx, tx, PurposePassword, &u.ID, opts.LinkTTL)
	if err != nil {
		return PersonalLink{}, err
	}
	link := PersonalLink{Handle: u.Handle, Name: u.Name, Email: u.Email, Token: token, Expires: expires}
	return link, s.record(ctx, tx, who, "user.add", u.Handle, "import, "+RoleDetail(u.Role, r.Group))
}
