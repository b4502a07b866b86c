package users

import (
	"context"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/gpulab/gpulab/internal/audit"
)

// LinuxAccount is one line of a passwd file.
type LinuxAccount struct {
	Line     int
	Name     string
	UID, GID int
	Shown    string // from the field for the full name; may be empty
	Shell    string
	Wrong    string // why the line cannot be read; a sentence
}

// maxPasswd bounds a passwd file, in bytes.
const maxPasswd = 4 << 20

// ParsePasswd reads a file in the format of /etc/passwd. Comments and empty lines are left out; a line that cannot be
// read is there with the reason. ErrListInvalid where the file is none such.
func ParsePasswd(text []byte) ([]LinuxAccount, error) {
	if len(text) > maxPasswd {
		return nil, sentence(ErrListInvalid, "The file is larger than 4 MB, so it is no list of this machine's accounts.")
	}
	var list []LinuxAccount
	readable := 0
	for i, line := range strings.Split(string(text), "\n") {
		line = strings.TrimSuffix(line, "\r")
		if strings.TrimSpace(line) == "" || strings.HasPrefix(line, "#") {
			continue
		}
		a := passwdLine(line)
		a.Line = i + 1
		if a.Wrong == "" {
			readable++
		}
		list = append(list, a)
	}
	if readable == 0 {
		return nil, sentence(ErrListInvalid, "No line of the file is an account as in /etc/passwd (name:x:1000:1000:…).")
	}
	return list, nil
}

func passwdLine(line string) LinuxAccount {
	fields := strings.Split(line, ":")
	a := LinuxAccount{Name: audit.Tidy(fields[0], 64)}
	if strings.HasPrefix(line, "+") || strings.HasPrefix(line, "-") {
		a.Wrong = "It stands for accounts of a directory service, which are not in this file."
		return a
	}
	if len(fields) != 7 || a.Name == "" || a.Name != fields[0] {
		a.Wrong = "The line is no account: it needs seven fields with colons between them."
		return a
	}
	var errUID, errGID error
	a.UID, errUID = strconv.Atoi(fields[2])
	a.GID, errGID = strconv.Atoi(fields[3])
	if errUID != nil || errGID != nil || a.UID < 0 || a.GID < 0 {
		a.Wrong = "The line is no account: its third and fourth field are no numbers."
		return a
	}
	// The rest after a comma is room and telephone; & stands for the account's name.
	shown, _, _ := strings.Cut(fields[4], ",")
	a.Shown = strings.TrimSpace(audit.Tidy(strings.ReplaceAll(shown, "&", a.Name), 80))
	a.Shell = fields[6]
	return a
}

// noLogin are the programs that keep an account from signing in.
var noLogin = []string{"nologin", "false", "true", "sync", "shutdown", "halt"}

// PasswdOptions say which accounts of a passwd file to take, and how.
type PasswdOptions struct {
	MinUID, MaxUID int // others are left out
	ImportOptions
}

// PlanPasswd says what ImportPasswd would do, and changes nothing.
func (s *Service) PlanPasswd(ctx context.Context, text []byte, opts PasswdOptions) (ImportPlan, error) {
	accounts, opts, err := readPasswd(text, opts)
	if err != nil {
		return ImportPlan{}, err
	}
	known, err := s.loadKnown(ctx, s.db)
	if err != nil {
		return ImportPlan{}, err
	}
	return planPasswd(accounts, opts, known)
}

// ImportPasswd makes accounts for the people of a passwd file, who keep their UIDs, as Import does for a list. What
// cannot be taken is left out with the reason, and stops nothing.
func (s *Service) ImportPasswd(ctx context.Context, who audit.Entry, text []byte,
	opts PasswdOptions) (ImportPlan, []PersonalLink, error) {
	accounts, opts, err := readPasswd(text, opts)
	if err != nil {
		return ImportPlan{}, nil, err
	}
	opts.DropWrong = true
	return s.carryOut(ctx, who, opts.ImportOptions, func(known *known) (ImportPlan, error) {
		return planPasswd(accounts, opts, known)
	})
}

func readPasswd(text []byte, opts PasswdOptions) ([]LinuxAccount, PasswdOptions, error) {
	if opts.Role == "" {
		opts.Role = RoleMember
	}
	opts.Group = fold(opts.Group)
	var err error
	if opts.ImportOptions, err = opts.checked(); err != nil {
		return nil, opts, err
	}
	accounts, err := ParsePasswd(text)
	return accounts, opts, err
}

func planPasswd(accounts []LinuxAccount, opts PasswdOptions, k *known) (ImportPlan, error) {
	p := ImportPlan{Rows: []PlannedRow{}, Groups: []string{}, Ignored: []string{}}
	if opts.Group != "" {
		if err := CheckGroup(opts.Group); err != nil {
			return ImportPlan{}, err
		}
		if _, ok := k.groups[opts.Group]; !ok {
			if !opts.MakeGroups {
				return ImportPlan{}, sentence(ErrGroupNotFound, "There is no group %s. Choose one that is there, or let the "+
					"import make it.", quote(opts.Group))
			}
			p.Groups = append(p.Groups, opts.Group)
		}
	}
	handles, uids := map[string]int{}, map[int]int{}
	for _, a := range accounts {
		r := PlannedRow{
			Line: a.Line, Status: ImportNew, Handle: a.Name, Name: a.Shown, UID: a.UID, Role: opts.Role, Group: opts.Group,
		}
		if name, err := checkName(r.Name); err != nil || name == "" {
			r.Name = a.Name
		}
		if why := notAPerson(a, opts); why != "" {
			r.Status, r.Text, r.Role, r.Group = ImportSkipped, why, "", ""
			p.add(r)
			continue
		}
		r.Handle = a.Name
		if CheckHandle(a.Name) != nil {
			r.Handle = SuggestHandle(a.Name)
		}
		comparePasswd(&r, a, k, handles, uids)
		if r.Status != ImportWrong {
			handles[r.Handle], uids[a.UID] = a.Line, a.Line
		} else {
			r.Role, r.Group = "", ""
		}
		p.add(r)
	}
	if !slices.ContainsFunc(p.Rows, func(r PlannedRow) bool { return r.Group != "" }) {
		p.Groups = []string{}
	}
	return p, nil
}

// notAPerson says why an account is not somebody's to work with, "" where it is.
func notAPerson(a LinuxAccount, opts PasswdOptions) string {
	switch {
	case a.Wrong != "":
		return a.Wrong
	case a.UID < FirstKeptUID:
		return "It is an account of the system: people's numbers begin at 1000."
	case slices.Contains(noLogin, path.Base(a.Shell)):
		return "Nobody can sign in with it: its shell is " + audit.Tidy(a.Shell, 40) + "."
	case a.UID < opts.MinUID, a.UID > opts.MaxUID:
		return "Its number is outside " + strconv.Itoa(opts.MinUID) + "–" + strconv.Itoa(opts.MaxUID) +
			", which you asked for."
	case a.UID > LastUID:
		return "Its number is above those of people: it is an account of the system, or of a container."
	}
	return ""
}

// comparePasswd tells somebody new from somebody who is there, and from what cannot be.
func comparePasswd(r *PlannedRow, a LinuxAccount, k *known, handles map[string]int, uids map[int]int) {
	there, ok := k.people[r.Handle]
	owner, kept := k.uids[a.UID]
	wrong := func(text string) { r.Status, r.Text = ImportWrong, text }
	switch {
	case a.UID > LastKeptUID:
		wrong("gpulab uses the numbers 19999–59999 itself, so this one cannot be kept. Give the account a number below " +
			"19999 (usermod -u), or add the person with “gpulab user add” for a new one.")
	case handles[r.Handle] != 0:
		wrong("Line " + strconv.Itoa(handles[r.Handle]) + " comes to the same sign-in name.")
	case uids[a.UID] != 0:
		wrong("Line " + strconv.Itoa(uids[a.UID]) + " has the same number, so both are one person to Linux.")
	case ok && !there.removed && there.uid == a.UID:
		r.Status, r.Role, r.Name, r.Text = ImportExists, "", there.name, "The account is there already, with this number."
		if r.Group != "" && k.in[r.Group+" "+r.Handle] {
			r.Group = ""
		}
	case ok && !there.removed:
		wrong("The account " + r.Handle + " is there already with another number, and numbers never change.")
	case kept:
		wrong("The account " + owner + " has this number, or had it before it was removed.")
	case k.free(r.Handle) != nil:
		text, _ := Message(k.free(r.Handle))
		wrong(text)
	default:
		if r.Handle != a.Name {
			r.Text = "Signs in as " + r.Handle + ": " + quote(a.Name) + " cannot be a sign-in name. "
		}
		if a.GID != a.UID {
			// A home and its notebooks carry the UID as their group's number too.
			r.Text += "Its group here is " + strconv.Itoa(a.GID) + "; in notebooks the group's number is " +
				strconv.Itoa(a.UID) + "."
		}
		r.Text = strings.TrimSpace(r.Text)
	}
}
