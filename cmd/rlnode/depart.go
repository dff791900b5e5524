package main

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"
)

// departTimeout is how long to wait, without --timeout, for a node to leave or be
// removed. The node gives up sooner.
const departTimeout = time.Minute

// leaveCmd makes a node leave its cluster.
type leaveCmd struct {
	Force bool `help:"Let the last node leave, too. It has the only copy of rules and bills: keep its data directory."`
	answerFlags
}

func (c *leaveCmd) Run(env *environment) error {
	type left struct {
		Left string `json:"left"`
		Last bool   `json:"last"`
	}
	path := "/v1/leave"
	if c.Force {
		path += "?force=true"
	}

	r := request{method: http.MethodPost, path: path, timeout: departTimeout}
	return sendAndPrint(env, c.client, c.JSON, r, func(w io.Writer, n *left) error {
		advice := "stop its process, which sends the others what it still counts"
		if n.Last {
			advice = "stop its process, and keep its data directory: it has the only copy of rules and bills"
		}
		_, err := fmt.Fprintf(w, "%s has left the cluster: %s\n", printable(n.Left), advice)
		return err
	})
}

// removeCmd removes a dead node or a dead region from the cluster.
type removeCmd struct {
	Name   string `arg:"" optional:"" help:"The node's name; if several nodes have that name, its ID, which members shows."`
	Region string `placeholder:"REGION" help:"A region to remove with all its nodes, instead of a node."`
	Force  bool   `help:"Remove the node even if it is alive. It hands nothing over; the other nodes continue with their copies."`
	answerFlags
}

func (c *removeCmd) Run(env *environment) error {
	path := "/v1/members/" + url.PathEscape(c.Name)
	done := printable(c.Name) + " is no longer a member"
	switch {
	case c.Region != "" && c.Name != "":
		return usageError("a node's name and --region exclude each other")
	case c.Region != "" && c.Force:
		return usageError("--force and --region exclude each other")
	case c.Region != "":
		path = "/v1/regions/" + url.PathEscape(c.Region)
		done = "region " + printable(c.Region) + " is removed"
	case c.Name == "":
		return usageError("the node's name, or --region, is missing")
	case c.Force:
		path += "?force=true"
	}

	r := request{method: http.MethodDelete, path: path, timeout: departTimeout}
	return sendAndPrint(env, c.client, c.JSON, r, func(w io.Writer, _ *struct{}) error {
		_, err := fmt.Fprintln(w, done)
		return err
	})
}
