package users

import (
	"encoding/csv"
	"io"
	"time"
)

// WriteLinks writes the links of an import for a spreadsheet or a mail merge.
func WriteLinks(w io.Writer, links []PersonalLink) error {
	out := csv.NewWriter(w)
	rows := [][]string{{"name", "handle", "email", "link", "valid until"}}
	for i := range links {
		l := &links[i]
		rows = append(rows, []string{harmless(l.Name), harmless(l.Handle), harmless(l.Email), harmless(l.URL), l.Expires.UTC().Format(time.RFC3339)})
	}
	return out.WriteAll(rows)
}

// harmless keeps a spreadsheet from taking a cell for a formula: one that begins with = + - @, a tab or a carriage
// return gets an apostrophe in front, as OWASP advises (https://owasp.org/www-community/attacks/CSV_Injection). People
// choose their names themselves, and whoever opens the file may do more than they.
func harmless(cell string) string {
	if cell == "" {
		return cell
	}
	switch cell[0] {
	case '=', '+', '-', '@', '\t', '\r':
		return "'" + cell
	}
	return cell
}
