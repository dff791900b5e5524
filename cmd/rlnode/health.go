package main

import (
	"fmt"

	"github.com/rlnode/rlnode/api"
)

// healthCmd reports whether a node is ready.
type healthCmd struct {
	Insecure bool `help:"With https: don't verify the node's certificate, for example because it is for another address."`
	eitherPlane
}

// Help implements kong.HelpProvider.
func (healthCmd) Help() string {
	return `For health checks of containers, which have no curl. It prints one line.

Examples:

  rlnode health
  rlnode health --addr https://127.0.0.1:8080 --insecure
  rlnode health --admin http://127.0.0.1:8081

Exit codes: 0 the node is ready, 1 it is not ready or can't be reached, 2 the command line is invalid.`
}

// Run asks the node and prints its state.
func (c *healthCmd) Run(env *environment) error {
	n, err := c.probed()
	if err != nil {
		return err
	}

	n.transport.TLSClientConfig.InsecureSkipVerify = c.Insecure
	r, err := n.send(env.ctx, request{path: "/readyz"})
	if err != nil {
		return err
	}

	var health api.Health
	if err := r.decode(&health); err != nil {
		return err
	}

	text := printable(health.Node) + " is ready"
	if health.Cluster != nil && health.Cluster.View != "" {
		text += ", " + printable(health.Cluster.View)
	}
	if health.Status != "ok" {
		text += ", " + printable(health.Status) // /healthz says why
	}

	_, err = fmt.Fprintln(env.stdout, text)
	return err
}
