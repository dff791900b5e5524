package main

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/rlnode/rlnode/client"
	"github.com/rlnode/rlnode/rules/document"
)

// checkFlags has the flags that describe a check.
type checkFlags struct {
	subjectFlags
	Attr   []string `sep:"none" placeholder:"NAME=VALUE" help:"An attribute of the request; repeat for more."`
	Cost   []string `sep:"none" placeholder:"N|UNIT=N" help:"The check's cost (default 1, or what the rule's cost table says); repeat for more units, whose limits are shown."`
	Unit   string   `placeholder:"UNIT" help:"The unit of --cost N (default requests); its limits are shown."`
	Exact  bool     `help:"With --limit: ask the subject's owner each time, so that figures are exact."`
	Detail bool     `help:"Show every limit that applies."`
	JSON   bool     `help:"Print the node's answer unchanged."`
}

// checkCmd asks for one decision.
type checkCmd struct {
	checkFlags
	Mode string `default:"check" enum:"check,peek,count,at_most" placeholder:"MODE" help:"check; peek: decide but take nothing; count: take the cost even beyond the limit; or at_most: take as much of it as there is (default ${default})."`
	Peek bool   `help:"The same as --mode peek."`
	eitherPlane
}

func (c *checkCmd) Run(env *environment) error {
	return exitOf(c.ask(env))
}

// exitOf returns the error that ends a command that asked for a decision; nil
// if the check was allowed.
func exitOf(allowed bool, err error) error {
	switch {
	case err != nil:
		return &exitError{code: exitUsage, err: err} // 1 would mean refused
	case !allowed:
		return &exitError{code: exitFailed}
	}
	return nil
}

func (c *checkCmd) ask(env *environment) (allowed bool, err error) {
	if c.Peek && (c.Mode == "count" || c.Mode == "at_most") {
		return false, fmt.Errorf("--peek and --mode %s exclude each other", c.Mode)
	}

	fields, err := c.body()
	if err != nil {
		return false, err
	}

	switch {
	case c.Peek || c.Mode == "peek":
		fields["peek"] = true
	case c.Mode == "count", c.Mode == "at_most":
		fields["mode"] = c.Mode
	}

	n, err := c.data()
	if err != nil {
		return false, err
	}

	r, err := n.exchange(env.ctx, postFields("/v1/check", fields))
	if err != nil {
		return false, err
	}
	if !r.decides() {
		return false, n.problem(r)
	}

	var d client.Decision
	if err := r.decode(&d); err != nil {
		return false, err
	}

	d.Counted = !d.Allowed && r.status == http.StatusOK

	if c.JSON {
		_, err = fmt.Fprintf(env.stdout, "%s\n", bytes.TrimSpace(r.body))
	} else {
		c.hideLimits(&d, fields)
		_, err = fmt.Fprint(env.stdout, decisionText(&d, colours(env.stdout)))
	}

	return d.Allowed, err
}

// hideLimits removes from a decision the limits of units that the check does
// not name, unless --detail is set.
func (f *checkFlags) hideLimits(d *client.Decision, fields map[string]any) {
	if f.Detail {
		return
	}
	costs, _ := fields["costs"].(map[string]int64)
	d.Limits = slices.DeleteFunc(d.Limits, func(l client.LimitDecision) bool {
		_, named := costs[l.Unit]
		named = named || l.Unit == document.Requests && fields["cost"] != nil
		return !named || d.Unit == l.Unit
	})
}

// body returns the fields of the request body.
func (f *checkFlags) body() (fields map[string]any, err error) {
	switch {
	case len(f.Key) > 0 && len(f.Attr) > 0, f.isInline() && len(f.Attr) > 0:
		return nil, fmt.Errorf("--attr excludes --key, --limit and --namespace")
	case f.isInline() && len(f.Limit) == 0:
		return nil, fmt.Errorf("--limit is missing: --namespace is for limits that come with the call")
	case f.Exact && !f.isInline():
		return nil, fmt.Errorf("--exact needs --limit: a rule has its own consistency")
	case len(f.Attr) == 0 && f.Rule == "" && len(f.Key) == 0 && !f.isInline():
		return nil,
			errors.New("no subject: give --rule and --key, --limit and --key, or --attr")
	case len(f.Attr) > 0:
		attributes, err := parsePairs("--attr", f.Attr)
		if err != nil {
			return nil, err
		}
		fields = map[string]any{"attributes": attributes}
		if f.Rule != "" {
			fields["rule"] = f.Rule
		}
	default:
		fields, err = f.fields()
		if err != nil {
			return nil, err
		}
	}

	costs, err := parseCosts(f.Cost)
	if err != nil {
		return nil, err
	}

	if f.Unit != "" {
		if _, twice := costs.units[f.Unit]; twice {
			return nil, fmt.Errorf("--unit %s: --cost names it as well", f.Unit)
		}
		amount := int64(1)
		if costs.plain != nil {
			amount = *costs.plain
		}
		costs.units[f.Unit] = amount
		costs.plain = nil
	}

	costs.add(fields)
	if f.Exact {
		fields["consistency"] = "exact"
	}
	if f.Detail || len(costs.units) > 0 && !f.JSON {
		fields["detail"] = true
	}

	return fields, nil
}

// decisionText describes a decision for people.
func decisionText(a *client.Decision, c palette) string {
	var b strings.Builder
	if !a.Counted {
		b.WriteString(c.verdict(a.Allowed))
	}

	switch {
	case a.Counted:
		fmt.Fprintf(&b, "%s by %s, beyond the limit: %d of %d %s used", c.paint(yellow, "counted"),
			a.Rule, a.Used, a.Limit, a.Unit)
	case a.Unlimited:
		fmt.Fprintf(&b, " by %s: unlimited", a.Rule)
	case a.Rule != "":
		fmt.Fprintf(&b, " by %s: %d of %d %s left", a.Rule, a.Remaining, a.Limit, a.Unit)
		if a.Granted > 0 {
			fmt.Fprintf(&b, ", %d granted", a.Granted)
		}
		b.WriteString(waitText(a.Allowed, a.Code, a.RetryAfter, a.ResetAfter))
		if a.Delay > 0 {
			fmt.Fprintf(&b, ", after a delay of %s", durationText(a.Delay))
		}
	case a.DecidedBy == client.ByList:
		b.WriteString(" by a list")
	case a.DecidedBy == client.ByNone:
		b.WriteString(": no rule applies")
	default:
		b.WriteString(": only shadow rules apply")
	}

	fmt.Fprintf(&b, "  (decided by %s at %s, rules version %d)\n", a.DecidedBy, a.Node, a.RulesVersion)

	for _, l := range a.Limits {
		shadow := ""
		if l.Shadow {
			shadow = ", shadow"
		}

		if l.Unlimited {
			what := strings.TrimSuffix("unlimited "+l.Unit, " ") // without a unit, in all of them
			fmt.Fprintf(&b, "  %s %s (%s%s)\n", c.verdict(l.Allowed), l.Name, what, shadow)
			continue
		}

		code := "" // the answer says it only of the rule that refused
		if l.Rule == a.Rule {
			code = a.Code
		}

		fmt.Fprintf(&b, "  %s %s (%s%s): %d of %d %s left%s\n", c.verdict(l.Allowed), l.Name, l.Algorithm, shadow,
			l.Remaining, l.Limit, l.Unit, waitText(l.Allowed, code, l.RetryAfter, l.ResetAfter))
	}

	return b.String()
}

// waitText returns a text about how long the caller must wait. code is the node's
// reason for the refusal; it is empty if the node gives none.
func waitText(allowed bool, code string, retry, reset time.Duration) string {
	switch {
	case !allowed && retry < 0 && code == client.CodeBlocked:
		return ", blocked without an end"
	case !allowed && retry < 0 && code == client.CodeCostAboveLimit:
		return ", never: it costs more than the limit"
	case !allowed && retry < 0:
		return ", never"
	case !allowed:
		return fmt.Sprintf(", retry after %s", durationText(retry))
	case reset > 0:
		return fmt.Sprintf(", fresh again after %s", durationText(reset))
	}
	return ""
}
