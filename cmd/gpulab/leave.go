package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpulab/gpulab/internal/config"
	"github.com/gpulab/gpulab/internal/embedk8s"
	"github.com/gpulab/gpulab/internal/nodeapi"
)

func newLeave(a *app) *cobra.Command {
	var yes bool
	c := &cobra.Command{
		Use: "leave", Short: "Take this machine out of its pool, and gpulab off it",
		Long: `Take this machine, which has joined a pool, out of it again: notebooks here end,
and everything of gpulab goes. Homes do not lie here and are not touched. The
head is told, if it can be reached. It may be interrupted and run again.`,
		Example: "  sudo gpulab leave\n  sudo gpulab leave --yes",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := requireRoot(c); err != nil {
				return err
			}
			if _, err := os.Stat(joinedPath(a)); errors.Is(err, fs.ErrNotExist) {
				return fail(exitUsage, "this machine has not joined a pool; `gpulab reset` takes a lab off its head")
			}
			return leavePool(c, a, yes)
		},
	}
	c.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	return c
}

func leavePool(c *cobra.Command, a *app, yes bool) error {
	ctx, out := c.Context(), c.OutOrStdout()
	file, err := loadJoined(a)
	if err != nil { // damaged: what is there goes all the same
		fmt.Fprintf(out, "  ! %s\n", err)
		file = &joinedFile{path: joinedPath(a)}
	}
	if !yes {
		if !isTerminal(c.InOrStdin()) {
			return fail(exitUsage, "this ends every notebook on this machine; say --yes to do it")
		}
		q := &asker{in: bufio.NewReader(c.InOrStdin()), out: out}
		if answer := q.line("This ends every notebook on this machine and takes gpulab off it. Go on? (yes/no)",
			"no"); !strings.EqualFold(answer, "yes") {
			return nil
		}
	}
	cfg := file.config()
	if err := a.mayEnd(cfg); err != nil {
		return err
	}
	step := func(s string) { fmt.Fprintf(out, "· %s\n", s) }
	began := time.Now()
	if len(file.Head) > 0 {
		step("telling the head")
		err := tellHead(ctx, file)
		if p := (*nodeapi.Problem)(nil); errors.As(err, &p) && p.Status == http.StatusConflict { // a copy of another
			fmt.Fprintf(out, "  ! %s stays in the pool: %s.\n", file.Name, firstSentence(p.Message))
		} else if err != nil {
			fmt.Fprintf(out, "  ! The head does not know: %s. Run `gpulab nodes remove %s` there.\n", err, file.Name)
		}
	}
	if err := endLab(ctx, a, cfg, false, step); err != nil {
		return fmt.Errorf("%w; run `gpulab leave` again", err)
	}
	if err := removeJoined(a, file, cfg, step); err != nil {
		return fmt.Errorf("%w; run `gpulab leave` again", err)
	}
	fmt.Fprintf(out, "✓ gpulab is off this machine (%s).\n", round(time.Since(began)))
	return nil
}

// tellHead takes the machine out of the head's list.
func tellHead(ctx context.Context, file *joinedFile) error {
	pass, err := loadPassport(file.config())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	client := nodeapi.Member(file.places(), pass.authority, func() (*tls.Certificate, error) {
		return pass.certificate, nil
	})
	err = client.Leave(ctx)
	if p := (*nodeapi.Problem)(nil); errors.As(err, &p) && p.Removed {
		return nil
	}
	return err
}

// removeJoined deletes what is left when nothing runs any more.
func removeJoined(a *app, file *joinedFile, cfg config.Config, step func(string)) error {
	if err := releaseDriver(step); err != nil {
		return err
	}
	step("deleting state")
	if err := embedk8s.RemoveFiles(cfg.DataDir); err != nil {
		return err
	}
	for _, path := range []string{a.socket, a.socket + ".pid", a.socket + ".init", file.path} {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	if err := unlinkCommand(); err != nil {
		return err
	}
	_ = os.Remove(filepath.Dir(file.path)) // only if nothing else is in it
	_ = os.Remove(filepath.Dir(a.socket))
	return nil
}

// leaveFromWithin is what an agent does whose machine was removed: all that
// leave does, and then it ends itself.
func leaveFromWithin(ctx context.Context, a *app, file *joinedFile, step func(string)) error {
	cfg := file.config()
	if err := mayTakeOff(cfg); err != nil {
		return fmt.Errorf("%w: `gpulab leave`", err)
	}
	own := haveSystemd() && os.Getenv("INVOCATION_ID") != ""
	if own {
		if err := systemctl(ctx, "--quiet", "disable", serviceUnit); err != nil {
			return err
		}
	}
	if err := takeOff(ctx, cfg, false, step); err != nil {
		return fmt.Errorf("%w; run `gpulab leave` on this machine", err)
	}
	if err := removeJoined(a, file, cfg, step); err != nil {
		return fmt.Errorf("%w; run `gpulab leave` on this machine", err)
	}
	if !own {
		return nil
	}
	// It would be started again otherwise, and be a head.
	return errors.Join((systemd{"/"}).forgetOwnUnits(), systemctl(ctx, "daemon-reload"),
		systemctl(ctx, "--no-block", "stop", serviceUnit))
}
