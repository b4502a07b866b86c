package units

import (
	"fmt"
	"time"
)

// FromTo writes a time that is over, in the zone of its ends:
// "from Fri 22:10 to Sat 08:03 (9 h 53 min)".
func FromTo(from, to time.Time) string {
	layout := "15:04"
	if to.Sub(from) < 2*time.Minute {
		layout = "15:04:05"
	}
	if from.YearDay() != to.YearDay() || from.Year() != to.Year() {
		layout = "Mon " + layout
	}
	return fmt.Sprintf("from %s to %s (%s)", from.Format(layout), to.Format(layout), Lasting(to.Sub(from)))
}
