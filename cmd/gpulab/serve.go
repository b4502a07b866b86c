package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/gpulab/gpulab/internal/journal"
	"github.com/gpulab/gpulab/internal/upgrade"
	"github.com/gpulab/gpulab/internal/version"
)

func newServe(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "serve", Short: "Run the lab in the foreground (what the service does)",
		Long: `Run the lab in the foreground. The service started by gpulab init does this;
by hand it is useful where there is no systemd. Ending it leaves notebooks
running; the next start takes them over.`,
		Example: "  sudo gpulab serve",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := requireRoot(c); err != nil {
				return err
			}
			unlock, err := lockDaemon(a.socket + ".pid")
			if err != nil {
				return err
			}
			defer unlock()
			// What people's pods read has to be readable, whatever the shell's umask.
			syscall.Umask(0o022)
			if joined, err := loadJoined(a); err != nil || joined != nil {
				if err != nil {
					return err
				}
				slog.SetDefault(slog.New(journal.Handler(c.ErrOrStderr())))
				go keepOwnLog(c.Context(), joined.config())
				return runAgent(c.Context(), a, joined)
			}
			if err := finishRestore(c.Context(), a, c.ErrOrStderr()); err != nil {
				return err
			}
			cfg, err := loadConfig(a.configPath)
			if err != nil {
				return err
			}
			if err := upgrade.Tidy(cfg.DataDir, version.Version); err != nil {
				return err
			}
			slog.SetDefault(slog.New(journal.Handler(c.ErrOrStderr())))
			go keepOwnLog(c.Context(), cfg)
			if err := takeGPUs(a, &cfg); err != nil {
				return err
			}
			lab, err := newAppliance(cfg, a)
			if err != nil {
				return err
			}
			return startAgain(lab.run(c.Context()))
		},
	}
}

// lockDaemon makes sure that one daemon runs per machine, and writes its number
// into the file.
func lockDaemon(path string) (unlock func(), err error) {
	f, err := lockFile(path, fail(exitFailure, "gpulab already runs on this machine; see `gpulab status`"))
	if err != nil {
		return nil, err
	}
	err = f.Truncate(0)
	if err == nil {
		_, err = f.WriteAt([]byte(strconv.Itoa(os.Getpid())), 0)
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return func() { _ = f.Close() }, nil
}

// explainListen turns a listening error into a sentence with the next step.
func explainListen(what string, port int, err error) error {
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("port %d is taken by another program, but %s need it; end that program (`ss -ltnp sport = :%d` "+
			"shows it) or choose another port in the configuration", port, what, port)
	}
	return fmt.Errorf("listening on port %d for %s: %w", port, what, err)
}

// all runs functions side by side until the first error or the end of ctx, and
// waits for all of them.
func all(ctx context.Context, fns ...func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan struct{}, len(fns))
	for _, fn := range fns {
		go func() {
			if err := fn(ctx); err != nil && ctx.Err() == nil {
				cancel(err)
			}
			done <- struct{}{}
		}()
	}
	for range fns {
		<-done
	}
	if err := context.Cause(ctx); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}
