package main

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"
)

// departTimeout is the least time to wait for a node to leave or be removed. The node gives up sooner.
const departTimeout = time.Minute

// leaveCmd makes a node leave its cluster.
type leaveCmd struct {
	Force bool `help:"Let the last node leave, too. It has the only copy of rules and bills: keep its data directory."`
	answerFlags
}

// Help implements kong.HelpProvider.
func (leaveCmd) Help() string {
	return `The node at --admin hands over its counters and its usage for bills, and leaves the ring and Raft for good; nothing is
forgotten. That takes up to a minute. From then on, /readyz answers 503. For checks that still reach it the node asks
other nodes, so there is no hurry to stop it; but it learns of no new rules or other changes, so do stop it. It is no
longer a member: the others have its counters, and what it counted for bills.

The last node of a cluster does not leave without --force: it has the only copy of rules and bills. To stop it, send
SIGTERM, and keep its data directory.

A node that has left is refused when it is started again; serve --rejoin makes it a new node on the same data directory.
For a restart, a node need not leave: stop it with SIGTERM, and it hands over its counters, too.

Example:

  rlnode leave --admin http://10.0.0.7:8081`
}

// Run asks the node to leave.
func (c *leaveCmd) Run(env *environment) error {
	type left struct {
		Left string `json:"left"`
		Last bool   `json:"last"`
	}
	path := "/v1/leave"
	if c.Force {
		path += "?force=true"
	}

	r := request{method: http.MethodPost, path: path, minTimeout: departTimeout}
	return sendAndPrint(env, c.node, c.JSON, r, func(w io.Writer, n *left) error {
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

// Help implements kong.HelpProvider.
func (removeCmd) Help() string {
	return `Removes a node that is gone for good: it no longer votes and is no longer a member. Any node of the cluster accepts the
command. It refuses to remove a node that is alive, which can leave instead; --force removes it nevertheless. Its process
then owns nothing: stop it. If started again, it is refused, and --rejoin makes it a new node. Without this command, other
nodes take over the counters of a dead node within seconds, and remove it after three days. Usage that only the dead node has counted is lost.

With --region, it removes a region that is gone for good: the other regions share limits with scope: global from then on.
Any node of any region accepts the command; the primary region must be reachable. It refuses to remove a region that
follows the rules: stop its nodes first. A region is never removed automatically, because it may still admit its share
while cut off.

Examples:

  rlnode remove n3
  rlnode remove 9f0c1b22a4d84cbb8d1f5e6a7b8c9d0e --admin http://10.0.0.5:8081
  rlnode remove n3 --force
  rlnode remove --region ap`
}

// Run removes the node, or the region.
func (c *removeCmd) Run(env *environment) error {
	path, done := "/v1/members/"+url.PathEscape(c.Name), printable(c.Name)+" is no longer a member"
	switch {
	case c.Region != "" && c.Name != "":
		return usageError("a node's name and --region exclude each other")
	case c.Region != "" && c.Force:
		return usageError("--force and --region exclude each other")
	case c.Region != "":
		path, done = "/v1/regions/"+url.PathEscape(c.Region), "region "+printable(c.Region)+" is removed"
	case c.Name == "":
		return usageError("the node's name, or --region, is missing")
	case c.Force:
		path += "?force=true"
	}

	r := request{method: http.MethodDelete, path: path, minTimeout: departTimeout}
	return sendAndPrint(env, c.node, c.JSON, r, func(w io.Writer, _ *struct{}) error {
		_, err := fmt.Fprintln(w, done)
		return err
	})
}
