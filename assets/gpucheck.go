package assets

import _ "embed"

// VectorAdd is a Python program that computes on a GPU and says what it saw.
//
//go:embed gpucheck/vectoradd.py
var VectorAdd string
