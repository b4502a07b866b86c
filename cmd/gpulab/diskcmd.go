package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/units"
)

func newDisk(a *app) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "disk", Short: "How much room the lab has left, and what takes it",
		Long: `How much room the lab has left, and what takes it, the largest first.

Below 15 % of a disk (or 500 GiB of a very large one) administrators are told.
Below 5 % (or 100 GiB) no notebook starts and no image is brought in; what runs
goes on. When nothing is left, the databases get room that was held back, so that
people can sign in and end notebooks. All of it ends by itself with more room.`,
		Example: "  sudo gpulab disk\n  sudo gpulab disk --json | jq '.parts[0]'",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := requireRoot(c); err != nil {
				return err
			}
			disk, err := a.client().Disk(c.Context())
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(c.OutOrStdout(), disk)
			}
			return printDisk(c.OutOrStdout(), disk)
		},
	}
	jsonFlag(c, &asJSON)
	return c
}

func printDisk(w io.Writer, disk ctl.Disk) error {
	rows := [][]string{{"DISK WITH", "FREE", "OF", "USED", "STATE"}}
	for i := range disk.Filesystems {
		f := &disk.Filesystems[i]
		state := f.Level.String()
		if f.Silent {
			state = "does not answer"
		}
		rows = append(rows, []string{
			strings.Join(f.Holds, ", "), units.Bytes(f.Free), units.Bytes(f.Free + f.Used), fmt.Sprintf("%d %%", f.Percent()),
			state,
		})
	}
	if err := table(w, rows); err != nil {
		return err
	}
	fmt.Fprintln(w)
	rows = [][]string{{"WHAT TAKES ROOM", "SIZE", "WHERE"}}
	for _, p := range disk.Parts {
		if p.Bytes > 0 {
			rows = append(rows, []string{p.Name, units.Bytes(p.Bytes), p.Path})
		}
	}
	if err := table(w, rows); err != nil {
		return err
	}
	if len(disk.Homes) == 0 {
		return nil
	}
	fmt.Fprintln(w)
	rows = [][]string{{"LARGEST HOMES", "SIZE"}}
	for _, h := range disk.Homes {
		rows = append(rows, []string{h.Handle, units.Bytes(uint64(h.Bytes))})
	}
	return table(w, rows)
}
