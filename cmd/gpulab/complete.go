package main

import (
	"slices"

	"github.com/spf13/cobra"

	"github.com/gpulab/gpulab/internal/users"
)

// completeHandles lets root's shell complete people.
func (a *app) completeHandles(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.handles(c, users.Query{}), cobra.ShellCompDirectiveNoFileComp
}

// completeRemoved lets it complete those who can come back.
func (a *app) completeRemoved(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.handles(c, users.Query{State: users.StateRemoved}), cobra.ShellCompDirectiveNoFileComp
}

func (a *app) completeGroup(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.groupNames(c), cobra.ShellCompDirectiveNoFileComp
}

// completeGroupThenHandles completes a group, then people who are not there yet.
func (a *app) completeGroupThenHandles(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return a.groupNames(c), cobra.ShellCompDirectiveNoFileComp
	}
	var left []string
	for _, handle := range a.handles(c, users.Query{}) {
		if !slices.Contains(args[1:], handle) {
			left = append(left, handle)
		}
	}
	return left, cobra.ShellCompDirectiveNoFileComp
}

func (a *app) handles(c *cobra.Command, q users.Query) []string {
	list, err := a.client().Users(c.Context(), q)
	if err != nil {
		return nil
	}
	var handles []string
	for i := range list {
		handles = append(handles, list[i].Handle)
	}
	return handles
}

func (a *app) groupNames(c *cobra.Command) []string {
	list, err := a.client().Groups(c.Context())
	if err != nil {
		return nil
	}
	var names []string
	for _, g := range list {
		names = append(names, g.Name)
	}
	return names
}

// completeFlagWith lets the shell complete a flag with what the lab has.
func completeFlagWith(c *cobra.Command, flag string, values func(c *cobra.Command) []string) {
	err := c.RegisterFlagCompletionFunc(flag,
		func(c *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
			return values(c), cobra.ShellCompDirectiveNoFileComp
		})
	if err != nil {
		panic(err) // no such flag: a mistake in this program
	}
}
