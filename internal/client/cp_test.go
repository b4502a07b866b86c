package client

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/transfer"
)

func TestDirection(t *testing.T) {
	for _, tc := range []struct {
		args string
		up   bool
		from []string
		to   string
	}{
		{"data lab:data", true, []string{"data"}, "data"},
		{"a b lab:", true, []string{"a", "b"}, ""},
		{"a lab:~", true, []string{"a"}, ""},
		{"a lab:~/x/", true, []string{"a"}, "x/"},
		{`C:\data lab:data`, true, []string{`C:\data`}, "data"},
		{"lab:results .", false, []string{"results"}, "."},
		{"lab:a lab:b back/", false, []string{"a", "b"}, "back/"},
		{`lab:x D:\back`, false, []string{"x"}, `D:\back`},
		{"./lab:odd lab:x", true, []string{"./lab:odd"}, "x"},
	} {
		args := strings.Fields(tc.args)
		up, from, to, err := direction(args[:len(args)-1], args[len(args)-1])
		if err != nil || up != tc.up || !slices.Equal(from, tc.from) || to != tc.to {
			t.Errorf("%s: %v %q %q %v", tc.args, up, from, to, err)
		}
	}
	for args, says := range map[string]string{"a b": "begin its paths with lab:", "lab:a lab:b": "both sides", "lab:a b c": "one after the other"} {
		list := strings.Fields(args)
		if _, _, _, err := direction(list[:len(list)-1], list[len(list)-1]); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", args, err)
		}
	}
	if _, _, _, err := direction([]string{"a"}, ""); err == nil {
		t.Error("an empty target")
	}
}

func TestProgressWords(t *testing.T) {
	for want, p := range map[string]transfer.Progress{
		"3 of 10 files, 1.0 GiB of 2.0 GiB, 100 MiB/s, a few seconds left": {Files: 3, FilesFound: 10, Done: 1 << 30, Found: 2 << 30, Sent: 1},
		"3 of 10+ files, 1.0 GiB of 2.0 GiB+, 100 MiB/s":                   {Files: 3, FilesFound: 10, Done: 1 << 30, Found: 2 << 30, Sent: 1, Looking: true},
		"0 of 1 files, 0 bytes of 12 bytes, waiting for the connection":    {FilesFound: 1, Found: 12, Lost: true},
		"0 of 1 files, 0 bytes of 100 GiB, 100 MiB/s, 17 min left":         {FilesFound: 1, Found: 100 << 30, Sent: 1},
	} {
		if got := progressWords(p, 100<<20); got != want && got != strings.Replace(want, "a few seconds left", "10 s left", 1) {
			t.Errorf("%q, want %q", got, want)
		}
	}
	for n, want := range map[int64]string{0: "0 bytes", 999: "999 bytes", 1024: "1.0 KiB", 1536: "1.5 KiB", 10 << 20: "10 MiB", 100 << 30: "100 GiB", 1 << 40: "1.0 TiB"} {
		if got := byteWords(n); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
	var p pace
	start := time.Unix(0, 0)
	if got := p.of(0, start); got != 0 {
		t.Errorf("the pace of nothing is %v", got)
	}
	for i := range 30 {
		got := p.of(int64(i+1)*1000, start.Add(time.Duration(i+1)*time.Second))
		if got != 1000 {
			t.Errorf("after %d s: %v", i+1, got)
		}
	}
	if got := summaryWords(transfer.Summary{Copied: 1, Bytes: 2048, Unchanged: 3, Kept: 1 << 20, Skipped: []transfer.Failure{{}}}); got != "1 file copied (2.0 KiB), 3 there already, 1.0 MiB from an earlier try, 1 left out." {
		t.Error(got)
	}
}

func TestVersionWord(t *testing.T) {
	if got := versionWord(); strings.ContainsAny(got, " -\n") || got == "" {
		t.Errorf("%q", got)
	}
}

func FuzzDirection(f *testing.F) {
	f.Add("data", "lab:data")
	f.Add("lab:~/x", ".")
	f.Fuzz(func(t *testing.T, from, to string) {
		up, sources, target, err := direction([]string{from}, to)
		if err != nil {
			return
		}
		if len(sources) != 1 || up == strings.HasPrefix(from, labPrefix) || !up && target != to || up && !strings.HasSuffix(to, target) {
			t.Fatalf("%q %q: %v %q %q", from, to, up, sources, target)
		}
	})
}
