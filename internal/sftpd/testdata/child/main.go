// Command child is a session of sftpd alone, and a server that a test can kill.
package main

import (
	"os"

	"github.com/gpulab/gpulab/internal/sftpd"
)

func main() { os.Exit(sftpd.Child()) }
