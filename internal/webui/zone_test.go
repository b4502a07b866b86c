package webui

import (
	"testing"
	"time"
)

// Pages name the time zone of their times, whatever the visitor's is.
func TestZone(t *testing.T) {
	at := time.Date(2026, 1, 15, 12, 0, 0, 0, time.UTC)
	for name, want := range map[string]string{"UTC": "UTC", "Asia/Tokyo": "JST (UTC+09:00)", "America/Sao_Paulo": "UTC-03:00", "Europe/London": "GMT (UTC+00:00)", "Europe/Berlin": "CET (UTC+01:00)"} {
		location, err := time.LoadLocation(name)
		if err != nil {
			t.Fatal(err)
		}
		if got := (page{}).zone(at.In(location)); got != "Times: "+want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
	if got, want := (page{Charts: true}).zone(at), "Times: UTC; curves: your browser’s zone"; got != want {
		t.Errorf("a page with curves: %s", got)
	}
}
