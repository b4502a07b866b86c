// Package e2e holds the end-to-end tests: the whole product on a test host,
// used through its command line and a Chromium. They are built with the tag
// e2e and run by `go tool task labs`.
package e2e
