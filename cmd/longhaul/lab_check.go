package main

import "github.com/spf13/cobra"

func newLabCheck(env *env) *cobra.Command {
	return &cobra.Command{Use: "check", Hidden: true}
}
