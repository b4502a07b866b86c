package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpulab/gpulab/internal/config"
	"github.com/gpulab/gpulab/internal/embedk8s"
	"github.com/gpulab/gpulab/internal/upgrade"
	"github.com/gpulab/gpulab/internal/version"
)

type rollbackFlags struct {
	yes, dryRun, json          bool
	endNotebooks, keepDatabase bool
}

func newRollback(a *app) *cobra.Command {
	f := &rollbackFlags{}
	c := &cobra.Command{
		Use:   "rollback",
		Short: "Go back to the version of gpulab before the last upgrade",
		Long: `Go back to the version of gpulab before the last upgrade: its program, its charts
and, where the newer version has changed the database's form, the database as it
was before the upgrade. It says first what would be lost since then, and asks.
Notebooks go on meanwhile.

The same command again goes forth: to the newer program, and to the database that
it has left. With --keep-database it brings today's database along, as an upgrade
does. Reinstalling or upgrading the package goes forth too.

It may be interrupted and run again: this machine always has one of the two
versions, whole.`,
		Example: `  sudo gpulab rollback --dry-run       say what would happen
  sudo gpulab rollback                 go back, or forth again
  sudo gpulab rollback --yes           ask nothing
  sudo gpulab rollback --dry-run --json | jq .lost`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := requireRoot(c); err != nil {
				return err
			}
			return rollback(c, a, f)
		},
	}
	c.Flags().BoolVarP(&f.yes, "yes", "y", false, "do not ask")
	c.Flags().BoolVar(&f.dryRun, "dry-run", false, "say what would happen, and change nothing")
	c.Flags().BoolVar(&f.endNotebooks, "end-notebooks", false, "go to another Kubernetes too, which ends every notebook")
	c.Flags().BoolVar(&f.keepDatabase, "keep-database", false, "going forth, bring today's database along")
	jsonFlag(c, &f.json)
	return c
}

func rollback(c *cobra.Command, a *app, f *rollbackFlags) error {
	ctx, out := c.Context(), c.OutOrStdout()
	if f.json && !f.yes && !f.dryRun {
		return fail(exitUsage, "--json asks nothing; say --dry-run to see the plan, or --yes to go")
	}
	// Not everything in it need be right: that may be the reason to go.
	dataDir, err := dataDirOf(a.configPath)
	if err != nil {
		return fail(exitUsage, "%s: %w", a.configPath, err)
	}
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	unlock, err := lockInit(a)
	if err != nil {
		return err
	}
	defer unlock()
	o := upgrade.Options{DataDir: dataDir, Own: thisVersion(), Program: exe, KeepDatabase: f.keepDatabase}
	if done, err := resumeRollback(c, a, o, f); done || err != nil {
		return err
	}
	plan, err := upgrade.MakePlan(ctx, o)
	if err != nil {
		return fail(exitPreflight, "%w", err)
	}
	if err := checkPlan(ctx, a, plan, f); err != nil {
		return err
	}
	if f.json {
		err = printJSON(out, plan)
	} else {
		printPlan(out, plan)
	}
	if err != nil || f.dryRun {
		return err
	}
	if !f.yes {
		if !isTerminal(c.InOrStdin()) {
			return fail(exitUsage, "say --yes to do it")
		}
		q := &asker{in: bufio.NewReader(c.InOrStdin()), out: out}
		if !strings.EqualFold(q.line("Go on? (yes/no)", "no"), "yes") {
			return nil
		}
	}
	if f.json {
		out = c.ErrOrStderr() // the plan is all that a program reads
	}
	if err := changeVersion(ctx, a, out, o, plan); err != nil {
		return err
	}
	return startVersion(ctx, a, out, o, plan.To)
}

// resumeRollback ends a rollback that was interrupted after the moment in which it happened.
func resumeRollback(c *cobra.Command, a *app, o upgrade.Options, f *rollbackFlags) (done bool, err error) {
	u, err := upgrade.Current(o.DataDir, version.Version)
	if err != nil || !u.Pending {
		return false, err
	}
	if f.dryRun {
		fmt.Fprintf(c.ErrOrStderr(), "A change from gpulab %s to %s was interrupted; the next start of gpulab ends it.\n",
			u.From, u.Version)
		return true, nil
	}
	fmt.Fprintf(c.ErrOrStderr(), "Ending the change from gpulab %s to %s, which was interrupted.\n", u.From, u.Version)
	if err := stopService(c.Context(), a); err != nil {
		return true, err
	}
	if err := a.finishRollback(u, o.DataDir); err != nil {
		return true, err
	}
	return true, startVersion(c.Context(), a, c.ErrOrStderr(), o, u.Version)
}

// checkPlan refuses, before anything changes, what could not end well.
func checkPlan(ctx context.Context, a *app, p upgrade.Plan, f *rollbackFlags) error {
	if p.Minor && !f.endNotebooks {
		return fail(exitPreflight, "gpulab %s has another Kubernetes than %s, which would end every notebook: say "+
			"--end-notebooks to go all the same", p.To, p.From)
	}
	if err := p.Check(ctx); err != nil {
		return fail(exitPreflight, "%w; nothing was changed", err)
	}
	if cfg, err := loadConfig(a.configPath); err == nil {
		if err := a.mayEnd(cfg); p.Minor && err != nil {
			return err
		}
	}
	// That version may not know a key that was written for this one.
	said, err := exec.CommandContext(ctx, p.Program, "config", "check", "--config", a.configPath).CombinedOutput()
	if err != nil {
		return fail(exitPreflight, "gpulab %s cannot work with the configuration, so nothing was changed: %s", p.To,
			strings.TrimPrefix(string(bytes.TrimSpace(said)), "gpulab: "))
	}
	return nil
}

func printPlan(w io.Writer, p upgrade.Plan) {
	way := "back"
	if p.Forth {
		way = "forth again"
	}
	fmt.Fprintf(w, "From gpulab %s %s to gpulab %s.\n\n", p.From, way, p.To)
	switch {
	case p.Copy == nil && p.Forth:
		fmt.Fprintln(w, "  Database   today's comes along; nothing is lost")
	case p.Copy == nil:
		fmt.Fprintln(w, "  Database   stays: both versions can use it; nothing is lost")
	default:
		fmt.Fprintf(w, "  Database   the one of %s comes back; today's is kept beside it\n",
			p.Copy.At.Local().Format("2 January 2006, 15:04"))
		fmt.Fprintf(w, "  Lost       what has happened since: new accounts %d, launches %d, entries of the audit log %d\n",
			p.Lost.Accounts, p.Lost.Launches, p.Lost.Audit)
	}
	if p.History {
		fmt.Fprintln(w, "  History    the curves of one version are not seen in the other")
	}
	switch {
	case p.Minor:
		fmt.Fprintln(w, "  Notebooks  all of them end: Kubernetes begins anew. Homes stay as they are")
	case p.Lost.Running > 0:
		fmt.Fprintf(w, "  Notebooks  go on, except those launched since: %d end\n", p.Lost.Running)
	default:
		fmt.Fprintln(w, "  Notebooks  go on")
	}
	fmt.Fprintln(w)
}

// changeVersion stops gpulab, not its notebooks, and puts the other version in its place.
func changeVersion(ctx context.Context, a *app, out io.Writer, o upgrade.Options, p upgrade.Plan) error {
	fmt.Fprintln(out, "· stopping gpulab")
	if err := stopService(ctx, a); err != nil {
		return err
	}
	// Nobody starts it before the databases are in their places.
	unlock, err := lockDaemon(a.socket + ".pid")
	if err != nil {
		return err
	}
	defer unlock()
	cfg, err := loadConfig(a.configPath)
	if err != nil {
		return err
	}
	// The other version may not know LXCFS: nobody would start it again, or unmount it, after it ended.
	if err := embedk8s.LXCFS(cfg.DataDir, embedk8s.CgroupRoot(cfg.K3s.KubeletArgs)).End(); err != nil {
		return fmt.Errorf("LXCFS could not be ended: %w; run `gpulab rollback` again", err)
	}
	if p.Minor {
		fmt.Fprintln(out, "· ending notebooks and Kubernetes")
		if err := endKubernetes(ctx, cfg, out); err != nil {
			return fmt.Errorf("%w; run `gpulab rollback --end-notebooks` again", err)
		}
	}
	fmt.Fprintln(out, "· changing the version")
	if err := p.Apply(ctx, o); err != nil {
		return fmt.Errorf("%w; run `gpulab rollback` again, or `gpulab init` to go on with what is there", err)
	}
	return nil
}

// endKubernetes ends every pod and forgets the cluster. The node keeps its name and its networks.
func endKubernetes(ctx context.Context, cfg config.Config, out io.Writer) error {
	if err := takeOff(ctx, cfg, true, func(s string) { fmt.Fprintf(out, "  %s\n", s) }); err != nil {
		return err
	}
	return embedk8s.ForgetCluster(cfg.DataDir)
}

// stopService ends gpulab; pods keep running.
func stopService(ctx context.Context, a *app) error {
	if haveSystemd() && (systemd{"/"}).serves(a.configPath) {
		if err := systemctl(ctx, "stop", serviceUnit); err != nil {
			return err
		}
	}
	return stopDaemon(ctx, a)
}

// startVersion starts the version that is in use now, and waits until the lab is ready.
func startVersion(ctx context.Context, a *app, out io.Writer, o upgrade.Options, to string) error {
	cfg, err := loadConfig(a.configPath)
	if err != nil {
		return err
	}
	if haveSystemd() && (systemd{"/"}).serves(a.configPath) {
		if err := systemctl(ctx, "start", serviceUnit); err != nil {
			return err
		}
		err = waitDaemon(ctx, a, nil, "journalctl -u gpulab")
	} else {
		err = startDetached(ctx, a, cfg, o.Program)
	}
	if err == nil {
		_, err = followBoot(ctx, a, out)
	}
	if err != nil {
		return fmt.Errorf("gpulab %s is in use now, but is not ready: %w. `gpulab rollback` again leads back", to, err)
	}
	fmt.Fprintf(out, "\n✓ This machine runs gpulab %s. `gpulab rollback` again leads back.\n", to)
	return nil
}
