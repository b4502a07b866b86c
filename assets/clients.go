package assets

import (
	"embed"
	"io/fs"
)

//go:embed clients
var clients embed.FS

// Clients returns the programs for people's own computers that packaging/clients built: index.json and one file for
// each system, compressed with zstd. There is no index.json where they were not built.
func Clients() fs.FS {
	sub, err := fs.Sub(clients, "clients")
	if err != nil {
		// Only an invalid constant path could get here.
		panic(err)
	}
	return sub
}
