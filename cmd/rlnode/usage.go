package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"text/tabwriter"

	"github.com/rlnode/rlnode/api/admin"
	"github.com/rlnode/rlnode/replay"
	"github.com/rlnode/rlnode/usage"
)

// usageCmd prints how much each subject was admitted in a month.
type usageCmd struct {
	Month      string `placeholder:"YYYY-MM" help:"Which month, in UTC (default: the current one)."`
	Rule       string `help:"Only this rule."`
	Scope      string `default:"cluster" enum:"cluster,node" help:"cluster; or node: only what this node has counted (default ${default})."`
	CSV        bool   `name:"csv" xor:"format" help:"Print CSV; nothing if a node can't be asked, unless --incomplete is set."`
	JSON       bool   `xor:"format" help:"Print the node's answer unchanged."`
	Incomplete bool   `help:"Print CSV even if a node can't be asked."`
	adminPlane
}

// Help implements kong.HelpProvider.
func (usageCmd) Help() string {
	return `Prints what rules with "usage: monthly" admitted, by rule, subject and unit, summed over all nodes. If a node can't be
asked, its part is missing; the exit code is then 1, and standard error names the node.

Examples:

  rlnode usage --month 2026-11
  rlnode usage --month 2026-11 --rule tenant --csv > bill.csv`
}

// Run prints the rows as they arrive: there may be millions.
func (c *usageCmd) Run(env *environment) error {
	if c.Month != "" {
		if _, err := usage.ParseMonth(c.Month); err != nil {
			return usageError("--month: %w", err)
		}
	}
	n, err := c.node()
	if err != nil {
		return err
	}
	query := url.Values{"format": {"json"}, "scope": {c.Scope}}
	if c.CSV {
		query.Set("format", "csv")
	}
	if c.Month != "" {
		query.Set("month", c.Month)
	}
	if c.Rule != "" {
		query.Set("rule", c.Rule)
	}
	if c.Incomplete {
		query.Set("incomplete", "allow")
	}
	body, missing, err := n.stream(env.ctx, request{path: "/v1/usage/monthly", query: query})
	if err != nil {
		return err
	}
	defer body.Close()
	if c.CSV {
		_, err = io.Copy(env.stdout, body)
		if err == nil && missing != "" {
			err = fmt.Errorf("incomplete: no counts from %s", printable(missing))
		}
		return err
	}
	var out io.Writer = env.stdout
	var copied io.Reader = body
	if c.JSON {
		copied, out = io.TeeReader(body, env.stdout), io.Discard
	}
	nodes, err := printMonth(out, copied)
	if err == nil {
		_, err = io.Copy(io.Discard, copied)
	}
	if err == nil && len(nodes) > 0 {
		err = fmt.Errorf("incomplete: no counts from %s, so the sums are too low", printable(strings.Join(nodes, ", ")))
	}
	return err
}

// monthRow is a row of an answer.
type monthRow struct {
	Rule   string           `json:"rule"`
	Key    admin.SubjectKey `json:"key"`
	Other  bool             `json:"other"`
	Unit   string           `json:"unit"`
	Cost   int64            `json:"cost"`
	Checks int64            `json:"checks"`
}

// printMonth prints a month while reading it. It returns the nodes whose counts are missing.
func printMonth(w io.Writer, r io.Reader) (missing []string, err error) {
	table := tabwriter.NewWriter(w, 0, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "COST\tCHECKS\tUNIT\t  RULE AND SUBJECT")
	d := json.NewDecoder(r)
	if _, err := d.Token(); err != nil {
		return nil, fmt.Errorf("read the answer: %w", err)
	}
	rows := 0
	for complete := false; d.More(); {
		name, err := d.Token()
		if err != nil {
			return nil, fmt.Errorf("read the answer: %w", err)
		}
		switch name {
		case "rows":
			if rows, err = printRows(table, d); err != nil {
				return nil, err
			}
		case "incomplete":
			err, complete = d.Decode(&missing), true
		default:
			var ignored json.RawMessage
			err = d.Decode(&ignored)
		}
		if err != nil {
			return nil, fmt.Errorf("read the answer: %w", err)
		}
		if !d.More() && !complete {
			return nil, errors.New("read the answer: it is truncated")
		}
	}
	if rows == 0 {
		fmt.Fprintln(table, "0\t0\t\t  nothing was admitted")
	}
	return missing, table.Flush()
}

// printRows prints the array that d is positioned at.
func printRows(table *tabwriter.Writer, d *json.Decoder) (n int, err error) {
	if _, err := d.Token(); err != nil {
		return 0, err
	}
	for ; d.More(); n++ {
		var row monthRow
		if err := d.Decode(&row); err != nil {
			return n, fmt.Errorf("read the answer: %w", err)
		}
		subject := replay.Key(row.Key).String()
		if row.Other {
			subject = "(others, beyond --usage-subjects)"
		}
		fmt.Fprintf(table, "%d\t%d\t%s\t  %s: %s\n", row.Cost, row.Checks, printable(row.Unit), printable(row.Rule), subject)
		if n%1000 == 999 {
			if err := table.Flush(); err != nil {
				return n, err
			}
		}
	}
	_, err = d.Token()
	return n, err
}

// stream makes a call whose answer may be long and slow: only its header has to arrive in time. missing names the nodes
// whose counts the answer lacks, according to its header.
func (rm *remote) stream(ctx context.Context, r request) (body io.ReadCloser, missing string, err error) {
	resp, err := rm.open(ctx, r)
	if err != nil {
		return nil, "", err
	}
	if resp.StatusCode >= 400 {
		answer, err := rm.read(resp)
		if err == nil {
			err = rm.problem(answer)
		}
		return nil, "", err
	}
	return resp.Body, resp.Header.Get("Rlnode-Incomplete"), nil
}
