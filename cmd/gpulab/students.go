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

// ownQuota makes `gpulab quota` without a command below it show one's own.
func ownQuota(c *cobra.Command) {
	students := &client.App{}
	c.Example = "  gpulab quota\n" + c.Example
	c.Long = "Without a command below it, `gpulab quota` shows your own in the lab that you are\nsigned in to (gpulab " +
		"login).\n\n" + c.Long
	forStudents(c, students, students.ShowQuota)
}

// labEnvs makes `gpulab env` without a command below it list those of the lab.
func labEnvs(c *cobra.Command) {
	students := &client.App{}
	c.Example = "  gpulab env\n" + c.Example
	c.Long = "Without a command below it, `gpulab env` lists those of the lab that you are signed\nin to (gpulab " +
		"login).\n\n" + c.Long
	forStudents(c, students, students.ShowEnvironments)
}

// forStudents makes a command of root's, without one below it, show something to
// whoever is signed in to a lab; the others are told which commands there are.
func forStudents(c *cobra.Command, students *client.App, show func(c *cobra.Command, asJSON bool) error) {
	var asJSON bool
	c.Args = knownCommand
	c.RunE = func(c *cobra.Command, _ []string) error {
		if !students.SignedIn() {
			return c.Help()
		}
		return show(c, asJSON)
	}
	jsonFlag(c, &asJSON)
}
