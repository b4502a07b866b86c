package units

import (
	"strconv"
	"time"
)

// Duration writes how long something took or lasts: "8 s", "3 min 20 s",
// "2 h 5 min", "4 d 2 h". Two units at most, never a clock.
func Duration(d time.Duration) string {
	seconds := int(max(d, 0) / time.Second)
	switch {
	case seconds < 60:
		return strconv.Itoa(seconds) + " s"
	case seconds < 3600:
		return pair(seconds/60, "min", seconds%60, "s")
	case seconds < 86400:
		return pair(seconds/3600, "h", seconds%3600/60, "min")
	default:
		return pair(seconds/86400, "d", seconds%86400/3600, "h")
	}
}

// Lasting is Duration in the steps a list needs: whole minutes once there are
// any, so that rows do not change every second.
func Lasting(d time.Duration) string {
	switch {
	case d < 10*time.Second:
		return "a few seconds"
	case d < time.Minute:
		return strconv.Itoa(int(d/(10*time.Second))*10) + " s"
	case d < time.Hour:
		return strconv.Itoa(int(d/time.Minute)) + " min"
	}
	return Duration(d)
}

func pair(a int, aUnit string, b int, bUnit string) string {
	text := strconv.Itoa(a) + " " + aUnit
	if b > 0 {
		text += " " + strconv.Itoa(b) + " " + bUnit
	}
	return text
}
