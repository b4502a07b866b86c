// Package history keeps what the lab's GPUs did and who used them.
package history
