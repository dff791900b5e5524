package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"text/tabwriter"
	"time"

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

// Run prints the rows as they arrive: there may be millions.
func (c *usageCmd) Run(env *environment) error {
	if c.Month != "" {
		if _, err := usage.ParseMonth(c.Month); err != nil {
			return usageError("--month: %w", err)
		}
	}

	n, err := c.client()
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

	resp, err := n.stream(env.ctx, request{path: "/v1/usage/monthly", query: query})
	if err != nil {
		return err
	}

	defer resp.Body.Close()

	if c.CSV {
		return c.copyCSV(env, resp)
	}

	var out io.Writer = env.stdout
	var copied io.Reader = resp.Body
	if c.JSON {
		copied, out = io.TeeReader(resp.Body, env.stdout), io.Discard
	}

	quality, err := printMonth(out, copied)
	if err == nil {
		_, err = io.Copy(io.Discard, copied)
	}

	if err != nil {
		return err
	}

	for _, estimate := range quality.Estimated {
		fmt.Fprintf(env.stderr, "estimated: %s is gone, and its copy lacks at most what it counted in %s\n",
			printable(estimate.Node), time.Duration(estimate.AtMostLost)*time.Millisecond)
	}

	if quality.RevisedAt != "" {
		fmt.Fprintf(env.stderr, "the month has changed since it was exported, last at %s\n",
			printable(quality.RevisedAt))
	}

	if len(quality.Incomplete) > 0 {
		return incompleteError(printable(strings.Join(quality.Incomplete, ", ")))
	}

	return nil
}

// copyCSV prints the rows. Headers say how exact they are.
func (c *usageCmd) copyCSV(env *environment, resp *http.Response) error {
	if _, err := io.Copy(env.stdout, resp.Body); err != nil {
		return err
	}
	if estimated := resp.Header.Get("Rlnode-Estimated"); estimated != "" {
		fmt.Fprintf(env.stderr, "estimated: %s is gone, and its copy may lack the last counts\n",
			printableNames(estimated))
	}
	if missing := resp.Header.Get("Rlnode-Incomplete"); missing != "" {
		return incompleteError(printableNames(missing))
	}
	return nil
}

// incompleteError says that nodes are missing from a month. Another node's copy
// of their counts may be in the sums, and nothing tells whether it lacks any.
func incompleteError(nodes string) error {
	return fmt.Errorf("incomplete: not all counts from %s could be read, so the sums may be too low: by what no copy has", nodes)
}

// printableNames returns the names in a header, where they are quoted.
func printableNames(list string) string { return printable(strings.ReplaceAll(list, `"`, "")) }

// monthQuality says how exact a month is.
type monthQuality struct {
	Incomplete []string // nodes
	Estimated  []struct {
		Node       string `json:"node"`
		AtMostLost int64  `json:"at_most_lost_ms"`
	}
	RevisedAt string
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

// printMonth prints a month while reading it. It returns how exact the month is.
func printMonth(w io.Writer, r io.Reader) (q monthQuality, err error) {
	table := tabwriter.NewWriter(w, 0, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "COST\tCHECKS\tUNIT\t  RULE AND SUBJECT")
	d := json.NewDecoder(r)
	if _, err := d.Token(); err != nil {
		return q, fmt.Errorf("read the answer: %w", err)
	}

	rows := 0
	for complete := false; d.More(); {
		name, err := d.Token()
		if err != nil {
			return q, fmt.Errorf("read the answer: %w", err)
		}

		switch name {
		case "rows":
			rows, err = printRows(table, d)
			if err != nil {
				return q, err
			}
		case "incomplete":
			err, complete = d.Decode(&q.Incomplete), true
		case "estimated":
			err = d.Decode(&q.Estimated)
		case "revised_at":
			err = d.Decode(&q.RevisedAt)
		default:
			var ignored json.RawMessage
			err = d.Decode(&ignored)
		}

		if err != nil {
			return q, fmt.Errorf("read the answer: %w", err)
		}
		// The node writes incomplete behind the rows. Without it, the answer
		// broke off.
		if !d.More() && !complete {
			return q, errors.New("read the answer: it is truncated")
		}
	}

	if rows == 0 {
		fmt.Fprintln(table, "0\t0\t\t  nothing was admitted")
	}

	return q, table.Flush()
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

		fmt.Fprintf(table, "%d\t%d\t%s\t  %s: %s\n", row.Cost, row.Checks, printable(row.Unit),
			printable(row.Rule), subject)

		if n%1000 == 999 {
			if err := table.Flush(); err != nil {
				return n, err
			}
		}
	}

	_, err = d.Token()
	return n, err
}

// stream makes a call whose answer may be long and slow: only its header has to arrive in time.
func (rm *remote) stream(ctx context.Context, r request) (*http.Response, error) {
	timeout := r.timeoutFor(rm)
	rm.transport.DialContext = (&net.Dialer{Timeout: timeout}).DialContext
	rm.transport.TLSHandshakeTimeout = timeout
	rm.transport.ResponseHeaderTimeout = timeout
	resp, err := rm.open(ctx, r)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode < 300 {
		return resp, nil
	}
	answer, err := rm.read(resp, timeout)
	if err == nil {
		err = rm.problem(answer)
	}
	return nil, err
}
