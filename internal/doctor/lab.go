package doctor

import (
	"context"
	"errors"
	"time"
)

// Errors of Options.Ask.
var (
	ErrNoDaemon   = errors.New("gpulab does not run")
	ErrNotAllowed = errors.New("only root may ask gpulab")
)

// Lab is what a running gpulab says about itself.
type Lab struct {
	Version string
	URL     string
	Nodes   int
	Parts   []Part
	GPUs    []GPU
}

// Part is a component that the running gpulab tells of.
type Part struct {
	Name, Detail, NextStep string
	State                  string // OK, Warn or Fail; Starting and Off besides
}

// Further states of a Part.
const (
	Starting = "starting" // it needs nothing but time
	Off      = "off"      // not wanted
)

// GPU is one that the running gpulab tells of.
type GPU struct {
	Node, Name string
	Index      int
	Trouble    string // why it cannot be read, a sentence
	Withheld   string // why no new notebook gets it, a sentence
}

// ask asks the running gpulab, and waits for as long as limit.
func ask(ctx context.Context, opts Options, limit time.Duration) (Lab, error) {
	if opts.Ask == nil {
		return Lab{}, ErrNoDaemon
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return opts.Ask(ctx)
}
