// Package assets holds the files that travel inside the gpulab binary: the
// runtime bundle, the charts, and what web pages are made of. It knows nothing
// of what they are for and imports no other package of gpulab; cmd/gpulab
// hands each part to the package that uses it.
package assets
