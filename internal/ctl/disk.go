package ctl

import (
	"context"
	"net/http"

	"github.com/gpulab/gpulab/internal/diskspace"
)

// Disk is how much room the lab has, and what it goes to.
type Disk struct {
	Filesystems []diskspace.Filesystem `json:"filesystems"`
	// Parts are what takes room, the largest first.
	Parts []diskspace.Part `json:"parts"`
	// Homes are the largest ones, as they were last measured.
	Homes []HomeOnDisk `json:"homes"`
}

// HomeOnDisk is how much somebody's home takes.
type HomeOnDisk struct {
	Handle string `json:"handle"`
	Bytes  int64  `json:"bytes"`
}

// Disks is what the socket offers about room.
type Disks interface {
	// Disk looks at everything but homes and folders, which takes a second or more.
	Disk(ctx context.Context) (Disk, error)
}

func handleDisks(mux *http.ServeMux, d Disks) {
	mux.HandleFunc("GET /v1/disk", answer(func(r *http.Request) (any, error) { return d.Disk(r.Context()) }))
}

// Disk implements Daemon.
func (c *Client) Disk(ctx context.Context) (Disk, error) {
	return call[Disk](ctx, c, "GET", "/v1/disk", nil)
}
