package main

import (
	"fmt"

	"github.com/rlnode/rlnode/internal/secret"
)

// secretCmd prints a new secret.
type secretCmd struct{}

// Help implements kong.HelpProvider.
func (secretCmd) Help() string {
	return `With the secret, the nodes of a cluster prove to each other who they are, in all its regions: 32 random bytes in
base64, in a file that is the same on every node. Anyone who has it can be a node, so protect the file like a private key.

To change the secret while the cluster runs, take three steps, each on every node before the next one: write the file with
the old secret and below it the new one; the new one and below it the old one; the new one alone. A node logs when it has
read the file.

Examples:

  rlnode secret > cluster.secret
  rlnode serve --bind 10.0.0.5 --join 10.0.0.6,10.0.0.7 --cluster-secret-file cluster.secret
  rlnode secret >> cluster.secret        # the first step of a change`
}

// Run prints the secret.
func (secretCmd) Run(env *environment) error {
	_, err := fmt.Fprintln(env.stdout, secret.New())
	return err
}
