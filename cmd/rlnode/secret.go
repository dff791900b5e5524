package main

import (
	"fmt"

	"github.com/rlnode/rlnode/cluster/secret"
)

// secretCmd prints a new secret.
type secretCmd struct{}

func (secretCmd) Run(env *environment) error {
	_, err := fmt.Fprintln(env.stdout, secret.New())
	return err
}
