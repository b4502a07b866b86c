package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
)

// report prints a table of the results, the longest first, then what somebody should look at, and last the lines with
// which go test ends.
func (s *suite) report(results []result, left []test, failed map[string]result, shared map[string]bool) {
	slices.SortFunc(results, func(a, b result) int { return cmp.Compare(b.Seconds, a.Seconds) })
	tries := map[string]int{}
	for _, r := range results {
		tries[r.Name]++
	}
	w := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(w, "\ntest\ttests\tseconds\twaited\ttries\tresult\t\n")
	var tests int
	var seconds, waited float64
	for _, r := range results {
		word := "passed"
		switch {
		case !r.Passed && shared[r.Name]:
			word = "FAILED, AS BEFORE THE CHANGE"
		case r.Interrupted:
			word = "interrupted"
		case !r.Passed:
			word = "FAILED"
		case r.Before:
			word = "passed before"
		}
		fmt.Fprintf(w, "%s\t%d\t%.0f\t%.0f\t%d\t%s\t\n", r.Name, r.Tests, r.Seconds, r.Waited, tries[r.Name], word)
		tests += r.Tests
		seconds += r.Seconds
		waited += r.Waited
	}
	fmt.Fprintf(w, "all\t%d\t%.0f\t%.0f\t%d\t\t\n", tests, seconds, waited, len(results))
	_ = w.Flush()
	for _, r := range results {
		if len(r.Skipped) > 0 {
			fmt.Fprintf(s.out, "SKIPPED in %s: %s\n", r.Name, strings.Join(r.Skipped, ", "))
		}
	}
	why := "the time was up"
	if slices.ContainsFunc(results, func(r result) bool { return r.Interrupted }) {
		why = "interrupted"
	}
	for _, t := range left {
		fmt.Fprintf(s.out, "NOT RUN, %s: %s\n", why, t.Name)
	}
	for _, r := range results {
		if _, still := failed[r.Name]; !r.Passed && !r.Interrupted && !still {
			fmt.Fprintf(s.out, "FLAKY: %s failed once and then passed; see %s and %s\n", r.Name, r.Log,
				strings.Replace(r.Log, r.Name+".1", r.Name+".2", 1))
		}
	}
	for name := range shared {
		if shared[name] {
			fmt.Fprintf(s.out, "FAILS WITHOUT THE CHANGE TOO: %s, at %s; somebody must look why\n", name, s.base)
		}
	}
	for _, folder := range slices.Sorted(maps.Keys(packages)) {
		took, ran, bad := 0.0, false, false
		for _, r := range results {
			if r.Package == folder {
				ran = true
				took += r.Seconds
				_, is := failed[r.Name]
				bad = bad || is && !shared[r.Name] || r.Interrupted
			}
		}
		switch {
		case bad:
			fmt.Fprintf(s.out, "FAIL\tgithub.com/gpulab/gpulab/%s\t%.3fs\n", folder, took)
		case ran:
			fmt.Fprintf(s.out, "ok  \tgithub.com/gpulab/gpulab/%s\t%.3fs\n", folder, took)
		}
	}
}
