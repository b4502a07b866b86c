package main

import (
	"github.com/spf13/cobra"

	"github.com/gpulab/gpulab/internal/client"
)

// addStudents adds the commands of people who work in a lab, which need no
// root: they are those of the program for laptops, and speak to the lab's HTTP
// API rather than to the socket of this machine.
func addStudents(root *cobra.Command) {
	root.AddGroup(&cobra.Group{ID: "work", Title: "Working in a lab (no root needed, see `gpulab login`):"},
		&cobra.Group{ID: "run", Title: "Running the lab on this machine:"})
	for _, c := range root.Commands() {
		c.GroupID = "run"
	}
	for _, c := range (&client.App{}).Commands() {
		c.GroupID = "work"
		root.AddCommand(c)
	}
}

// ownQuota makes `gpulab quota` without a command below it show one's own, for
// whoever is signed in to a lab; the others are told which commands there are.
func ownQuota(c *cobra.Command) {
	students := &client.App{}
	var asJSON bool
	c.Args = knownCommand
	c.RunE = func(c *cobra.Command, _ []string) error {
		if !students.SignedIn() {
			return c.Help()
		}
		return students.ShowQuota(c, asJSON)
	}
	c.Example = "  gpulab quota\n" + c.Example
	c.Long = "Without a command below it, `gpulab quota` shows your own in the lab that you are\nsigned in to (gpulab login).\n\n" + c.Long
	jsonFlag(c, &asJSON)
}
