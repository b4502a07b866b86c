package users

import (
	"bytes"
	"encoding/binary"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// What goes wrong with importing people. ErrListInvalid is about the list as a whole, ErrImportStopped about rows of it.
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

	first, last string // of a name in two columns, which Name puts together
}

// ImportList is what a file of comma-separated values says.
type ImportList struct {
	Rows    []ImportRow
	Ignored []string // columns that mean nothing here, as they are written
}

// column is where a cell of a row goes.
type column func(*ImportRow) *string

func nameColumn(r *ImportRow) *string  { return &r.Name }
func firstColumn(r *ImportRow) *string { return &r.first }
func lastColumn(r *ImportRow) *string  { return &r.last }

// importColumns are the columns that mean something, by their name as columnKey simplifies it: gpulab's own, and those
// of campus systems (Moodle, Canvas, HISinOne, TUMonline, Apogée) in English, German, French and Spanish.
var importColumns = func() map[string]column {
	columns := map[string]column{}
	for names, to := range map[string]column{
		"name nom nombre student teilnehmer participant nomcomplet nomprenom nombrecompleto nombreyapellidos " +
			"fullname displayname studentname vollstandigername": nameColumn,
		"first firstname firstnames given givenname givennames forename forenames vorname vornamen rufname prenom prenoms " +
			"nombres nombredepila": firstColumn,
		"last lastname surname familyname nachname familienname zuname nomdefamille nomdusage apellido apellidos": lastColumn,
		"handle": func(r *ImportRow) *string { return &r.Handle },
		"login loginname loginid sisloginid username userlogin netid unikennung kennung benutzer benutzername " +
			"benutzerkennung nutzername nutzerkennung anmeldename identifiant nomdutilisateur utilisateur usuario " +
			"nombredeusuario": func(r *ImportRow) *string { return &r.Login },
		"email emailaddress mail mailaddress emailadresse mailadresse adressemail adresseemail adresseelectronique courriel " +
			"adressecourriel correo correoelectronico direcciondecorreo direcciondecorreoelectronico": func(r *ImportRow) *string {
			return &r.Email
		},
		"role": func(r *ImportRow) *string { return &r.Role },
		"group groups gruppe gruppen groupe groupes grupo grupos": func(r *ImportRow) *string { return &r.Group },
	} {
		for _, name := range strings.Fields(names) {
			columns[name] = to
		}
	}
	return columns
}()

func columnNamed(cell string) column { return importColumns[columnKey(cell)] }

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

// ParseImport reads a list of people: UTF-8, or UTF-16 with a byte order mark; cells between commas, semicolons or tabs,
// in quotes where they hold one of those; the first line names the columns, in any order and case. Anything that makes
// the whole list unreadable is an ErrListInvalid.
func ParseImport(text []byte) (ImportList, error) {
	plain, err := importText(text)
	if err != nil {
		return ImportList{}, err
	}
	r := csv.NewReader(strings.NewReader(plain))
	r.Comma, r.FieldsPerRecord = separator(plain), -1
	header, err := r.Read()
	if errors.Is(err, io.EOF) {
		return ImportList{}, sentence(ErrListInvalid, "The list is empty. Its first line names the columns, such as name,email.")
	}
	if err != nil {
		return ImportList{}, brokenLine(err)
	}
	var list ImportList
	columns, err := list.columns(header)
	if err != nil {
		return ImportList{}, err
	}
	for {
		cells, err := r.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return ImportList{}, brokenLine(err)
		}
		line, _ := r.FieldPos(0)
		if row, ok := readRow(line, cells, columns); ok {
			if len(list.Rows) == MaxImportRows {
				return ImportList{}, sentence(ErrListInvalid, "The list has more than %d people. Split it.", MaxImportRows)
			}
			list.Rows = append(list.Rows, row)
		}
	}
	if len(list.Rows) == 0 {
		return ImportList{}, sentence(ErrListInvalid, "The list names its columns, but nobody below them. Add a line for each person.")
	}
	return list, nil
}

// importText is the text without its mark, with plain line ends.
func importText(text []byte) (string, error) {
	switch {
	case bytes.HasPrefix(text, []byte{0xff, 0xfe}) && len(text)%2 == 0:
		text = fromUTF16(text, binary.LittleEndian)
	case bytes.HasPrefix(text, []byte{0xfe, 0xff}) && len(text)%2 == 0:
		text = fromUTF16(text, binary.BigEndian)
	}
	switch {
	case bytes.IndexByte(text, 0) >= 0:
		return "", sentence(ErrListInvalid, "The file is no text, or in an encoding that it does not name. Save it as “CSV UTF-8” and try again.")
	case !utf8.Valid(text):
		return "", sentence(ErrListInvalid, "The file is text in an old encoding, so its ä and é would be lost. Save it as “CSV UTF-8” and try again.")
	}
	plain := strings.TrimPrefix(string(text), "\ufeff")
	plain = strings.ReplaceAll(strings.ReplaceAll(plain, "\r\n", "\n"), "\r", "\n")
	if len(plain) > MaxImportBytes {
		return "", sentence(ErrListInvalid, "The list is larger than 1 MB. Split it, or leave columns out that are not needed.")
	}
	// Spreadsheets write and read this line; it is no row.
	if first, rest, _ := strings.Cut(plain, "\n"); len(first) == 5 && strings.EqualFold(first[:4], "sep=") {
		plain = "\n" + rest // lines keep their numbers
	}
	return plain, nil
}

// fromUTF16 is a text with a byte order mark, which spreadsheets call “Unicode text”, as UTF-8.
func fromUTF16(text []byte, order binary.ByteOrder) []byte {
	units := make([]uint16, 0, len(text)/2)
	for i := 0; i+1 < len(text); i += 2 {
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
			if columnNamed(cell) != nil {
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

// columns finds what each column means, nil for nothing. Of several names for the same thing the first column counts.
func (l *ImportList) columns(header []string) ([]column, error) {
	if len(header) > maxImportColumns {
		return nil, sentence(ErrListInvalid, "The first line names more than %d columns. Leave those out that are not needed.", maxImportColumns)
	}
	columns := make([]column, len(header))
	var probe ImportRow
	seen := map[*string]string{}
	for i, cell := range header {
		to := ambiguous(header, i)
		if to == nil {
			to = columnNamed(cell)
		}
		cell = tidy(strings.TrimSpace(cell), 40)
		switch {
		case to != nil && seen[to(&probe)] == "":
			seen[to(&probe)] = columnKey(cell)
			columns[i] = to
		case to != nil && seen[to(&probe)] == columnKey(cell):
			return nil, sentence(ErrListInvalid, "The first line names the column %s twice. Leave one of them out.", quote(cell))
		case cell != "":
			l.Ignored = append(l.Ignored, cell)
		}
	}
	for _, enough := range []*string{&probe.Name, &probe.first, &probe.last, &probe.Handle, &probe.Login, &probe.Email} {
		if seen[enough] != "" {
			return columns, nil
		}
	}
	return nil, sentence(ErrListInvalid, "The first line names none of the columns name, handle and email. Write their names above the list.")
}

// ambiguous is what a column means whose name means a whole name alone, and half of one beside the other half: Name
// beside Vorname, Nom beside Prénom, Nombre beside Apellidos. For other columns it is nil.
func ambiguous(header []string, i int) column {
	beside := func(want column) bool {
		var probe ImportRow
		for j, cell := range header {
			if to := columnNamed(cell); j != i && to != nil && to(&probe) == want(&probe) {
				return true
			}
		}
		return false
	}
	switch columnKey(header[i]) {
	case "name", "nom":
		if beside(firstColumn) {
			return lastColumn
		}
		return nameColumn
	case "nombre":
		if beside(lastColumn) {
			return firstColumn
		}
		return nameColumn
	}
	return nil
}

// readRow is false for a row in which nothing is written.
func readRow(line int, cells []string, columns []column) (ImportRow, bool) {
	row, written := ImportRow{Line: line}, false
	for i, cell := range cells {
		cell = strings.TrimSpace(cell)
		written = written || cell != ""
		switch {
		case i >= len(columns):
			if cell != "" {
				row.Wrong = fmt.Sprintf("The row has %d cells, but the first line names %d columns. A name with a comma in it needs quotes.", len(cells), len(columns))
			}
		case columns[i] != nil:
			*columns[i](&row) = cell
		}
	}
	if row.Name == "" {
		row.Name = strings.TrimSpace(row.first + " " + row.last)
	}
	row.first, row.last = "", ""
	return row, written
}

func brokenLine(err error) error {
	var p *csv.ParseError
	if !errors.As(err, &p) {
		return fmt.Errorf("read a list of people: %w", err)
	}
	return sentence(ErrListInvalid, "The quotes in line %d do not match. A cell in quotes begins and ends with one; a quote inside it is written twice.", p.StartLine)
}
