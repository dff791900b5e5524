package main

import (
	"fmt"

	"github.com/rlnode/rlnode/internal/secret"
)

// secretCmd prints a new secret.
type secretCmd struct{}

// Help implements kong.HelpProvider.
func (secretCmd) Help() string {
	return `The secret is what the nodes of a cluster, in all its regions, prove to each other who they are with: 32 random bytes in
base64, in a file that is the same on every node. Whoever has it can be a node, so keep the file as you keep a private key.

To change it while the cluster runs, write the file on every node before you go on to the next step: the old secret and
below it the new one; the new one and below it the old one; the new one alone. A node says in its log when it has read it.

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
