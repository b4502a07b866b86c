package assets

import (
	"embed"
	"io/fs"
)

//go:embed web
var web embed.FS

// Web returns the files the browser loads: app.css, app.js and, under vendor/,
// what packaging/web copied from npm with its licences.
func Web() fs.FS {
	sub, err := fs.Sub(web, "web")
	if err != nil {
		// Only an invalid constant path could get here.
		panic(err)
	}
	return sub
}
