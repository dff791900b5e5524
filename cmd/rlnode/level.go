package main

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"text/tabwriter"

	"github.com/rlnode/rlnode/api"
)

// levelCmd shows and raises the feature level.
type levelCmd struct {
	Raise bool  `help:"Raise it to what all members know, for good."`
	To    int64 `placeholder:"N" help:"With --raise: to this level, and no higher."`
	JSON  bool  `help:"Print the node's answer as it is."`
	adminPlane
}

// Help tells what a level is for.
func (levelCmd) Help() string {
	return `What a release has that an older one can't read is used only when all members know it: from a feature level on that is
agreed on. The level rises by itself an hour after all members run a release that knows a higher one; members are all
nodes that the cluster knows, also those that are away. Until then each of them can be rolled back; after that older
releases can't join. It never goes back. Of several regions the primary rises last.

Examples:

  rlnode level
  rlnode level --raise`
}

// Run prints it, or raises it.
func (c *levelCmd) Run(env *environment) error {
	switch {
	case c.To != 0 && !c.Raise:
		return errUsage("--to: needs --raise")
	case c.To < 0 || c.To > 1<<31-1:
		return errUsage("--to: %d is not in 1…%d", c.To, 1<<31-1)
	case !c.Raise:
		return show(env, &c.adminPlane, c.JSON, request{path: "/v1/level"}, printLevel)
	}
	n, err := c.node()
	if err != nil {
		return err
	}
	query := url.Values{}
	if c.To != 0 {
		query.Set("to", strconv.FormatInt(c.To, 10))
	}
	r, err := n.send(env.ctx, request{method: http.MethodPost, path: "/v1/level", query: query})
	if err != nil {
		return err
	}
	var done struct {
		Level int64 `json:"level"`
	}
	if err := r.decode(&done); err != nil {
		return err
	}
	_, err = fmt.Fprintf(env.stdout, "the feature level is %d\n", done.Level)
	return err
}

func printLevel(w io.Writer, r *reply) error {
	var l api.LevelView
	if err := r.decode(&l); err != nil {
		return err
	}
	fmt.Fprintf(w, "feature level %d", l.Level)
	if l.Highest > l.Level {
		fmt.Fprintf(w, "; all members know %d: it rises by itself an hour after they do, or now with rlnode level --raise", l.Highest)
	}
	fmt.Fprintln(w)
	table := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(table, "NAME\tKNOWS\tRELEASE\tZONES\tID")
	for _, m := range l.Members {
		knows := strconv.FormatInt(m.Knows, 10)
		if m.Knows == 0 {
			knows = "not known"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", printable(m.Name), knows, printable(m.Release), printable(m.Zones), m.ID)
	}
	return table.Flush()
}
