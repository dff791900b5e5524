package main

import (
	"fmt"
	"strings"

	"github.com/rlnode/rlnode/rules"
)

// starterCmd prints sets of rules to begin with.
type starterCmd struct {
	Name string `arg:"" optional:"" help:"The set; without it, list them."`
}

// Help implements kong.HelpProvider.
func (starterCmd) Help() string {
	return `Each set is a rules file with comments, which say what it did to an example log.

Examples:

  rlnode starter                       the sets, and what they are for
  rlnode starter login > rules.yaml    a file to change and apply`
}

// Run prints a set, or the list of them.
func (c *starterCmd) Run(env *environment) error {
	if c.Name == "" {
		for _, name := range rules.StarterNames {
			fmt.Fprintf(env.stdout, "%-12s %s\n", name, rules.StarterTitle(name))
		}
		return nil
	}
	text := rules.StarterSet(c.Name)
	if text == nil {
		return usageError("there is no set %q: the sets are %s", c.Name, strings.Join(rules.StarterNames, ", "))
	}
	_, err := env.stdout.Write(text)
	return err
}

// schemaCmd prints the JSON Schema of the rules file.
type schemaCmd struct{}

// Help implements kong.HelpProvider.
func (schemaCmd) Help() string {
	return `Editors complete keys by it, and mark mistakes. It needs no node; a node serves the schema of its release at /schema.json.

Example:

  rlnode schema > rlnode-rules.schema.json`
}

// Run prints the schema.
func (schemaCmd) Run(env *environment) error {
	_, err := fmt.Fprintf(env.stdout, "%s\n", rules.Schema())
	return err
}
