package users

import (
	"encoding/csv"
	"io"
	"time"

	"github.com/gpulab/gpulab/internal/audit"
)

// WriteLinks writes the links of an import for a spreadsheet or a mail merge.
func WriteLinks(w io.Writer, links []PersonalLink) error {
	out := csv.NewWriter(w)
	rows := [][]string{{"name", "handle", "email", "link", "valid until"}}
	for i := range links {
		l := &links[i]
		rows = append(rows, []string{
			audit.CSVCell(l.Name), audit.CSVCell(l.Handle), audit.CSVCell(l.Email), audit.CSVCell(l.URL),
			l.Expires.UTC().Format(time.RFC3339),
		})
	}
	return out.WriteAll(rows)
}
