package users

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/gpulab/gpulab/internal/audit"
	"golang.org/x/text/unicode/norm"
)

// What goes wrong with importing people. ErrListInvalid is about the list as a whole, ErrImportStopped about rows of
// it.
var (
	ErrListInvalid   = errors.New("list cannot be read")
	ErrImportStopped = errors.New("nothing imported")
)

// How much a list may hold.
const (
	MaxImportRows  = 2000
	MaxImportBytes = 1 << 20

	maxImportColumns = 100
)

// ImportRow is one person as a list has them; what is not said is empty.
type ImportRow struct {
	Line                             int // in the file, from 1
	Name, Handle, Email, Role, Group string
	Login                            string // sign-in name in another system, from which one here is made
	Wrong                            string // why the row itself cannot be read; a sentence
}

// ImportList is what a file of comma-separated values says.
type ImportList struct {
	Rows    []ImportRow
	Ignored []string // columns that mean nothing here, as they are written
	// TheirGroups is the column of another system that the rows' groups are from, "" for gpulab's own.
	TheirGroups string
}

// A meaning is what a column of a list is about.
type meaning int

const (
	unknownMeaning meaning = iota
	nameMeaning
	handleMeaning
	emailMeaning
	roleMeaning
	groupMeaning
	// The rest are columns of other systems.
	wholeNameMeaning
	firstMeaning
	usageNameMeaning // French nom d'usage, which comes before the last name
	lastMeaning
	birthNameMeaning  // the last name where there is no other
	secondLastMeaning // follows the last name
	loginMeaning
	theirEmailMeaning
	theirGroupMeaning
	participantMeaning // a whole name, where no other column has it
	meanings
)

// ownColumns are gpulab's own columns, by their name in lower case without signs. They come before those of other
// systems.
var ownColumns = map[string]meaning{
	"name": nameMeaning, "handle": handleMeaning, "email": emailMeaning, "role": roleMeaning, "group": groupMeaning,
}

// theirColumns are those of campus systems in English, German, French and Spanish, by the name that columnKey makes.
var theirColumns = func() map[string]meaning {
	columns := map[string]meaning{}
	for what, names := range map[meaning][]string{
		wholeNameMeaning: {
			"fullname displayname studentname vollstandigername nomcomplet nomprenom",
			"nom nombre nombrecompleto nombreyapellidos",
		},
		firstMeaning: {
			"first firstname firstnames given givenname givennames forename forenames",
			"vorname vornamen rufname prenom prenoms nombres nombredepila firstnameofstudent",
		},
		lastMeaning: {
			"last lastname surname familyname nachname familienname zuname nomdefamille",
			"apellido apellidos primerapellido familynameofstudent",
		},
		participantMeaning: {"student teilnehmer participant"},
		usageNameMeaning:   {"nomdusage"},
		birthNameMeaning:   {"nomdenaissance nompatronymique"},
		secondLastMeaning:  {"segundoapellido"},
		loginMeaning: {
			"login loginname loginid sisloginid username userlogin netid unikennung kennung benutzer benutzername",
			"benutzerkennung nutzername nutzerkennung anmeldename identifiant nomdutilisateur utilisateur",
			"usuario nombredeusuario",
		},
		theirEmailMeaning: {
			"emailaddress mail mailaddress emailadresse mailadresse adressemail adresseemail adresseelectronique",
			"courriel adressecourriel adressedecourriel correo correoelectronico direcciondecorreo",
			"direcciondecorreoelectronico",
		},
		theirGroupMeaning: {"groups gruppe gruppen groupe groupes grupo grupos"},
	} {
		for _, name := range strings.Fields(strings.Join(names, " ")) {
			columns[name] = what
		}
	}
	return columns
}()

var withoutSigns = strings.NewReplacer("-", "", "_", "", " ", "")

// meaningOf is what a column is about by its name alone.
func meaningOf(cell string) meaning {
	own := withoutSigns.Replace(strings.ToLower(strings.TrimSpace(clip(cell, 40))))
	return cmp.Or(ownColumns[own], theirColumns[columnKey(cell)])
}

// columnKey is the name of a column without case, accents and signs.
func columnKey(cell string) string {
	var key strings.Builder
	for _, c := range norm.NFD.String(strings.ToLower(clip(cell, 60))) {
		if c >= 'a' && c <= 'z' || c >= '0' && c <= '9' {
			key.WriteRune(c)
		}
	}
	return key.String()
}

// ParseImport reads a list of people: UTF-8, or UTF-16 with a byte order mark; cells between commas, semicolons or
// tabs, in quotes where they hold one of those; the first line names the columns, in any order and case. Anything that
// makes the whole list unreadable is an ErrListInvalid.
func ParseImport(text []byte) (ImportList, error) {
	plain, err := importText(text)
	if err != nil {
		return ImportList{}, err
	}
	r := csv.NewReader(strings.NewReader(plain))
	r.Comma, r.FieldsPerRecord = separator(plain), -1
	header, err := r.Read()
	if errors.Is(err, io.EOF) {
		return ImportList{}, sentence(ErrListInvalid, "The list is empty. Its first line names the columns, such as "+
			"name,email.")
	}
	if err != nil {
		return ImportList{}, brokenLine(err)
	}
	columns, err := columnsOf(header)
	if err != nil {
		return ImportList{}, err
	}
	list := ImportList{Ignored: columns.ignored}
	for {
		cells, err := r.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return ImportList{}, brokenLine(err)
		}
		line, _ := r.FieldPos(0)
		if row, ok := columns.row(line, cells); ok {
			if len(list.Rows) == MaxImportRows {
				return ImportList{}, sentence(ErrListInvalid, "The list has more than %d people. Split it.", MaxImportRows)
			}
			list.Rows = append(list.Rows, row)
		}
	}
	columns.theirGroups(&list)
	if len(list.Rows) == 0 {
		return ImportList{}, sentence(ErrListInvalid, "The list names its columns, but nobody below them. Add a line for "+
			"each person.")
	}
	return list, nil
}

// importText is the text without its mark, with plain line ends.
func importText(text []byte) (string, error) {
	text = ListText(text)
	switch {
	case bytes.IndexByte(text, 0) >= 0:
		return "",
			sentence(ErrListInvalid, "The file is no text, or it is UTF-16 that is cut short or has no byte order mark. "+
				"Save it as “CSV UTF-8” and try again.")
	case !utf8.Valid(text):
		return "", sentence(ErrListInvalid, "The file is text in an old encoding, so its ä and é would be lost. Save it as "+
			"“CSV UTF-8” and try again.")
	}
	plain := strings.TrimPrefix(string(text), "\ufeff")
	plain = strings.ReplaceAll(strings.ReplaceAll(plain, "\r\n", "\n"), "\r", "\n")
	if len(plain) > MaxImportBytes {
		return "",
			sentence(ErrListInvalid, "The list is larger than 1 MB. Split it, or leave columns out that are not needed.")
	}
	// Spreadsheets write and read this line; it is no row.
	if first, rest, _ := strings.Cut(plain, "\n"); len(first) == 5 && strings.EqualFold(first[:4], "sep=") {
		plain = "\n" + rest // lines keep their numbers
	}
	return plain, nil
}

// ListText returns a list as UTF-8. It converts UTF-16 with a byte order mark, which spreadsheets call “Unicode text”.
func ListText(text []byte) []byte {
	var order binary.ByteOrder
	switch {
	case len(text)%2 != 0:
		return text
	case bytes.HasPrefix(text, []byte{0xff, 0xfe}):
		order = binary.LittleEndian
	case bytes.HasPrefix(text, []byte{0xfe, 0xff}):
		order = binary.BigEndian
	default:
		return text
	}
	units := make([]uint16, 0, len(text)/2)
	for i := 0; i < len(text); i += 2 {
		units = append(units, order.Uint16(text[i:]))
	}
	return []byte(string(utf16.Decode(units)))
}

// separator is the sign under which the first line names the most columns.
func separator(plain string) rune {
	first, _, _ := strings.Cut(strings.TrimLeft(plain, "\n"), "\n")
	best, most := ',', -1
	for _, sign := range []rune{',', ';', '\t'} {
		r := csv.NewReader(strings.NewReader(first))
		r.Comma = sign
		cells, err := r.Read()
		if err != nil {
			continue
		}
		known := 0
		for _, cell := range cells[:min(len(cells), maxImportColumns)] {
			if meaningOf(cell) != unknownMeaning {
				known++
			}
		}
		// As many known ones: rather the sign that parts anything at all.
		if score := known*1000 + min(len(cells), 999); score > most {
			best, most = sign, score
		}
	}
	return best
}

// listColumns says which column of a list has which meaning.
type listColumns struct {
	header  []string
	at      [meanings]int // the column of a meaning, -1 for none
	ignored []string
	canvas  bool // it is a list as Canvas exports it
}

// columnsOf finds what the columns mean. Of several with the same meaning the first counts; gpulab's own come before
// those of other systems.
func columnsOf(header []string) (*listColumns, error) {
	if len(header) > maxImportColumns {
		return nil, sentence(ErrListInvalid,
			"The first line names more than %d columns. Leave those out that are not needed.",
			maxImportColumns)
	}
	c := &listColumns{header: header}
	for what := range c.at {
		c.at[what] = -1
	}
	for i, cell := range header {
		what := meaningOf(cell)
		if what == unknownMeaning {
			continue
		}
		if c.at[what] < 0 {
			c.at[what] = i
		} else if what <= groupMeaning {
			return nil, sentence(ErrListInvalid, "The first line names the column %s twice. Leave one of them out.",
				quote(strings.TrimSpace(cell)))
		}
	}
	c.sortNames()
	c.canvas = c.noneOf(nameMeaning, handleMeaning, emailMeaning) && slices.ContainsFunc(header, func(cell string) bool {
		return columnKey(cell) == "sisloginid" || columnKey(cell) == "student"
	})
	if c.at[handleMeaning] >= 0 {
		c.at[loginMeaning] = -1
	}
	if c.at[emailMeaning] >= 0 {
		c.at[theirEmailMeaning] = -1
	}
	if c.at[groupMeaning] >= 0 {
		c.at[theirGroupMeaning] = -1
	}
	if c.noneOf(nameMeaning, handleMeaning, emailMeaning, wholeNameMeaning, firstMeaning, usageNameMeaning,
		lastMeaning, birthNameMeaning, loginMeaning, theirEmailMeaning) {
		return nil, sentence(ErrListInvalid, "The first line names none of the columns name, handle and email. Write "+
			"their names above the list.")
	}
	for i, cell := range header {
		if cell = audit.Tidy(strings.TrimSpace(cell), 40); cell != "" && !slices.Contains(c.at[:], i) {
			c.ignored = append(c.ignored, cell)
		}
	}
	return c, nil
}

// sortNames decides which columns make the name. Name beside Vorname, Nom beside Prénom and Nombre beside Apellidos are
// half a name each. First and last name come before a whole one of another system, and gpulab's own before all.
func (c *listColumns) sortNames() {
	at := &c.at
	key := func(what meaning) string {
		if at[what] < 0 {
			return ""
		}
		return columnKey(c.header[at[what]])
	}
	switch key(firstMeaning) {
	case "vorname", "vornamen", "rufname":
		if key(nameMeaning) == "name" && c.noneOf(lastMeaning) {
			at[lastMeaning], at[nameMeaning] = at[nameMeaning], -1
		}
	case "":
		if key(wholeNameMeaning) == "nombre" && at[lastMeaning] >= 0 {
			at[firstMeaning], at[wholeNameMeaning] = at[wholeNameMeaning], -1
		}
	default:
		if key(wholeNameMeaning) == "nom" && c.noneOf(lastMeaning) {
			at[lastMeaning], at[wholeNameMeaning] = at[wholeNameMeaning], -1
		}
	}
	if at[wholeNameMeaning] < 0 {
		at[wholeNameMeaning] = at[participantMeaning]
	}
	at[participantMeaning] = -1
	switch {
	case at[nameMeaning] >= 0:
		at[wholeNameMeaning] = -1
		c.dropParts()
	case at[firstMeaning] >= 0 && !c.noneOf(usageNameMeaning, lastMeaning, birthNameMeaning):
		at[wholeNameMeaning] = -1
	case at[wholeNameMeaning] >= 0:
		c.dropParts()
	}
}

// dropParts ignores the columns with parts of a name.
func (c *listColumns) dropParts() {
	for _, what := range []meaning{firstMeaning, usageNameMeaning, lastMeaning, birthNameMeaning, secondLastMeaning} {
		c.at[what] = -1
	}
}

func (c *listColumns) noneOf(what ...meaning) bool {
	return !slices.ContainsFunc(what, func(m meaning) bool { return c.at[m] >= 0 })
}

// row reports false for an empty row, and for Canvas's rows that are not people.
func (c *listColumns) row(line int, cells []string) (ImportRow, bool) {
	row, written := ImportRow{Line: line}, false
	for i, cell := range cells {
		cells[i] = strings.TrimSpace(cell)
		written = written || cells[i] != ""
		if i >= len(c.header) && cells[i] != "" {
			row.Wrong = fmt.Sprintf("The row has %d cells, but the first line names %d columns. A name with a comma in it "+
				"needs quotes.", len(cells), len(c.header))
		}
	}
	cell := func(what meaning) string {
		if i := c.at[what]; i >= 0 && i < len(cells) {
			return cells[i]
		}
		return ""
	}
	whole, first := cell(wholeNameMeaning), cell(firstMeaning)
	last := cmp.Or(cell(usageNameMeaning), cell(lastMeaning), cell(birthNameMeaning))
	if c.canvas {
		switch {
		case strings.EqualFold(cells[0], "Points Possible"), whole == "Student, Test", last == "Student" && first == "Test",
			whole+first+last+cell(loginMeaning)+cell(theirEmailMeaning) == "": // such as Manual Posting
			return row, false
		}
		if l, f, has := strings.Cut(whole, ","); has && !strings.Contains(f, ",") {
			whole = strings.TrimSpace(f) + " " + strings.TrimSpace(l)
		}
	}
	parts := strings.Join(strings.Fields(first+" "+last+" "+cell(secondLastMeaning)), " ")
	row.Name = cmp.Or(cell(nameMeaning), strings.TrimSpace(whole), parts)
	row.Handle, row.Role, row.Login = cell(handleMeaning), cell(roleMeaning), cell(loginMeaning)
	row.Email = cmp.Or(cell(emailMeaning), cell(theirEmailMeaning))
	row.Group = cmp.Or(cell(groupMeaning), cell(theirGroupMeaning))
	return row, written
}

// theirGroups says which column of another system the groups are from. It is ignored if one of its cells is not a name
// that a group here can have, such as "Tutorial 3" or several names.
func (c *listColumns) theirGroups(list *ImportList) {
	if at := c.at[theirGroupMeaning]; at >= 0 {
		list.TheirGroups = audit.Tidy(strings.TrimSpace(c.header[at]), 40)
	}
	if slices.ContainsFunc(list.Rows, func(r ImportRow) bool {
		return r.Group != "" && CheckGroup(fold(r.Group)) != nil
	}) {
		list.dropTheirGroups()
	}
}

// dropTheirGroups ignores the groups if they are another system's.
func (l *ImportList) dropTheirGroups() {
	if l.TheirGroups == "" {
		return
	}
	for i := range l.Rows {
		l.Rows[i].Group = ""
	}
	l.Ignored = append(l.Ignored, l.TheirGroups)
	l.TheirGroups = ""
}

func brokenLine(err error) error {
	var p *csv.ParseError
	if !errors.As(err, &p) {
		return fmt.Errorf("read a list of people: %w", err)
	}
	return sentence(ErrListInvalid, "The quotes in line %d do not match. A cell in quotes begins and ends with one; a "+
		"quote inside it is written twice.", p.StartLine)
}
