package charts

import "testing"

func TestTellingLine(t *testing.T) {
	for log, want := range map[string]string{
		"":           "",
		"one\ntwo\n": "two",
		"Error: no such flag\nUsage:\n  -x\n\ngoroutine 1 [running]:\nmain.main()\n": "Error: no such flag",
		"panic: lost\n\ngoroutine 1 [running]:\nmain.main()\n":                       "panic: lost",
		"Traceback (most recent call last):\n  File x\nValueError: bad\n":            "ValueError: bad",
		"[C 2026] Bad config\nTraceback:\njson.decoder.JSONDecodeError: bad\nend":    "json.decoder.JSONDecodeError: bad",
		"no errors here\nall well": "all well",
	} {
		if got := tellingLine(log); got != want {
			t.Errorf("of %q: %q, want %q", log, got, want)
		}
	}
}
