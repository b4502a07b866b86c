package version

import (
	"strconv"
	"strings"
)

// Works tells whether two versions of gpulab work together in one pool: those
// of one release, MAJOR.MINOR, do, and those of the releases beside it. Of
// versions that are not numbered so, only the very same one does.
func Works(a, b string) bool {
	if a == b {
		return true
	}
	n, ok := Compare(a, b)
	return ok && -1 <= n && n <= 1
}

// Compare says by how many releases a is newer than b; negative numbers say that
// it is older. There is none between versions of different majors, whose
// distance no number tells, or where one is not numbered.
func Compare(a, b string) (releases int, ok bool) {
	major, minor, ok1 := release(a)
	otherMajor, otherMinor, ok2 := release(b)
	return minor - otherMinor, ok1 && ok2 && major == otherMajor
}

// release is the first two numbers of a version: 0.4 of 0.4.2-rc1.
func release(v string) (major, minor int, ok bool) {
	first, rest, ok1 := strings.Cut(v, ".")
	second, _, ok2 := strings.Cut(rest, ".")
	major, err1 := strconv.Atoi(first)
	minor, err2 := strconv.Atoi(second)
	return major, minor, ok1 && ok2 && err1 == nil && err2 == nil && major >= 0 && minor >= 0
}
