package users

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
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
	Wrong                            string // why the row itself cannot be read; a sentence
}

// ImportList is what a file of comma-separated values says.
type ImportList struct {
	Rows    []ImportRow
	Ignored []string // columns that mean nothing here, as they are written
}

// importColumns are the columns that mean something, by their name in lower case without signs.
var importColumns = map[string]func(*ImportRow) *string{
	"name":   func(r *ImportRow) *string { return &r.Name },
	"handle": func(r *ImportRow) *string { return &r.Handle },
	"email":  func(r *ImportRow) *string { return &r.Email },
	"role":   func(r *ImportRow) *string { return &r.Role },
	"group":  func(r *ImportRow) *string { return &r.Group },
}

var withoutSigns = strings.NewReplacer("-", "", "_", "", " ", "")

func columnNamed(cell string) func(*ImportRow) *string {
	return importColumns[withoutSigns.Replace(strings.ToLower(strings.TrimSpace(clip(cell, 40))))]
}

// ParseImport reads a list of people: UTF-8 with or without a mark at its start; cells between commas, semicolons or
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
	case bytes.HasPrefix(text, []byte{0xff, 0xfe}), bytes.HasPrefix(text, []byte{0xfe, 0xff}), bytes.IndexByte(text, 0) >= 0:
		return "", sentence(ErrListInvalid, "The file is UTF-16 (“Unicode text”) or no text at all. Save it as “CSV UTF-8” and try again.")
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

// columns finds what each column means, nil for nothing.
func (l *ImportList) columns(header []string) ([]func(*ImportRow) *string, error) {
	if len(header) > maxImportColumns {
		return nil, sentence(ErrListInvalid, "The first line names more than %d columns. Leave those out that are not needed.", maxImportColumns)
	}
	columns := make([]func(*ImportRow) *string, len(header))
	var probe ImportRow
	seen := map[*string]bool{}
	for i, cell := range header {
		column := columnNamed(cell)
		switch {
		case column == nil:
			if cell = tidy(strings.TrimSpace(cell), 40); cell != "" {
				l.Ignored = append(l.Ignored, cell)
			}
			continue
		case seen[column(&probe)]:
			return nil, sentence(ErrListInvalid, "The first line names the column %s twice. Leave one of them out.", quote(strings.TrimSpace(cell)))
		}
		seen[column(&probe)] = true
		columns[i] = column
	}
	if !seen[&probe.Name] && !seen[&probe.Handle] && !seen[&probe.Email] {
		return nil, sentence(ErrListInvalid, "The first line names none of the columns name, handle and email. Write their names above the list.")
	}
	return columns, nil
}

// readRow is false for a row in which nothing is written.
func readRow(line int, cells []string, columns []func(*ImportRow) *string) (ImportRow, bool) {
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
	return row, written
}

func brokenLine(err error) error {
	var p *csv.ParseError
	if !errors.As(err, &p) {
		return fmt.Errorf("read a list of people: %w", err)
	}
	return sentence(ErrListInvalid, "The quotes in line %d do not match. A cell in quotes begins and ends with one; a quote inside it is written twice.", p.StartLine)
}
