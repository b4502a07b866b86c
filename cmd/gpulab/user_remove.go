package main

import (
	"bufio"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpulab/gpulab/internal/ctl"
)

func newUserRemove(a *app) *cobra.Command {
	var yes, purge, asJSON bool
	c := &cobra.Command{
		Use: "remove HANDLE", Short: "Remove a person; account and home can come back for 30 days",
		Long: `Remove a person: sessions, notebooks and open connections end at once, and nobody
signs in with the account any more. For 30 days account and home are kept, and
` + "`gpulab user undelete`" + ` brings both back. Then they are deleted for good.

With --purge both are deleted now; this also works for somebody who was removed
before. The handle and the UID are never given to anybody else.`,
		Example: "  sudo gpulab user remove ada\n  sudo gpulab user remove --yes ada\n  sudo gpulab user remove " +
			"--purge ada",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeHandles,
		RunE: func(c *cobra.Command, args []string) error {
			if err := requireRoot(c); err != nil {
				return err
			}
			if !yes {
				sure, err := sureToRemove(c, args[0], purge)
				if err != nil || !sure {
					return err
				}
			}
			removal, err := a.client().RemoveUser(c.Context(), args[0], purge)
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(c.OutOrStdout(), removal)
			}
			_, err = fmt.Fprintln(c.OutOrStdout(), removedWords(removal))
			return err
		},
	}
	c.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	c.Flags().BoolVar(&purge, "purge", false, "delete account and home now, for good")
	jsonFlag(c, &asJSON)
	return c
}

// sureToRemove asks. What cannot be taken back takes the handle for an answer.
func sureToRemove(c *cobra.Command, handle string, purge bool) (bool, error) {
	if !isTerminal(c.InOrStdin()) {
		if purge {
			return false, fail(exitUsage, "this deletes the account and the home of %s for good; say --yes to do it", handle)
		}
		return false, fail(exitUsage, "removing %s ends their notebooks; say --yes to do it", handle)
	}
	q := &asker{in: bufio.NewReader(c.InOrStdin()), out: c.OutOrStdout()}
	return askToRemove(q, handle, purge), nil
}

func askToRemove(q *asker, handle string, purge bool) bool {
	if purge {
		typed := q.line(fmt.Sprintf("This deletes the account and the home folder of %s now. Nothing brings them "+
			"back.\nType the handle to do it:", handle), "keep")
		if typed == handle {
			return true
		}
		fmt.Fprintln(q.out, "Nothing was deleted.")
		return false
	}
	return strings.EqualFold(q.line(fmt.Sprintf("Remove %s and end their notebooks? Account and home can come back for "+
		"30 days. (yes/no)", handle), "no"), "yes")
}

func removedWords(r ctl.Removal) string {
	switch {
	case !r.Purge.IsZero():
		return fmt.Sprintf("%s is removed. The home %s is kept until %s; until then `gpulab user undelete %s` brings "+
			"both back.",
			r.Handle, r.Home, r.Purge.Local().Format("2 January 2006"), r.Handle)
	case r.HomeDeleted:
		return fmt.Sprintf("%s is deleted, and so is the home %s.", r.Handle, r.Home)
	}
	return fmt.Sprintf("%s is deleted. The home %s is being deleted; gpulab goes on with it until nothing is left.",
		r.Handle, r.Home)
}
