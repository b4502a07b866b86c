package users

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gpulab/gpulab/internal/audit"
	"github.com/gpulab/gpulab/internal/store"
)

// known is who and what is there already.
type known struct {
	people map[string]knownPerson // by handle, removed ones too
	emails map[string]string      // e-mail in lower case → handle
	asked  map[string]bool        // handles that somebody asked for
	groups map[string]int64
	in     map[string]bool // "group handle"
	uids   map[int]string  // kept from Linux accounts → handle, removed ones too
}

type knownPerson struct {
	id                int64
	name, email       string
	uid               int // kept; 0 for none
	removed, suspends bool
}

func (s *Service) loadKnown(ctx context.Context, q store.Asker) (*known, error) {
	k := &known{
		people: map[string]knownPerson{}, emails: map[string]string{}, asked: map[string]bool{}, groups: map[string]int64{},
		in: map[string]bool{}, uids: map[int]string{},
	}
	each := func(query string, one func(store.Row) error) error {
		_, err := store.All(ctx, q, func(row store.Row) (struct{}, error) { return struct{}{}, one(row) }, query)
		return err
	}
	err := errors.Join(
		each("SELECT id, handle, name, email, coalesce(kept_uid, 0), removed_at IS NOT NULL, suspended_at IS NOT NULL "+
			"FROM users", func(row store.Row) error {
			var handle string
			var p knownPerson
			err := row.Scan(&p.id, &handle, &p.name, &p.email, &p.uid, &p.removed, &p.suspends)
			k.people[handle] = p
			if p.email != "" && !p.removed {
				k.emails[strings.ToLower(p.email)] = handle
			}
			if p.uid != 0 {
				k.uids[p.uid] = handle
			}
			return err
		}),
		each("SELECT handle FROM signups", func(row store.Row) error {
			var handle string
			err := row.Scan(&handle)
			k.asked[handle] = true
			return err
		}),
		each("SELECT id, name FROM groups", func(row store.Row) error {
			var name string
			var id int64
			err := row.Scan(&id, &name)
			k.groups[name] = id
			return err
		}),
		each("SELECT g.name, u.handle FROM group_members m JOIN groups g ON g.id = m.group_id JOIN users u ON u.id = "+
			"m.user_id", func(row store.Row) error {
			var group, handle string
			err := row.Scan(&group, &handle)
			k.in[group+" "+handle] = true
			return err
		}))
	if err != nil {
		return nil, fmt.Errorf("look up who is there: %w", err)
	}
	return k, nil
}

// free reports whether nobody has, had or asked for a handle; the error says who.
func (k *known) free(handle string) error {
	p, there := k.people[handle]
	switch {
	case p.removed:
		return sentence(ErrHandleTaken, "The name %s belonged to somebody who left, and is not given to anybody else. "+
			"Choose another one.", handle)
	case there:
		return sentence(ErrHandleTaken, "The name %s is taken. Choose another one.", handle)
	case k.asked[handle]:
		return sentence(ErrHandleTaken, "Somebody has asked for an account with the name %s, and no admin has decided "+
			"yet. Decide about that first.", handle)
	}
	return nil
}

// planList decides about each row of a list. It is the same for a look and for the import.
func planList(list ImportList, opts ImportOptions, k *known) (ImportPlan, error) {
	if opts.Group != "" {
		if err := CheckGroup(opts.Group); err != nil {
			return ImportPlan{}, err
		}
		if _, ok := k.groups[opts.Group]; !ok && !opts.MakeGroups {
			return ImportPlan{}, sentence(ErrGroupNotFound, "There is no group %s. Choose one that is there, or let the "+
				"import make it.", quote(opts.Group))
		}
	}
	if opts.Group != "" || !opts.MakeGroups && slices.ContainsFunc(list.Rows, func(r ImportRow) bool {
		_, there := k.groups[fold(r.Group)]
		return r.Group != "" && !there
	}) {
		list.dropTheirGroups()
	}
	p := ImportPlan{Rows: []PlannedRow{}, Groups: []string{}, Ignored: slices.Concat([]string{}, list.Ignored)}
	l := lister{
		opts: opts, known: k, handles: map[string]int{}, emails: map[string]int{}, wanted: map[string]bool{},
		tried: map[string]int{},
	}
	for _, row := range list.Rows {
		l.wanted[row.Handle] = true // names that are written down come before those that are made
	}
	for _, row := range list.Rows {
		planned, err := l.plan(row)
		if err != nil {
			text, ok := Message(err)
			if !ok {
				return ImportPlan{}, err
			}
			planned.Status, planned.Text = ImportWrong, text
		}
		if planned.Status != ImportWrong && planned.Group != "" {
			if _, ok := k.groups[planned.Group]; !ok && !slices.Contains(p.Groups, planned.Group) {
				p.Groups = append(p.Groups, planned.Group)
			}
		}
		p.add(planned)
	}
	return p, nil
}

// lister is the state on the way through a list.
type lister struct {
	opts            ImportOptions
	known           *known
	handles, emails map[string]int // → line
	wanted          map[string]bool
	tried           map[string]int // name made into a handle → how many are taken, so that many of one name are quick
}

func (l *lister) plan(row ImportRow) (PlannedRow, error) {
	r := PlannedRow{
		Line: row.Line, Status: ImportNew, Handle: audit.Tidy(row.Handle, maxHandle+10), Name: audit.Tidy(row.Name, 80),
		Email: audit.Tidy(row.Email, 254),
	}
	if row.Wrong != "" {
		return r, sentence(ErrImportStopped, "%s", row.Wrong)
	}
	if row.Name == "" && row.Handle == "" && row.Login == "" && row.Email == "" {
		return r, sentence(ErrNameInvalid,
			"The row has neither a name nor a sign-in name nor an e-mail address. Fill one in.")
	}
	n := NewUser{Handle: row.Handle, Name: row.Name, Email: row.Email, Role: l.opts.Role}
	if row.Role != "" {
		n.Role = Role(strings.ToLower(row.Role))
	}
	made := n.Handle == ""
	if made {
		n.Handle = l.handleFor(n, row.Login)
	}
	n, err := n.checked()
	if err != nil {
		if errors.Is(err, ErrHandleInvalid) && row.Handle != fold(row.Handle) &&
			errors.Is(l.known.free(fold(row.Handle)), ErrHandleTaken) {
			err = sentence(ErrHandleTaken, "The name %s differs from the existing name %s only by case. Write it in lower "+
				"case if it is the same person, or choose another one.", quote(row.Handle), fold(row.Handle))
		}
		return r, err
	}
	r.Handle, r.Name, r.Email, r.Role = n.Handle, n.Name, n.Email, n.Role
	if r.Group, err = l.group(row.Group); err != nil {
		return r, err
	}
	if line := l.handles[n.Handle]; line != 0 {
		return r, sentence(ErrHandleTaken, "Line %d has the name %s too. Leave one of them out, or choose another name.",
			line, n.Handle)
	}
	if line := l.emails[strings.ToLower(n.Email)]; line != 0 && n.Email != "" {
		return r, sentence(ErrEmailInvalid, "Line %d has the same e-mail address. Leave one of them out.", line)
	}
	l.handles[n.Handle] = r.Line
	l.emails[strings.ToLower(n.Email)] = r.Line
	return l.compare(r, made)
}

// compare tells somebody new from somebody who is there.
func (l *lister) compare(r PlannedRow, made bool) (PlannedRow, error) {
	there, ok := l.known.people[r.Handle]
	own := ok && strings.EqualFold(r.Email, there.email)
	if owner := l.known.emails[strings.ToLower(r.Email)]; r.Email != "" && !own && owner != "" && owner != r.Handle {
		return r, sentence(ErrEmailInvalid, "The account %s has this e-mail address. Write %s as the sign-in name if it "+
			"is the same person.", owner, owner)
	}
	if !ok || there.removed {
		if err := l.known.free(r.Handle); err != nil {
			return r, err
		}
		if made {
			r.Text = "The sign-in name is made from the list."
		}
		return r, nil
	}
	if r.Email != "" && there.email != "" && !strings.EqualFold(r.Email, there.email) {
		return r, sentence(ErrHandleTaken, "The account %s has another e-mail address, so it may be somebody else. Choose "+
			"another name, or leave the address out.", r.Handle)
	}
	r.Status, r.Role, r.Name, r.Email = ImportExists, "", there.name, there.email
	if r.Group != "" && l.known.in[r.Group+" "+r.Handle] {
		r.Group = ""
	}
	r.Text = "The account is there already and stays as it is."
	if r.Group != "" {
		r.Text = "The account is there already; it joins the group."
	}
	if there.suspends {
		r.Text += " It is suspended."
	}
	return r, nil
}

func (l *lister) group(named string) (string, error) {
	name := fold(named)
	if name == "" {
		return l.opts.Group, nil
	}
	if err := CheckGroup(name); err != nil {
		return "", err
	}
	if _, ok := l.known.groups[name]; !ok && !l.opts.MakeGroups {
		return "", sentence(ErrGroupNotFound, "There is no group %s. Let the import make it, or correct the name.",
			quote(name))
	}
	return name, nil
}

// handleOf makes a sign-in name from one of another system, "" from none: GA42 → ga42, a.lovelace@example.org →
// a-lovelace, CAMPUS\ada → ada.
func handleOf(login string) string {
	if _, name, has := strings.Cut(login, `\`); has {
		login = name
	}
	login, _, _ = strings.Cut(login, "@")
	login = fold(login)
	suggested := SuggestHandle(login)
	switch {
	case login != "" && CheckHandle(login) == nil:
		return login
	case suggested == SuggestHandle(""):
		return "" // nothing of it can be in a name here
	}
	return suggested
}

// handleFor makes a sign-in name for somebody without one: the one they have, when the list is imported again, or one
// that nobody has. It comes from the login of another system, the name, or the e-mail address.
func (l *lister) handleFor(n NewUser, login string) string {
	if owner := l.known.emails[strings.ToLower(strings.TrimSpace(n.Email))]; owner != "" && n.Email != "" {
		return owner
	}
	login = handleOf(login)
	if login != "" && n.Name == "" && n.Email == "" {
		return login // as if it were a handle: there is nothing else by which the account is known
	}
	var handle string
	if login != "" {
		var theirs bool
		if handle, theirs = l.numberedHandle(n, login); theirs {
			return handle
		}
	}
	source := n.Name
	if local, _, has := strings.Cut(n.Email, "@"); has && SuggestHandle(source) == SuggestHandle("") {
		source = local // there is no name, or one in a script that no sign-in name has
	}
	if named, theirs := l.numberedHandle(n, SuggestHandle(source)); handle == "" || theirs {
		return named
	}
	return handle
}

// numberedHandle is base, with a number if others have it; theirs reports that n has it already.
func (l *lister) numberedHandle(n NewUser, base string) (handle string, theirs bool) {
	whose := base + "\n" + n.Name + "\n" + strings.ToLower(n.Email)
	for i := l.tried[whose] + 1; ; i++ {
		l.tried[whose] = i - 1
		handle := numbered(base, i)
		if l.wanted[handle] || l.handles[handle] != 0 {
			continue
		}
		there := l.known.people[handle]
		same := !there.removed && there.name == n.Name && n.Name != "" &&
			(there.email == "" || n.Email == "" || strings.EqualFold(there.email, n.Email))
		if same || l.known.free(handle) == nil {
			return handle, same
		}
	}
}
