package history

import (
	"math"
	"strings"
)

// Lengths of what the ledger has sums of, in seconds: the table usage has the
// hours, usage_sums the others. Each is a multiple of the one before.
const (
	anHour int64 = 3600
	aDay         = 24 * anHour
	aMonth       = 32 * aDay
)

// never is after everything.
const never = math.MaxInt64

// stretch is a part of a window of time, in unix seconds, that sums of one
// length cover exactly. from is inclusive, to is not.
type stretch struct{ span, from, to int64 }

// stretches divides a window into as few sums as possible: months, the days at
// their ends and the hours at the days'. The window is of whole hours.
func stretches(from, to int64) []stretch {
	return divideWindow(from, to, aMonth, aDay, anHour)
}

func divideWindow(from, to int64, spans ...int64) []stretch {
	span := spans[0]
	if from >= to {
		return nil
	}
	if len(spans) == 1 {
		return []stretch{{span, from, to}}
	}
	// Without a bound the longest sums have all there is.
	begin, end := from, to
	if from > math.MinInt64 {
		begin = roundUp(from, span)
	}
	if to < never {
		end = floor(to, span)
	}
	if begin >= end {
		return divideWindow(from, to, spans[1:]...)
	}
	parts := divideWindow(from, begin, spans[1:]...)
	parts = append(parts, stretch{span, begin, end})
	return append(parts, divideWindow(end, to, spans[1:]...)...)
}

// sumColumns are those that are added up.
const sumColumns = "watched, held, busy, unknown, compute, compute_for, memory, memory_for, energy, energy_for"

// rows is the query for the ledger's rows of a stretch that satisfy a condition.
func (s stretch) rows(condition string, values []any) (query string, args []any) {
	var where []string
	and := func(condition string, values ...any) { where, args = append(where, condition), append(args, values...) }
	table, start := "usage", "hour"
	if s.span != anHour {
		table, start = "usage_sums", "start"
		and("span = ?", s.span)
	}
	and(condition, values...)
	if s.from > math.MinInt64 {
		and(start+" >= ?", s.from)
	}
	if s.to < never {
		and(start+" < ?", s.to)
	}
	return "SELECT " + start + " AS hour, gpu, kind, name, " + sumColumns + " FROM " + table + " WHERE " +
		strings.Join(where, " AND "), args
}
