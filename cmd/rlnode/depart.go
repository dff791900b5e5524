package main

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"
)

// departTime is the least time allowed for a node to leave or be removed. The node gives up by itself sooner.
const departTime = time.Minute

// leaveCmd makes a node leave its cluster.
type leaveCmd struct{ answered }

// Help implements kong.HelpProvider.
func (leaveCmd) Help() string {
	return `The node that is asked hands its counters, and what it has counted for bills, over and leaves the ring and Raft for good;
nothing is forgotten. That takes a moment, up to a minute. From then on /readyz says 503; checks that still reach the node are decided by asking the
others, so there is no hurry to stop it. But it hears of no new rules and no other change: do stop it. It is no member
any more, and its data directory is of no more use: remove it.

To be away for a restart only, a node need not leave: stop it with SIGTERM, and it hands its counters over, too.

Example:

  rlnode leave --admin http://10.0.0.7:8081`
}

// Run asks the node to leave.
func (c *leaveCmd) Run(env *environment) error {
	type left struct {
		Left string `json:"left"`
	}
	r := request{method: http.MethodPost, path: "/v1/leave", patience: departTime}
	return show(env, &c.answered, r, func(w io.Writer, n *left) error {
		_, err := fmt.Fprintf(w, "%s has left the cluster: stop its process, and remove its data directory\n", printable(n.Left))
		return err
	})
}

// removeCmd removes a dead node or a dead region from the cluster.
type removeCmd struct {
	Name   string `arg:"" optional:"" help:"The node's name; its ID, which members shows, if several have that name."`
	Region string `placeholder:"REGION" help:"A region to remove, with all its nodes, in place of a node."`
	Force  bool   `help:"Also a node that is alive. It hands nothing over: the others go on with their copies."`
	answered
}

// Help implements kong.HelpProvider.
func (removeCmd) Help() string {
	return `For a node that is gone for good: it votes no more, and is no member. Any node of the cluster takes the command.
A node that is alive is refused, it can leave; with --force it is taken out all the same. Its process owns nothing from then
on: stop it. Started again, it joins again. Others own the counters of a dead node without this, seconds after it
failed; and one that has been failed for three days is removed by itself. What it has counted for bills goes with it.

With --region, for a region that is gone for good: limits with scope: global are shared among the others from then on.
Any node of any region takes the command; the primary region has to be there. A region that follows the rules is
refused: stop its nodes first. It is never removed by itself, since it may go on by its share while nobody sees it.

Examples:

  rlnode remove n3
  rlnode remove 9f0c1b22a4d84cbb8d1f5e6a7b8c9d0e --admin http://10.0.0.5:8081
  rlnode remove n3 --force
  rlnode remove --region ap`
}

// Run removes the node, or the region.
func (c *removeCmd) Run(env *environment) error {
	path, done := "/v1/members/"+url.PathEscape(c.Name), printable(c.Name)+" is no member any more"
	switch {
	case c.Region != "" && c.Name != "":
		return errUsage("a node's name and --region exclude each other")
	case c.Region != "" && c.Force:
		return errUsage("--force and --region exclude each other")
	case c.Region != "":
		path, done = "/v1/regions/"+url.PathEscape(c.Region), "region "+printable(c.Region)+" is removed"
	case c.Name == "":
		return errUsage("no name given")
	case c.Force:
		path += "?force=true"
	}
	r := request{method: http.MethodDelete, path: path, patience: departTime}
	return show(env, &c.answered, r, func(w io.Writer, _ *struct{}) error {
		_, err := fmt.Fprintln(w, done)
		return err
	})
}
