package main

import (
	"fmt"
	"strings"

	"github.com/rlnode/rlnode/rules/document"
)

// starterCmd prints sets of rules to begin with.
type starterCmd struct {
	Name string `arg:"" optional:"" help:"The set; without it, list them."`
}

func (c *starterCmd) Run(env *environment) error {
	if c.Name == "" {
		for _, name := range document.StarterNames {
			fmt.Fprintf(env.stdout, "%-12s %s\n", name, document.StarterTitle(name))
		}
		return nil
	}
	text := document.StarterSet(c.Name)
	if text == nil {
		return usageError("there is no set %q: the sets are %s", c.Name, strings.Join(document.StarterNames, ", "))
	}
	_, err := env.stdout.Write(text)
	return err
}

// schemaCmd prints the JSON Schema of the rules file.
type schemaCmd struct{}

func (schemaCmd) Run(env *environment) error {
	_, err := fmt.Fprintf(env.stdout, "%s\n", document.Schema())
	return err
}
