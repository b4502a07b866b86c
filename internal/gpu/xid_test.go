package gpu

import (
	"strings"
	"testing"
)

func TestExplainXID(t *testing.T) {
	for _, xid := range []uint64{13, 31, 43, 45, 48, 61, 62, 63, 64, 68, 69, 74, 79, 92, 94, 95, 109, 119, 120, 143} {
		if m := ExplainXID(xid); m.XID != xid || m.Severity == SeverityUnknown {
			t.Errorf("XID %d is not explained: %+v", xid, m)
		}
	}
	// The device plugin takes no GPU away for these: they are a program's.
	for _, xid := range []uint64{13, 31, 43, 45, 68, 109} {
		if s := ExplainXID(xid).Severity; s != SeverityProgram && s != SeverityNote {
			t.Errorf("XID %d is the program's, not %q", xid, s)
		}
	}
	for xid := range xids {
		m := ExplainXID(xid)
		for _, sentence := range []string{m.Meaning, m.Do} {
			if !strings.HasSuffix(sentence, ".") || strings.Contains(sentence, "..") || strings.Contains(sentence, ". .") {
				t.Errorf("XID %d: no sentence: %q", xid, sentence)
			}
		}
		if m.Title == "" || strings.HasSuffix(m.Title, ".") {
			t.Errorf("XID %d: no title: %q", xid, m.Title)
		}
	}
	for _, xid := range []uint64{0, 9999, 1<<64 - 1} {
		if m := ExplainXID(xid); m.Severity != SeverityUnknown || !strings.Contains(m.Do, "docs.nvidia.com") {
			t.Errorf("XID %d: %+v", xid, m)
		}
	}
}
