package audit

import (
	"bufio"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

// Format is a format of the audit log's exports.
type Format string

// The formats.
const (
	CSV  Format = "csv"
	JSON Format = "json"
)

// exportHead begins a JSON export. After it come the entries and then "end", so that one that was cut off
// is no JSON.
type exportHead struct {
	Exported time.Time `json:"exported"`
	Filter   Filter    `json:"filter"`
	Complete bool      `json:"complete"` // no entry was left out
	// Anchor is what the oldest entry of a complete export builds on.
	Anchor exportLink `json:"anchor"`
}

type exportLink struct {
	ID   int64 `json:"id"`
	Hash Hash  `json:"hash"`
}

// Export writes the entries that fit f, the oldest first, as they are read; Before and Limit do not
// count. The JSON holds all that is hashed; cells of the CSV that a spreadsheet would take for a formula
// begin with an apostrophe.
func (l *Log) Export(ctx context.Context, w io.Writer, format Format, f Filter) error {
	if err := l.chainOld(ctx); err != nil {
		return err
	}
	l.forgetting.RLock()
	defer l.forgetting.RUnlock()
	f.Before, f.Limit = 0, 0
	switch format {
	case CSV:
		return l.exportCSV(ctx, w, f)
	case JSON:
		return l.exportJSON(ctx, w, f)
	}
	return fmt.Errorf("there is no format %q of the audit log; it is exported as csv or json", format)
}

func (l *Log) exportCSV(ctx context.Context, w io.Writer, f Filter) error {
	out := csv.NewWriter(w)
	if err := out.Write([]string{"id", "time", "actor", "action", "target", "detail", "address", "hash"}); err != nil {
		return err
	}
	err := l.eachEntry(ctx, f, func(e Entry) error {
		row := []string{
			strconv.FormatInt(e.ID, 10), e.At.Format(time.RFC3339Nano), e.Actor, e.Action, e.Target, e.Detail, e.Remote,
			e.Hash.String(),
		}
		for i := range row {
			row[i] = CSVCell(row[i])
		}
		return out.Write(row)
	})
	out.Flush()
	return errors.Join(err, out.Error())
}

// CSVCell keeps a spreadsheet from taking a cell for a formula: one that begins with = + - @, a tab or a carriage
// return gets an apostrophe in front, as OWASP advises (https://owasp.org/www-community/attacks/CSV_Injection). People
// choose their names themselves, and whoever opens the file may do more than they.
func CSVCell(text string) string {
	if text != "" && strings.ContainsRune("=+-@\t\r", rune(text[0])) {
		return "'" + text
	}
	return text
}

func (l *Log) exportJSON(ctx context.Context, w io.Writer, f Filter) error {
	anchor, err := l.anchor(ctx)
	if err != nil {
		return err
	}
	head, err := json.MarshalIndent(exportHead{Exported: l.now().UTC(), Filter: f, Complete: f.all(),
		Anchor: exportLink{anchor.ID, anchor.Hash}}, "", "  ")
	if err != nil {
		return err
	}
	out := bufio.NewWriter(w)
	_, _ = fmt.Fprintf(out, "%s,\n  \"entries\": [", strings.TrimSuffix(string(head), "\n}")) // errors stay until Flush
	count := 0
	err = l.eachEntry(ctx, f, func(e Entry) error {
		line, err := json.Marshal(e)
		if err != nil {
			return err
		}
		if count++; count > 1 {
			_ = out.WriteByte(',')
		}
		_, err = fmt.Fprintf(out, "\n    %s", line)
		return err
	})
	if err != nil {
		return errors.Join(err, out.Flush())
	}
	_, _ = fmt.Fprintf(out, "\n  ],\n  \"end\": %d\n}\n", count)
	return out.Flush()
}

// CheckExport checks a JSON export: a *BrokenError names the first entry that does not fit. Of a filtered
// one each entry is checked, and that those fit that follow one another; part is then true.
func CheckExport(r io.Reader, expect *Hash) (check ChainCheck, err error) {
	check = ChainCheck{Expect: expect}
	in := json.NewDecoder(bufio.NewReader(r))
	var end *int
	head := exportHead{}
	err = eachField(in, func(name string) error {
		switch name {
		case "complete":
			return in.Decode(&head.Complete)
		case "anchor":
			return in.Decode(&head.Anchor)
		case "end":
			return in.Decode(&end)
		case "entries":
			check.Part = !head.Complete
			if head.Complete {
				check.Begin(head.Anchor.ID, head.Anchor.Hash)
			}
			return eachElement(in, func() error {
				var e Entry
				if err := in.Decode(&e); err != nil {
					return err
				}
				return check.Add(e)
			})
		}
		var other json.RawMessage
		return in.Decode(&other)
	})
	var broken *BrokenError
	switch {
	case errors.As(err, &broken):
		return check, err
	case err != nil:
		return check, fmt.Errorf("this is no JSON export of the audit log, or not all of one: %w", err)
	case end == nil || *end != check.Entries:
		return check, errors.New("this is no JSON export of the audit log, or not all of one: its end is missing")
	}
	return check, nil
}

// eachField reads an object and calls f where the value of each of its fields begins.
func eachField(in *json.Decoder, f func(name string) error) error {
	if err := delim(in, '{'); err != nil {
		return err
	}
	for in.More() {
		name, err := in.Token()
		if err != nil {
			return err
		}
		text, _ := name.(string)
		if err := f(text); err != nil {
			return err
		}
	}
	return delim(in, '}')
}

func eachElement(in *json.Decoder, f func() error) error {
	if err := delim(in, '['); err != nil {
		return err
	}
	for in.More() {
		if err := f(); err != nil {
			return err
		}
	}
	return delim(in, ']')
}

func delim(in *json.Decoder, want json.Delim) error {
	got, err := in.Token()
	if err == nil && got != want {
		err = fmt.Errorf("%v where %v should be", got, want)
	}
	return err
}
