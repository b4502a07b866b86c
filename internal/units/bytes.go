// Package units writes amounts the one way in which gpulab shows them. Any
// package may import it; it imports none.
package units

import (
	"strconv"
	"strings"
)

const (
	mebi = 1 << 20
	gibi = 1 << 30
)

// Bytes writes a number of bytes with the unit that fits: "512 MiB", "1.5 GiB",
// "24 GiB".
func Bytes(n uint64) string {
	if n < gibi-mebi/2 {
		return strconv.FormatUint((n+mebi/2)/mebi, 10) + " MiB"
	}
	return GiB(n) + " GiB"
}

// GiB writes bytes as a number of GiB: with one decimal below 100, unless it
// would be a zero.
func GiB(n uint64) string {
	value := float64(n) / gibi
	if value >= 99.95 {
		return strconv.FormatFloat(value, 'f', 0, 64)
	}
	return strings.TrimSuffix(strconv.FormatFloat(value, 'f', 1, 64), ".0")
}
