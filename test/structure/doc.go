// Package structure holds docs/architecture.md and the rules of this
// repository against the code. It has only tests.
package structure
