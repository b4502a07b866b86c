package client

import (
	"cmp"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/gpulab/gpulab/internal/units"
)

// Env lists the lab's environments. Like Quota it stands apart from Commands: root's command of that name has others
// below it.
func (a *App) Env() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "env", Short: "List the environments that the lab's notebooks and jobs share, such as PyTorch",
		Example: "  gpulab env\n  gpulab run --env pytorch -- python train.py",
		Args:    cobra.NoArgs,
		RunE:    func(c *cobra.Command, _ []string) error { return a.ShowEnvironments(c, asJSON) },
	}
	jsonFlag(c, &asJSON)
	return c
}

type environments struct {
	Environments []struct {
		Name     string `json:"name"`
		Version  string `json:"version"`
		Title    string `json:"title"`
		Python   string `json:"python"`
		CUDA     string `json:"cuda"`
		Obstacle string `json:"obstacle"`
		Packages int    `json:"packages"`
		Size     int64  `json:"size"`
		Default  bool   `json:"default"`
	} `json:"environments"`
}

// ShowEnvironments prints the environments of the lab.
func (a *App) ShowEnvironments(c *cobra.Command, asJSON bool) error {
	return answered(a, c, "/environments", asJSON, func(_ *Session, list environments) error {
		out := c.OutOrStdout()
		if len(list.Environments) == 0 {
			_, err := fmt.Fprintln(out, "This lab has no environments yet. An admin can build PyTorch and others, on the "+
				"page Environments.")
			return err
		}
		rows := [][]string{{"ENVIRONMENT", "TITLE", "PYTHON", "PACKAGES", "SIZE", "NEEDS", ""}}
		for _, e := range list.Environments {
			needs, def := "–", ""
			if e.CUDA != "" {
				needs = "CUDA " + e.CUDA
			}
			if e.Default {
				def = "default"
			}
			rows = append(rows, []string{
				e.Name + "/" + e.Version, plain(e.Title), cmp.Or(e.Python, "–"), strconv.Itoa(e.Packages),
				units.Bytes(uint64(max(e.Size, 0))), needs, def,
			})
		}
		if err := table(out, rows); err != nil {
			return err
		}
		for _, e := range list.Environments {
			if e.Obstacle != "" {
				fmt.Fprintln(out, "! "+plain(e.Obstacle))
			}
		}
		return nil
	})
}
