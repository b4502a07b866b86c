package assets

import (
	"embed"
	"io/fs"
)

//go:embed environments/*.txt
var environmentFiles embed.FS

// Environments returns the catalogue of environments, one requirements file for each.
func Environments() fs.FS {
	sub, err := fs.Sub(environmentFiles, "environments")
	if err != nil {
		panic(err) // the name is a valid path by construction
	}
	return sub
}
