package audit

import (
	"bytes"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/csv"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/store"
)

// clock is a time that tests move by hand.
type clock struct {
	mu sync.Mutex
	t  time.Time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
}

// openAudit is a log in a database in a folder of its own, and the database for what no method does.
func openAudit(t *testing.T) (*Log, *clock, *sql.DB) {
	t.Helper()
	st, err := store.Open(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	c := &clock{t: time.Now()}
	return New(st.DB(), c.now), c, st.DB()
}

func record(t *testing.T, s *Log, n int) {
	t.Helper()
	for i := range n {
		e := Entry{Actor: "ada", Action: "user.add", Target: fmt.Sprintf("user-%d", i), Detail: "role member", Remote: "192.0.2.1"}
		if err := s.Record(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
}

// behindTriggers changes the log as somebody with the file in hands can.
func behindTriggers(t *testing.T, db *sql.DB, statement string, args ...any) {
	t.Helper()
	triggers := auditTriggers(t, db)
	for name := range triggers {
		exec(t, db, "DROP TRIGGER "+name)
	}
	exec(t, db, statement, args...)
	for _, text := range triggers {
		exec(t, db, text)
	}
}

func auditTriggers(t *testing.T, db *sql.DB) map[string]string {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND name LIKE 'audit%'")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	triggers := map[string]string{}
	for rows.Next() {
		var name, text string
		if err := rows.Scan(&name, &text); err != nil {
			t.Fatal(err)
		}
		triggers[name] = text
	}
	if err := rows.Err(); err != nil || len(triggers) < 5 {
		t.Fatal(len(triggers), err)
	}
	return triggers
}

func exec(t *testing.T, db *sql.DB, statement string, args ...any) {
	t.Helper()
	if _, err := db.ExecContext(t.Context(), statement, args...); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

func wantBroken(t *testing.T, err error, id int64) {
	t.Helper()
	var broken *BrokenError
	if !errors.As(err, &broken) || broken.Entry.ID != id {
		t.Errorf("got %v, want the log to be broken at entry %d", err, id)
	}
}

func TestAuditChain(t *testing.T) {
	s, _, _ := openAudit(t)
	check, err := s.Verify(t.Context(), nil)
	if err != nil || check.Entries != 0 || check.Head != (Hash{}) {
		t.Errorf("an empty log: %+v, %v", check, err)
	}
	record(t, s, 1200) // more than two batches
	check, err = s.Verify(t.Context(), nil)
	if err != nil || check.Entries != 1200 || check.Expected {
		t.Fatalf("%+v, %v", check, err)
	}
	head, err := s.Head(t.Context())
	if err != nil || head.ID != 1200 || head.Hash != check.Head {
		t.Errorf("head %+v, %v", head, err)
	}
	record(t, s, 3)
	if check, err = s.Verify(t.Context(), &head.Hash); err != nil || !check.Expected || check.Head == head.Hash {
		t.Errorf("a head that was kept: %+v, %v", check, err)
	}
	if check, err = s.Verify(t.Context(), &Hash{1}); err != nil || check.Expected {
		t.Errorf("a hash that never was: %+v, %v", check, err)
	}
}

// The encoding is fixed: what somebody kept must fit for ever. The hash was computed with Python's hashlib
// from the doc comment of ChainHash.
func TestChainHashNeverChanges(t *testing.T) {
	e := Entry{ID: 258, At: time.UnixMilli(1772366400123).UTC(), Actor: "ada", Action: "user.add", Target: "zoë", Remote: "::1"}
	for i := range e.Prev {
		e.Prev[i] = byte(i)
	}
	const want = "ae4dd3ee32496735481fb0229fb178b415150373259ecaf2ab7b543e9e087d1f"
	if got := ChainHash(e).String(); got != want {
		t.Errorf("got %s", got)
	}
}

// Many writers at once, each with a service of its own as if there were several programs, make one chain.
func TestAuditChainOfManyWriters(t *testing.T) {
	s, _, db := openAudit(t)
	other := New(db, time.Now)
	const writers, each = 8, 25
	var wg sync.WaitGroup
	errs := make(chan error, writers*each)
	for w := range writers {
		wg.Go(func() {
			service := []*Log{s, other}[w%2]
			for i := range each {
				errs <- service.Record(context.Background(), Entry{Actor: "ada", Action: "user.add", Target: fmt.Sprint(w, "-", i)})
				if i%10 == 0 {
					_, err := service.Verify(context.Background(), nil)
					errs <- err
				}
			}
		})
	}
	go func() { wg.Wait(); close(errs) }()
	for err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
	check, err := s.Verify(t.Context(), nil)
	if err != nil || check.Entries != writers*each {
		t.Fatalf("%+v, %v", check, err)
	}
	log, err := s.List(t.Context(), Filter{Limit: 1000})
	seen := map[string]bool{}
	for _, e := range log {
		seen[e.Target] = true
	}
	if err != nil || len(seen) != writers*each {
		t.Errorf("%d of %d entries, %v", len(seen), writers*each, err)
	}
}

func TestAuditRollsBackWithWhatItIsAbout(t *testing.T) {
	s, _, _ := openAudit(t)
	record(t, s, 1)
	boom := errors.New("boom")
	err := s.inTx(t.Context(), "try", func(tx *sql.Tx) error {
		if err := s.RecordIn(t.Context(), tx, Entry{Actor: "ada", Action: "user.add"}); err != nil {
			t.Error(err)
		}
		return boom
	})
	if !errors.Is(err, boom) {
		t.Fatal(err)
	}
	record(t, s, 1)
	if check, err := s.Verify(t.Context(), nil); err != nil || check.Entries != 2 {
		t.Errorf("%+v, %v", check, err)
	}
}

func TestTamperingIsFound(t *testing.T) {
	for what, tc := range map[string]struct {
		change string
		broken int64
	}{
		"an entry changed":         {"UPDATE audit SET detail = 'role admin' WHERE id = 4", 4},
		"its time changed":         {"UPDATE audit SET at = at + 1 WHERE id = 4", 4},
		"text moved to a field":    {"UPDATE audit SET target = target || substr(detail, 1, 4), detail = substr(detail, 5) WHERE id = 4", 4},
		"an entry removed":         {"DELETE FROM audit WHERE id = 4", 5},
		"the beginning removed":    {"DELETE FROM audit WHERE id < 4", 4},
		"two exchanged":            {"UPDATE audit SET id = CASE id WHEN 4 THEN -5 ELSE -4 END WHERE id IN (4, 5)", 0},
		"one put between":          {"UPDATE audit SET hash = zeroblob(32) WHERE id = 4", 4},
		"the anchor moved forward": {"UPDATE audit_anchor SET id = 3, hash = (SELECT hash FROM audit WHERE id = 3)", 1},
	} {
		t.Run(what, func(t *testing.T) {
			s, _, db := openAudit(t)
			record(t, s, 8)
			behindTriggers(t, db, tc.change)
			if tc.broken == 0 {
				behindTriggers(t, db, "UPDATE audit SET id = -id WHERE id < 0")
				tc.broken = 4
			}
			_, err := s.Verify(t.Context(), nil)
			wantBroken(t, err, tc.broken)
			if err != nil && !strings.HasSuffix(err.Error(), ".") {
				t.Errorf("no sentence: %v", err)
			}
		})
	}
}

// An entry changed together with its own hash is found at the next one; a cut end only by a hash that was kept.
func TestCleverTampering(t *testing.T) {
	s, _, db := openAudit(t)
	record(t, s, 8)
	log, err := s.List(t.Context(), Filter{Before: 5, Limit: 1})
	if err != nil || len(log) != 1 || log[0].ID != 4 {
		t.Fatal(log, err)
	}
	forged := log[0]
	forged.Actor = "eve"
	hash := ChainHash(forged)
	behindTriggers(t, db, "UPDATE audit SET actor = 'eve', hash = ? WHERE id = 4", hash[:])
	_, err = s.Verify(t.Context(), nil)
	wantBroken(t, err, 5)

	s, _, db = openAudit(t)
	record(t, s, 8)
	head, err := s.Head(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	behindTriggers(t, db, "DELETE FROM audit WHERE id > 6")
	check, err := s.Verify(t.Context(), &head.Hash)
	if err != nil || check.Entries != 6 || check.Expected {
		t.Errorf("a cut end: %+v, %v", check, err)
	}
}

// The database itself lets nobody change the log, however the statement is written.
func TestAuditTriggers(t *testing.T) {
	for _, statement := range []string{
		"UPDATE audit SET actor = 'eve' WHERE id = 2",
		"UPDATE audit SET hash = zeroblob(32) WHERE id = 2",
		"UPDATE audit SET id = 99 WHERE id = 2",
		"UPDATE OR REPLACE audit SET id = 3 WHERE id = 2",
		"DELETE FROM audit WHERE id = 1",
		"DELETE FROM audit",
		"INSERT OR REPLACE INTO audit (id, at, actor, action, hash) VALUES (2, 0, 'eve', 'x', zeroblob(32))",
		"INSERT INTO audit (id, at, actor, action, hash) VALUES (2, 0, 'eve', 'x', zeroblob(32)) ON CONFLICT DO UPDATE SET actor = 'eve'",
		"INSERT INTO audit (id, at, actor, action) VALUES (99, 0, 'eve', 'x')",
		"INSERT INTO audit (id, at, actor, action, hash) VALUES (0, 0, 'eve', 'x', zeroblob(32))",
		"UPDATE audit_anchor SET id = 1, at = (SELECT at FROM audit WHERE id = 1), hash = (SELECT hash FROM audit WHERE id = 1)",
		"UPDATE audit_anchor SET id = 99",
		"UPDATE audit_anchor SET hash = x'" + strings.Repeat("01", 32) + "'",
		"DELETE FROM audit_anchor",
		"INSERT OR REPLACE INTO audit_anchor VALUES (1, 2, 0, zeroblob(32))",
	} {
		s, _, db := openAudit(t)
		record(t, s, 3)
		if _, err := db.ExecContext(t.Context(), statement); err == nil {
			t.Errorf("accepted: %s", statement)
		}
		if check, err := s.Verify(t.Context(), nil); err != nil || check.Entries != 3 {
			t.Errorf("after %s: %+v, %v", statement, check, err)
		}
	}
}

func TestAuditIsKeptFor400Days(t *testing.T) {
	s, c, db := openAudit(t)
	now := c.now()
	c.t = now.AddDate(-3, 0, 0)
	record(t, s, 700)
	c.t = now.Add(-Kept + time.Hour)
	record(t, s, 1)
	c.t = now.AddDate(-2, 0, 0) // the clock was wrong for a while: nothing after the first that is kept goes
	record(t, s, 1)
	c.t = now
	record(t, s, 1)
	before, err := s.Verify(t.Context(), nil)
	if err != nil || before.Entries != 703 {
		t.Fatalf("%+v, %v", before, err)
	}
	log, err := s.List(t.Context(), Filter{Limit: 1000})
	if err != nil {
		t.Fatal(err)
	}
	forgotten, kept := log[len(log)-700], log[1] // the newest that goes, and one that stays
	for range 2 {
		if err := s.Sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	after, err := s.Verify(t.Context(), &kept.Hash)
	if err != nil || after.Entries != 3 || after.Head != before.Head || !after.Expected {
		t.Errorf("after the sweep: %+v, %v", after, err)
	}
	if after, err = s.Verify(t.Context(), &forgotten.Hash); err != nil || !after.Expected {
		t.Errorf("the last forgotten one is known still: %+v, %v", after, err)
	}
	// Not earlier, whatever the program thinks the time is.
	c.t = now.AddDate(5, 0, 0)
	if err := s.Sweep(t.Context()); err == nil {
		t.Error("entries of this year were forgotten because the program said so")
	}
	c.t = now
	// All that is left goes one day; what comes then builds on it.
	behindTriggers(t, db, "UPDATE audit_anchor SET id = 703, at = 0, hash = (SELECT hash FROM audit WHERE id = 703)")
	exec(t, db, "DELETE FROM audit")
	record(t, s, 1)
	if check, err := s.Verify(t.Context(), &before.Head); err != nil || check.Entries != 1 || !check.Expected {
		t.Errorf("after everything went: %+v, %v", check, err)
	}
}

// A database from before there was a chain gets one at the first start, whatever comes first.
func TestOldEntriesAreChainedOnce(t *testing.T) {
	for what, first := range map[string]func(*Log) error{
		"sweep":  func(s *Log) error { return s.Sweep(t.Context()) },
		"record": func(s *Log) error { return s.Record(t.Context(), Entry{Actor: "ada", Action: "sign-in"}) },
		"verify": func(s *Log) error { _, err := s.Verify(t.Context(), nil); return err },
		"export": func(s *Log) error { return s.Export(t.Context(), &bytes.Buffer{}, JSON, Filter{}) },
	} {
		t.Run(what, func(t *testing.T) {
			s, c, db := openAudit(t)
			behindTriggers(t, db, `WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1100)
				INSERT INTO audit (at, actor, action, target) SELECT ? + i, 'ada', 'user.add', 'user-' || i FROM n`, c.now().Add(-time.Hour).UnixMilli())
			if err := first(s); err != nil {
				t.Fatal(err)
			}
			record(t, s, 1)
			check, err := s.Verify(t.Context(), nil)
			if err != nil || check.Entries < 1101 {
				t.Fatalf("%+v, %v", check, err)
			}
			var without int
			if err := db.QueryRowContext(t.Context(), "SELECT count(*) FROM audit WHERE hash IS NULL").Scan(&without); err != nil || without > 0 {
				t.Errorf("%d entries without a hash, %v", without, err)
			}
			if _, err := db.ExecContext(t.Context(), "UPDATE audit SET hash = zeroblob(32) WHERE id = 5"); err == nil {
				t.Error("a second hash was accepted")
			}
		})
	}
}

func TestOldEntryKeepsItsText(t *testing.T) {
	s, _, db := openAudit(t)
	behindTriggers(t, db, "INSERT INTO audit (at, actor, action) VALUES (1, 'ada', 'sign-in')")
	if _, err := db.ExecContext(t.Context(), "UPDATE audit SET hash = zeroblob(32), actor = 'eve'"); err == nil {
		t.Error("an entry changed while it was chained")
	}
	if err := s.Sweep(t.Context()); err != nil {
		t.Fatal(err) // it is too old, too
	}
	if log, err := s.List(t.Context(), Filter{Limit: 1}); err != nil || len(log) != 0 {
		t.Errorf("%+v, %v", log, err)
	}
}

func TestAuditFilter(t *testing.T) {
	s, c, _ := openAudit(t)
	start := c.now()
	for _, e := range []Entry{
		{Actor: "ada", Action: "user.add", Target: "ben", Remote: "10.0.0.7"},
		{Actor: "ben", Action: "sign-in", Target: "ben", Remote: "10.0.0.71"},
		{Actor: "root", Action: "user.remove", Target: "ben"},
		{Actor: "lea", Action: "sign-in", Target: "lea", Remote: "fe80::1"},
		{Actor: "ada", Action: "user.add", Target: "ben%", Remote: "fe80::2"},
	} {
		if err := s.Record(t.Context(), e); err != nil {
			t.Fatal(err)
		}
		c.add(time.Hour)
	}
	for what, tc := range map[string]struct {
		filter Filter
		want   string
	}{
		"all":          {Filter{}, "5 4 3 2 1"},
		"person":       {Filter{Person: " Ben"}, "3 2 1"},
		"no pattern":   {Filter{Person: "be%"}, ""},
		"action":       {Filter{Action: "sign-in"}, "4 2"},
		"address":      {Filter{Remote: "10.0.0.7"}, "1"},
		"network":      {Filter{Remote: "10.0.0."}, "2 1"},
		"network IPv6": {Filter{Remote: "fe80:"}, "5 4"},
		"since":        {Filter{Since: start.Add(3 * time.Hour)}, "5 4"},
		"until":        {Filter{Until: start.Add(time.Hour)}, "1"},
		"page":         {Filter{Limit: 2, Before: 4}, "3 2"},
		"together":     {Filter{Person: "ben", Action: "user.add", Since: start}, "1"},
		"quotes":       {Filter{Person: "' OR 1=1 --", Remote: "'."}, ""},
	} {
		log, err := s.List(t.Context(), tc.filter)
		if err != nil {
			t.Fatal(err)
		}
		var ids []string
		for _, e := range log {
			ids = append(ids, fmt.Sprint(e.ID))
		}
		if got := strings.Join(ids, " "); got != tc.want {
			t.Errorf("%s: %s, want %s", what, got, tc.want)
		}
	}
}

func export(t *testing.T, s *Log, format Format, f Filter) []byte {
	t.Helper()
	var out bytes.Buffer
	if err := s.Export(t.Context(), &out, format, f); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestJSONExportIsChecked(t *testing.T) {
	s, c, _ := openAudit(t)
	now := c.now()
	c.t = now.AddDate(-2, 0, 0)
	record(t, s, 30)
	c.t = now
	record(t, s, 600)
	if err := s.Record(t.Context(), Entry{Actor: "zoë", Action: "user.add", Target: `<b>"&\`,
		Detail: "=1+1"}); err != nil {
		t.Fatal(err)
	}
	if err := s.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	whole := export(t, s, JSON, Filter{Limit: 3})
	if !json.Valid(whole) {
		t.Fatalf("no JSON: %.300s", whole)
	}
	head, err := s.Head(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	check, err := CheckExport(bytes.NewReader(whole), &head.Hash)
	if err != nil || check.Entries != 601 || check.Head != head.Hash || check.Part || !check.Expected {
		t.Errorf("%+v, %v", check, err)
	}
	part := export(t, s, JSON, Filter{Person: "user-7"})
	if check, err := CheckExport(bytes.NewReader(part), nil); err != nil || check.Entries != 1 || !check.Part {
		t.Errorf("a part: %+v, %v", check, err)
	}
	if check, err := CheckExport(bytes.NewReader(export(t, s, JSON, Filter{Action: "user.add"})), nil); err != nil ||
		check.Gaps != 0 || !check.Part {
		t.Errorf("a part without gaps: %+v, %v", check, err)
	}
	none := export(t, s, JSON, Filter{Person: "nobody"})
	if check, err := CheckExport(bytes.NewReader(none), nil); err != nil || check.Entries != 0 {
		t.Errorf("an empty part: %+v, %v", check, err)
	}
	lines := bytes.SplitAfter(whole, []byte("\n"))
	at := 0
	for !bytes.Contains(lines[at], []byte(`"id":35,`)) {
		at++
	}
	without := bytes.Join(append(append([][]byte{}, lines[:at]...), lines[at+1:]...), nil)
	_, err = CheckExport(bytes.NewReader(without), nil)
	wantBroken(t, err, 36)
	_, err = CheckExport(bytes.NewReader(bytes.Replace(whole, []byte("user-7"), []byte("user-8"), 1)), nil)
	wantBroken(t, err, 38)
	_, err = CheckExport(bytes.NewReader(bytes.Replace(part, []byte("role member"), []byte("role admin!"), 1)), nil)
	wantBroken(t, err, 38)
	for what, text := range map[string][]byte{
		"cut": whole[:len(whole)/2], "cut at an end": whole[:bytes.LastIndex(whole, []byte("\n  ]"))], "no end": []byte(`{"complete":true,"entries":[]}`),
		"CSV": export(t, s, CSV, Filter{}), "empty": nil, "a list": []byte("[]"), "null": []byte("null"),
	} {
		if check, err := CheckExport(bytes.NewReader(text), nil); err == nil || !strings.Contains(err.Error(), "no JSON export") {
			t.Errorf("%s: %+v, %v", what, check, err)
		}
	}
}

// An outsider computes the hashes from the export with nothing of this package.
func TestExportCanBeRecomputedElsewhere(t *testing.T) {
	s, _, _ := openAudit(t)
	record(t, s, 5)
	var out struct {
		Entries []struct {
			ID                                    uint64
			At                                    time.Time
			Actor, Action, Target, Detail, Remote string
			Prev, Hash                            string
		}
	}
	if err := json.Unmarshal(export(t, s, JSON, Filter{}), &out); err != nil {
		t.Fatal(err)
	}
	prev := strings.Repeat("0", 64)
	for _, e := range out.Entries {
		raw, err := hex.DecodeString(prev)
		if err != nil || e.Prev != prev {
			t.Fatalf("entry %d builds on %s, want %s", e.ID, e.Prev, prev)
		}
		text := "gpulab audit 1\n" + string(raw) + fmt.Sprintf("%s%s", big(e.ID, 8), big(uint64(e.At.UnixMilli()), 8))
		for _, field := range []string{e.Actor, e.Action, e.Target, e.Detail, e.Remote} {
			text += big(uint64(len(field)), 4) + field
		}
		if sum := fmt.Sprintf("%x", sha256.Sum256([]byte(text))); sum != e.Hash {
			t.Errorf("entry %d: %s, want %s", e.ID, sum, e.Hash)
		}
		prev = e.Hash
	}
	if len(out.Entries) != 5 {
		t.Errorf("%d entries", len(out.Entries))
	}
}

func big(n uint64, size int) string {
	text := make([]byte, size)
	for i := range text {
		text[size-1-i] = byte(n >> (8 * i))
	}
	return string(text)
}

func TestCSVExportHoldsNoFormula(t *testing.T) {
	s, _, db := openAudit(t)
	for _, bad := range []string{"=HYPERLINK(1)", "+1", "-1", "@x", "\tx", "\rx", `"=1",x`} {
		if err := s.Record(t.Context(), Entry{Actor: bad, Action: "user.add", Target: bad, Detail: bad,
			Remote: bad}); err != nil {
			t.Fatal(err)
		}
	}
	// Something that came in before such characters were dropped.
	behindTriggers(t, db, "INSERT INTO audit (id, at, actor, action, detail, hash) VALUES (99, 0, 'ada', 'x', char(9) || '=1', zeroblob(32)), (100, 0, 'ada', 'x', char(13) || '=1', zeroblob(32))")
	rows, err := csv.NewReader(bytes.NewReader(export(t, s, CSV, Filter{}))).ReadAll()
	if err != nil || len(rows) != 10 {
		t.Fatalf("%d rows, %v", len(rows), err)
	}
	for _, row := range rows {
		for _, cell := range row {
			if cell != "" && strings.Contains("=+-@\t\r", cell[:1]) {
				t.Errorf("a formula: %q", cell)
			}
		}
	}
	if rows[1][2] != "'=HYPERLINK(1)" || rows[9][5] != "'\r=1" {
		t.Errorf("%q", rows)
	}
}

// An export holds the database only batch by batch: somebody who downloads slowly stops nobody.
func TestSlowExportStopsNobody(t *testing.T) {
	s, _, _ := openAudit(t)
	record(t, s, 600)
	gate := &slowWriter{begun: make(chan struct{}), goOn: make(chan struct{})}
	done := make(chan error, 1)
	go func() { done <- s.Export(context.Background(), gate, JSON, Filter{}) }()
	<-gate.begun
	record(t, s, 1)
	if err := s.Sweep(t.Context()); err != nil {
		t.Error(err)
	}
	close(gate.goOn)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if check, err := CheckExport(&gate.text, nil); err != nil || check.Entries != 600 {
		t.Errorf("%+v, %v", check, err)
	}
}

type slowWriter struct {
	text        bytes.Buffer
	once        sync.Once
	begun, goOn chan struct{}
}

func (w *slowWriter) Write(p []byte) (int, error) {
	w.once.Do(func() { close(w.begun); <-w.goOn })
	return w.text.Write(p)
}

// The log survives the way through a backup.
func TestBackupKeepsTheChain(t *testing.T) {
	dir := t.TempDir()
	st, err := store.Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	s := New(st.DB(), time.Now)
	record(t, s, 5)
	copied := t.TempDir()
	if err := st.Backup(t.Context(), filepath.Join(copied, store.MainFile)); err != nil {
		t.Fatal(err)
	}
	again, err := store.Open(t.Context(), copied)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	restored := New(again.DB(), time.Now)
	record(t, restored, 2)
	if check, err := restored.Verify(t.Context(), nil); err != nil || check.Entries != 7 {
		t.Errorf("%+v, %v", check, err)
	}
}
