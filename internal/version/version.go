// Package version holds the version of this build of gpulab. Anyone may
// import it; it imports nothing.
package version

// Version is set by the linker in release builds.
var Version = "0.1.0-dev"
