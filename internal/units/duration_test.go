package units

import (
	"testing"
	"time"
)

func TestDuration(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "0 s", 999 * time.Millisecond: "0 s", 59 * time.Second: "59 s", time.Minute: "1 min", 200 * time.Second: "3 min 20 s",
		time.Hour: "1 h", 125 * time.Minute: "2 h 5 min", 98 * time.Hour: "4 d 2 h",
	} {
		if got := Duration(d); got != want {
			t.Errorf("Duration(%v) = %q, want %q", d, got, want)
		}
	}
	for d, want := range map[time.Duration]string{
		-time.Second: "a few seconds", 3 * time.Second: "a few seconds", 37 * time.Second: "30 s", 61 * time.Second: "1 min",
		59*time.Minute + 59*time.Second: "59 min", time.Hour: "1 h", 72 * time.Hour: "3 d",
	} {
		if got := Lasting(d); got != want {
			t.Errorf("Lasting(%v) = %q, want %q", d, got, want)
		}
	}
}
