package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpulab/gpulab/internal/embedk8s"
	"github.com/gpulab/gpulab/internal/lxcfs"
)

// podsGrace is how long notebooks have to save when the machine goes down.
const podsGrace = 10 * time.Second

// newEndPods is what gpulab-pods.service runs when the machine goes down.
func newEndPods(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "end-pods", Short: "End every notebook on this machine in order", Hidden: true,
		Long: `End every notebook and every other pod on this machine: each is asked to end, and
killed after ten seconds. The unit gpulab-pods.service does this when the machine
goes down. A gpulab that runs would start pods again.`,
		Example: "  sudo gpulab end-pods",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := requireRoot(c); err != nil {
				return err
			}
			cfg, err := machineConfig(a)
			if err != nil {
				return err
			}
			if err := mayTakeOff(cfg); err != nil {
				return err
			}
			if made, err := embedk8s.Made(cfg.DataDir); err != nil || !made { // pods there are somebody else's
				if err == nil {
					_, err = fmt.Fprintln(c.OutOrStdout(), "No lab runs on this machine.")
				}
				return err
			}
			asked, killed := embedk8s.EndPods(c.Context(), cfg.DataDir, embedk8s.CgroupRoot(cfg.K3s.KubeletArgs), podsGrace)
			if err := lxcfs.Stop(); err != nil { // no container is left that shows its files
				return err
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "%d containers were asked to end; %d processes were killed after %s.\n", asked,
				killed, podsGrace)
			return err
		},
	}
}
