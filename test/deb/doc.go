// Package deb tests the Debian packages: what is in them, and their whole life on
// a machine. It has only tests; `go tool task labs` runs them.
package deb
