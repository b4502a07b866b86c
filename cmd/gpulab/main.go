// Command gpulab turns a lab's GPU machines into one shared, self-service
// pool. This package holds the flags, the wiring of all parts (appliance.go)
// and one file per command; what the parts do is in internal/.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/gpulab/gpulab/internal/client"
	"github.com/gpulab/gpulab/internal/config"
	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/sftpd"
	"github.com/gpulab/gpulab/internal/version"
)

// Exit codes, as documented in `gpulab exit-codes`; those from 7 on are of
// package client.
const (
	exitOK         = 0
	exitFailure    = 1
	exitUsage      = 2
	exitNotRoot    = 3
	exitPreflight  = 4
	exitNotRunning = 5
	exitNotReady   = 6
)

// codedError carries the exit code of an error.
type codedError struct {
	code int
	error
}

func (e codedError) Unwrap() error { return e.error }

// fail returns an error that ends the program with code.
func fail(code int, format string, args ...any) error {
	return codedError{code, fmt.Errorf(format, args...)}
}

func main() {
	// It serves a student: nothing of the other commands is even parsed.
	if len(os.Args) == 2 && os.Args[1] == sftpSession {
		os.Exit(sftpd.Child())
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run executes one command line and returns its exit code.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	cmd := newRoot()
	cmd.SetArgs(args)
	cmd.SetIn(stdin)
	cmd.SetOut(stdout)
	cmd.SetErr(stderr)
	err := cmd.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	fmt.Fprintln(stderr, "gpulab: "+err.Error())
	var coded codedError
	switch {
	case errors.As(err, &coded):
		return coded.code
	case errors.Is(err, ctl.ErrNotRunning):
		return exitNotRunning
	}
	return client.ExitCode(err)
}

// app holds what every command shares.
type app struct {
	configPath string
	socket     string
}

func (a *app) client() *ctl.Client { return ctl.NewClient(a.socket) }

func newRoot() *cobra.Command {
	a := &app{}
	root := &cobra.Command{
		Use:   "gpulab",
		Short: "One shared, self-service pool out of a lab's GPU machines",
		Long: `gpulab turns a lab's GPU machines into one shared, self-service pool:
an embedded Kubernetes with JupyterHub, and a web page for everybody else.

What the exit codes mean: gpulab exit-codes.`,
		Example: `  sudo gpulab init          set this machine up; run again, it converges
  sudo gpulab status        how every part is, and what to do next
  sudo gpulab doctor        what is wrong, and the command that mends it
  sudo gpulab admin-link    the one-time link for the first administrator`,
		Version:       version.Version,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.CompletionOptions.SetDefaultShellCompDirective(cobra.ShellCompDirectiveNoFileComp)
	root.PersistentFlags().StringVar(&a.configPath, "config", config.DefaultPath, "configuration file")
	root.PersistentFlags().StringVar(&a.socket, "socket", ctl.DefaultSocket, "control socket of the running gpulab")
	if err := root.MarkPersistentFlagFilename("config", "yaml", "yml"); err != nil {
		panic(err) // no such flag
	}
	root.PersistentPreRunE = func(c *cobra.Command, _ []string) error { return a.handOver(c) }
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return fail(exitUsage, "%w; see `%s --help`", err, c.CommandPath())
	})
	root.AddCommand(
		newInit(a), newDriver(a), newServe(a), newStatus(a), newBackup(a), newRestore(a), newDoctor(a), newReset(a),
		newRollback(a),
		newInviteNode(a), newJoin(a), newNodes(a), newLeave(a), newAgentCommand(a), newEndPods(a), newAdminLink(a),
		newAudit(a), newUser(a), newGroup(a), newFolder(a), newInvitation(a),
		newRequest(a), newQuota(a), newSignIn(a), newTailnet(a), newMail(a), newCharts(a), newGPUs(a), newReport(a),
		newImages(a), newEnv(a), newMetrics(a), newDisk(a),
		newLogs(a), newKubectl(a), newCA(a), newConfig(a), newVersion(a), newManPages(), client.NewExitCodes(),
	)
	addStudents(root)
	wrapArgs(root)
	return root
}

// wrapArgs makes wrong arguments, an unknown command among them, a usage error
// everywhere.
func wrapArgs(c *cobra.Command) {
	if c.HasSubCommands() && c.RunE == nil {
		c.Args = knownCommand
		c.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
	}
	if check := c.Args; check != nil {
		c.Args = func(c *cobra.Command, args []string) error {
			if err := check(c, args); err != nil {
				return fail(exitUsage, "%w; see `%s --help`", err, c.CommandPath())
			}
			return nil
		}
	}
	for _, sub := range c.Commands() {
		wrapArgs(sub)
	}
}

// completeFlag lets the shell complete a flag's values.
func completeFlag(c *cobra.Command, flag string, values ...string) {
	if err := c.RegisterFlagCompletionFunc(flag,
		cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err) // no such flag: a mistake in this program
	}
}

// requireRoot explains who may run the command.
func requireRoot(c *cobra.Command) error {
	if os.Geteuid() != 0 {
		return fail(exitNotRoot, "this needs root; run `sudo %s`", c.CommandPath())
	}
	return nil
}

// knownCommand refuses the first word after a command that has only commands
// of its own, and says which one may have been meant.
func knownCommand(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	err := fmt.Errorf("unknown command %q for %q", args[0], c.CommandPath())
	c.SuggestionsMinimumDistance = 2
	if near := c.SuggestionsFor(args[0]); len(near) > 0 {
		err = fmt.Errorf("%w; did you mean %q?", err, near[0])
	}
	return err
}
