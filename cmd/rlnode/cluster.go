package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/rlnode/rlnode/api/admin"
	"github.com/rlnode/rlnode/replay"
)

// membersCmd lists nodes.
type membersCmd struct{ answerFlags }

func (c *membersCmd) Run(env *environment) error {
	return sendAndPrint(env, c.client, c.JSON, request{path: "/v1/cluster"},
		func(w io.Writer, cluster *admin.ClusterView) error {
			moving := ""
			leader := "no known leader"
			if !cluster.Settled {
				moving = " (partitions are moving)"
			}
			if cluster.Leader != "" {
				leader = "the leader is " + printable(cluster.Leader)
			}

			fmt.Fprintf(w, "epoch %d%s, rules version %d; this node is %s, %s\n", cluster.Epoch, moving,
				cluster.RulesVersion,
				cluster.View, leader)
			fmt.Fprintf(w, "decided here in the last 10 s: %s\n", decidedText(cluster.Decided))
			err := printTable(w,
				"NAME\tSTATE\tREACHED\tROLE\tRING\tPARTITIONS\tCLOCK\tADDRESS\tREGION\tZONE\tID",
				cluster.Members, memberText)
			if err != nil || len(cluster.Regions) < 2 {
				return err
			}

			return printRegions(w, cluster.Regions, cluster.Recorded)
		})
}

// memberText returns a node's line.
func memberText(m admin.Member) string {
	role := "follower"
	zone := "-"
	reached := yesNo(m.Reachable)
	state := m.State.String()

	if m.Via != "" {
		reached = "via " + printable(m.Via)
	}
	if m.Behind {
		state += ", behind"
	}
	if m.Voter {
		role = "voter"
	}
	if m.Leader {
		role = "leader"
	}
	if m.Zone != "" {
		zone = printable(m.Zone)
	}

	return fmt.Sprintf("%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s\t%s", printable(m.Name), state, reached, role,
		yesNo(m.InRing), m.Partitions, clockText(m.ClockOffset), m.Address, printable(m.Region), zone, m.ID)
}

// clockText returns how far a node's clock is ahead of the others', given in
// milliseconds; nil if that is not known.
func clockText(offset *int64) string {
	if offset == nil {
		return "-"
	}
	return fmt.Sprintf("%+.3fs", float64(*offset)/1000)
}

// printRegions prints the regions and the rules that all of them use.
func printRegions(w io.Writer, regions []admin.Region, recorded int64) error {
	known := fmt.Sprintf("all regions use rules version %d or later", recorded)
	if recorded == 0 {
		known = "no version of the rules is known to be in use in all regions yet"
	}
	fmt.Fprintf(w, "\n%s\n", known)
	return printTable(w, "REGION\tREACHED\tMEMBERS\tPRIMARY\tCOMMITTED", regions, func(r admin.Region) string {
		return fmt.Sprintf("%s\t%s\t%d\t%s\t%s", printable(r.Name), yesNo(r.Reachable), r.Members,
			yesNo(r.Primary), yesNo(r.Committed))
	})
}

// decidedText lists how checks were decided, the most frequent way first.
func decidedText(by map[string]int64) string {
	if len(by) == 0 {
		return "nothing"
	}
	ways := slices.SortedFunc(maps.Keys(by),
		func(a, b string) int { return cmp.Or(cmp.Compare(by[b], by[a]), cmp.Compare(a, b)) })
	for i, way := range ways {
		ways[i] = fmt.Sprintf("%d by %s", by[way], printable(way))
	}
	return strings.Join(ways, ", ")
}

// ownerCmd shows a subject's owner.
type ownerCmd struct {
	keyFlags
	answerFlags
}

func (c *ownerCmd) Run(env *environment) error {
	r := request{path: "/v1/owner", query: subjectQuery(c.Rule, c.Key)}
	return sendAndPrint(env, c.client, c.JSON, r, func(w io.Writer, o *admin.SubjectOwner) error {
		_, err := fmt.Fprintf(w, "owner %s, standby %s  (partition %d, epoch %d)\n", o.Owner,
			cmp.Or(o.Standby, "none"), o.Partition, o.Epoch)
		return err
	})
}

// topCmd lists subjects.
type topCmd struct {
	By     string `default:"refused" enum:"refused,shadow,used,delayed" placeholder:"KIND" help:"refused, shadow (by shadow rules), used or delayed (default ${default})."`
	Near   bool   `help:"Those nearest to a limit, not only those refused."`
	Rule   string `placeholder:"RULE" help:"Only subjects of this rule."`
	Recent bool   `help:"Those of the last five minutes first."`

	N        int           `short:"n" default:"20" help:"How many (1 to 1000, default ${default})."`
	Watch    bool          `short:"w" help:"Print repeatedly until interrupted."`
	Interval time.Duration `default:"2s" help:"How often --watch prints (at least 100ms, default ${default})."`
	answerFlags
}

// Run prints the list, once or repeatedly.
func (c *topCmd) Run(env *environment) error {
	if c.N < 1 || c.N > 1000 {
		return usageError("-n: %d is not in 1…1000", c.N)
	}
	if c.Interval < 100*time.Millisecond {
		return usageError("--interval: %v is under 100ms", c.Interval)
	}

	switch {
	case c.Near && c.By != "refused":
		return usageError("--near and --by exclude each other")
	case c.Near && c.Recent:
		return usageError("--near and --recent exclude each other: who is near to a limit is so now")
	}

	by := c.By
	if c.Near {
		by = "near"
	}

	query := url.Values{"by": {by}, "n": {strconv.Itoa(c.N)}}
	if c.Rule != "" {
		query.Set("rule", c.Rule)
	}
	if c.Recent {
		query.Set("recent", "true")
	}

	clear := ""
	if c.Watch && isTerminal(env.stdout) && !c.JSON {
		clear = "\x1b[H\x1b[2J" // move to the corner and clear the screen
	}

	// All rounds share one client, because each client would keep a connection.
	node, err := c.client()
	if err != nil {
		return err
	}
	same := func() (*remote, error) { return node, nil }

	for {
		fmt.Fprint(env.stdout, clear)

		if err := sendAndPrint(env, same, c.JSON, request{path: "/v1/top", query: query},
			topPrinter(by, c.Recent)); err != nil {
			if c.Watch && env.ctx.Err() != nil {
				return nil // interrupted during the request
			}
			return err
		}

		if !c.Watch || !pause(env.ctx, c.Interval) {
			return nil
		}
	}
}

// topPrinter returns a function that prints one of the lists of subjects.
func topPrinter(by string, recent bool) func(io.Writer, *admin.TopSubjects) error {
	return func(w io.Writer, top *admin.TopSubjects) error {
		if len(top.Subjects) == 0 {
			emptyText := map[string]string{
				"refused": "has been refused", "shadow": "would have been refused by a shadow rule",
				"used":    "has used anything",
				"delayed": "has been delayed", "near": "is near to a limit",
			}
			_, err := fmt.Fprintln(w, "no subject", emptyText[by])
			return err
		}

		table := tabwriter.NewWriter(w, 0, 8, 2, ' ', tabwriter.AlignRight)
		head := map[string]string{"refused": "REFUSED\tCHECKS", "shadow": "WOULD REFUSE\tCHECKS",
			"used": "USED", "delayed": "DELAYED", "near": "USED\tOF"}[by]
		if recent {
			head = "RECENT\t" + head
		}

		fmt.Fprintf(table, "%s\t  RULE AND SUBJECT\n", head)

		for i := range top.Subjects {
			s := &top.Subjects[i]
			if recent && s.Recent != nil {
				fmt.Fprintf(table, "%d\t", *s.Recent)
			}
			fmt.Fprintf(table, "%s\t  %s: %s\n", topColumns(by, s), s.Rule, replay.Key(s.Key))
		}

		return table.Flush()
	}
}

// topColumns returns the numbers of a subject in a list.
func topColumns(by string, s *admin.TopSubject) string {
	var used, limit int64
	if s.Used != nil {
		used = *s.Used
	}
	if s.Limit != nil {
		limit = *s.Limit
	}

	switch by {
	case "shadow":
		return fmt.Sprintf("%d\t%d", s.Shadow, s.Checks)
	case "used":
		return strconv.FormatInt(used, 10)
	case "delayed":
		return strconv.FormatInt(s.Delayed, 10)
	case "near":
		return fmt.Sprintf("%d\t%d", used, limit)
	}

	return fmt.Sprintf("%d\t%d", s.Refused, s.Checks)
}
