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
