// Command k3s is the Kubernetes distribution that gpulab supervises: k3s's
// inner server and agent, without the self-extracting wrapper around them. Its
// network starts a little differently, see network.go.
//
// Started under the name containerd, kubectl or ctr it is that program.
package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/k3s-io/k3s/pkg/cli/agent"
	"github.com/k3s-io/k3s/pkg/cli/cmds"
	"github.com/k3s-io/k3s/pkg/cli/server"
	"github.com/k3s-io/k3s/pkg/cli/token"
	"github.com/k3s-io/k3s/pkg/configfilearg"
	"github.com/k3s-io/k3s/pkg/containerd"
	"github.com/k3s-io/k3s/pkg/ctr"
	"github.com/k3s-io/k3s/pkg/kubectl"
	"github.com/moby/sys/reexec"
	"github.com/sirupsen/logrus"
	"github.com/urfave/cli/v2"
	etcdversion "go.etcd.io/etcd/api/v3/version"
)

func main() {
	for name, run := range map[string]func(){
		"containerd": containerd.Main,
		"kubectl":    kubectl.Main,
		"ctr":        ctr.Main,
	} {
		reexec.Register(name, run)
	}
	self := os.Args[0]
	os.Args[0] = filepath.Base(self)
	if reexec.Init() {
		return
	}
	os.Args[0] = self

	// kine says how far its watches have come before they are there, and the API
	// server then ignores what still comes: whoever watches never hears of it
	// (mended in kine 0.16.6). As an etcd that cannot be asked how far it is, and
	// that does not say so by itself, it misses nothing.
	etcdversion.Version = "3.5.12"
	os.Setenv("KINE_WATCH_PROGRESS_NOTIFY_INTERVAL", "87600h")

	app := cmds.NewApp()
	app.DisableSliceFlagSeparator = true
	app.Commands = []*cli.Command{
		cmds.NewServerCommand(server.Run),
		cmds.NewAgentCommand(agent.Run),
		cmds.NewTokenCommands(token.Create, token.Delete, token.Generate, token.List, token.Rotate),
	}
	if err := app.Run(configfilearg.MustParse(os.Args)); err != nil && !errors.Is(err, context.Canceled) {
		logrus.Fatalf("k3s: %v", err)
	}
}
