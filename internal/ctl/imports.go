package ctl

import (
	"context"
	"time"

	"github.com/gpulab/gpulab/internal/users"
)

// maxImport bounds the body of an import: the largest list, as JSON carries it.
const maxImport = 8 << 20

// ImportRequest is what `gpulab user import` sends.
type ImportRequest struct {
	Text []byte `json:"text"`
	// Passwd says that Text is a passwd file, whose people keep their UIDs from
	// MinUID to MaxUID; otherwise it is a list of comma-separated values.
	Passwd bool `json:"passwd,omitempty"`
	MinUID int  `json:"minUID,omitempty"`
	MaxUID int  `json:"maxUID,omitempty"`
	// Role and Group are for those whose row names none.
	Role  users.Role `json:"role,omitempty"`
	Group string     `json:"group,omitempty"`
	// MakeGroups makes groups that are missing, DropWrong imports the other rows
	// where some have errors, DryRun changes nothing.
	MakeGroups bool `json:"makeGroups,omitempty"`
	DropWrong  bool `json:"dropWrong,omitempty"`
	DryRun     bool `json:"dryRun,omitempty"`
	// LinkTTL is how long the links work, in nanoseconds; 0 means a week.
	LinkTTL time.Duration `json:"linkTTL,omitempty"`
}

// ImportResult is what became of it.
type ImportResult struct {
	Applied bool             `json:"applied"`
	Plan    users.ImportPlan `json:"plan"`
	// Links are those of the new people; they are told only here.
	Links []users.PersonalLink `json:"links,omitempty"`
	// Stopped says why nothing was imported although it was asked for.
	Stopped string `json:"stopped,omitempty"`
}

// Imports is what the socket offers about many people at once.
type Imports interface {
	ImportUsers(ctx context.Context, r ImportRequest) (ImportResult, error)
}

// ImportUsers implements Daemon.
func (c *Client) ImportUsers(ctx context.Context, r ImportRequest) (ImportResult, error) {
	return call[ImportResult](ctx, c, "POST", "/v1/users/import", r)
}
