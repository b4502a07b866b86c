package assets

import (
	"embed"
	"io/fs"
)

// The prefix all: keeps what go:embed leaves out by itself and Helm needs:
// _helpers.tpl and .helmignore.
//
//go:embed all:charts
var chartFiles embed.FS

// Charts returns the Helm charts, one folder for each.
func Charts() fs.FS {
	sub, err := fs.Sub(chartFiles, "charts")
	if err != nil {
		panic(err) // the name is a valid path by construction
	}
	return sub
}
