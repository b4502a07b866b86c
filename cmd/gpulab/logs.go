package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/gpulab/gpulab/internal/client"
	"github.com/gpulab/gpulab/internal/config"
	"github.com/gpulab/gpulab/internal/journal"
)

// logsOptions is what of a log to show.
type logsOptions struct {
	lines     int
	follow    bool
	component string
}

func newLogs(a *app) *cobra.Command {
	var o logsOptions
	c := &cobra.Command{
		Use: "logs [gpulab|k3s|hub|probe|JOB]", Short: "Show the log of gpulab, its Kubernetes, its JupyterHub or its GPU " +
			"probe; or of a job",
		Long: `Show the log of gpulab, its Kubernetes, its JupyterHub or its GPU probe; or what
a job of yours has said, by its number or name, without root.

With systemd all but the hub's is in the journal too, with fields of its own:
SYSLOG_IDENTIFIER is gpulab, k3s or gpulab-probe; GPULAB_COMPONENT is the part
of gpulab; GPULAB_USER, GPULAB_NOTEBOOK, GPULAB_LAUNCH and others say what a
line is about. So journalctl can choose by them:
journalctl -u gpulab -p warning GPULAB_USER=ada`,
		Example: `  sudo gpulab logs -f
  sudo gpulab logs --component charts
  sudo gpulab logs k3s -n 500
  sudo gpulab logs hub
  gpulab logs -f 12`,
		Args:      cobra.MaximumNArgs(1),
		ValidArgs: []string{"gpulab", "k3s", "hub", "probe"},
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 1 && !slices.Contains(c.ValidArgs, args[0]) {
				return (&client.App{}).JobLog(c, args[0], o.follow)
			}
			if err := requireRoot(c); err != nil {
				return err
			}
			cfg, err := loadConfig(a.configPath)
			if err != nil {
				return err
			}
			part := "gpulab"
			if len(args) == 1 {
				part = args[0]
			}
			if err := o.check(part); err != nil {
				return err
			}
			err = showLog(c, cfg, part, o)
			if c.Context().Err() != nil {
				return nil // Ctrl-C is how one leaves -f
			}
			return err
		},
	}
	c.Flags().BoolVarP(&o.follow, "follow", "f", false, "go on showing new lines")
	c.Flags().IntVarP(&o.lines, "lines", "n", 200, "how many lines")
	c.Flags().StringVar(&o.component, "component", "", "only of this part of gpulab, such as charts, notebooks or power")
	return c
}

func (o logsOptions) check(part string) error {
	switch {
	case o.lines < 0:
		return fail(exitUsage, "--lines is %d, but nobody can show less than no line", o.lines)
	case o.component == "":
		return nil
	case part != "gpulab":
		return fail(exitUsage, "--component chooses from gpulab's own log; leave it out to see the log of %s", part)
	case strings.ContainsFunc(o.component, func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') }):
		return fail(exitUsage, "--component is %q, but parts of gpulab are called charts, notebooks, power and so on",
			o.component)
	}
	return nil
}

func showLog(c *cobra.Command, cfg config.Config, part string, o logsOptions) error {
	if part == "hub" {
		kubectl := []string{"--namespace", systemNamespace, "logs", "deploy/hub", "--tail", strconv.Itoa(o.lines)}
		if o.follow {
			kubectl = append(kubectl, "--follow")
		}
		return runKubectl(c, cfg, kubectl)
	}
	if part == "gpulab" && haveSystemd() {
		return runShown(c, "journalctl", o.journalctl()...)
	}
	path := filepath.Join(cfg.DataDir, "log", part+".log")
	if _, err := os.Stat(path); err != nil {
		return errors.New("there is no log yet; start gpulab with `gpulab init`")
	}
	if o.component != "" {
		return showComponent(c.Context(), c.OutOrStdout(), path, o)
	}
	args := []string{"-n", strconv.Itoa(o.lines)}
	if o.follow {
		args = append(args, "-f")
	}
	return runShown(c, "tail", append(args, path)...)
}

// journalctl are its arguments for gpulab's own lines, and systemd's about it.
func (o logsOptions) journalctl() []string {
	args := []string{"-u", "gpulab", "-o", "short-iso", "--no-hostname", "-n", strconv.Itoa(o.lines)}
	if o.follow {
		args = append(args, "-f")
	}
	if o.component != "" {
		return append(args, journal.ComponentField+"="+o.component)
	}
	return append(args, "-t", journal.Identifier, "-t", "systemd")
}

// runShown runs a program and shows what it writes.
func runShown(c *cobra.Command, program string, args ...string) error {
	cmd := exec.CommandContext(c.Context(), program, args...)
	cmd.Stdout, cmd.Stderr = c.OutOrStdout(), c.ErrOrStderr()
	return cmd.Run()
}

// showComponent writes the last lines of a text log that are of one part of
// gpulab, and those that follow.
func showComponent(ctx context.Context, out io.Writer, path string, o logsOptions) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("the log: %w", err)
	}
	defer f.Close()
	mark := " " + journal.ComponentKey + "=" + o.component
	var last []string
	in := bufio.NewReader(f)
	read := int64(0)
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			break // the rest of a line comes with what follows
		}
		read += int64(len(line))
		if strings.HasSuffix(strings.TrimRight(line, "\n"), mark) {
			last = append(last, line)
			last = last[max(0, len(last)-o.lines):]
		}
	}
	if _, err := io.WriteString(out, strings.Join(last, "")); err != nil || !o.follow {
		return err
	}
	cmd := exec.CommandContext(ctx, "tail", "-c", "+"+strconv.FormatInt(read+1, 10), "-f", path)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	for lines := bufio.NewScanner(stdout); lines.Scan(); {
		if strings.HasSuffix(lines.Text(), mark) {
			fmt.Fprintln(out, lines.Text())
		}
	}
	return cmd.Wait()
}

// followLogs passes on what k3s and the probe write to the journal, where there
// is one.
func (l *appliance) followLogs(ctx context.Context, g *errgroup.Group) {
	for name, identifier := range map[string]string{"k3s": "k3s", "probe": "gpulab-probe"} {
		g.Go(func() error { return journal.Follow(ctx, filepath.Join(l.cfg.DataDir, "log", name+".log"), identifier) })
	}
}
