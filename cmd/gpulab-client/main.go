// Command gpulab-client is gpulab for people's own computers, where it is installed under the name gpulab: the commands
// of internal/client and nothing else. It needs nothing of the machine and builds for Linux, macOS and Windows.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/gpulab/gpulab/internal/client"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := (&client.App{}).Root().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "gpulab: "+err.Error())
	}
	os.Exit(client.ExitCode(err))
}
