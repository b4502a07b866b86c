package client

import (
	"fmt"

	"github.com/spf13/cobra"
)

// NewExitCodes says what the exit codes of both programs mean.
func NewExitCodes() *cobra.Command {
	return &cobra.Command{
		Use: "exit-codes", Short: "What gpulab's exit codes mean",
		Example: "  gpulab exit-codes",
		Args:    cobra.NoArgs,
		Long: `gpulab's exit codes:

  0  done
  1  something failed; the last line says what, and what to do
  2  the command line or the configuration is wrong
  3  the command needs root
  4  the machine is not ready for gpulab, or the doctor found something to mend;
     each reason is shown
  5  gpulab does not run on this machine
  6  gpulab runs, but is not ready (gpulab status)
  7  this computer is not signed in to a lab, or not any more (gpulab login)
  8  the lab cannot be reached, or is not the one that was trusted
  9  the lab refused it: by role, scope or quota, or there is no such thing
 10  the notebook or the job did not start`,
		RunE: func(c *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(c.OutOrStdout(), c.Long)
			return err
		},
	}
}
