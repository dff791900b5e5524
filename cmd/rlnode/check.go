package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/rlnode/rlnode/client"
)

// checkCmd asks for one decision.
type checkCmd struct {
	Rule   string   `placeholder:"RULE" help:"Ask only this rule."`
	Key    []string `sep:"none" placeholder:"VALUE" help:"The subject; once for each key attribute of the rule, in its order."`
	Attr   []string `sep:"none" placeholder:"NAME=VALUE" help:"An attribute of the request; repeat for more."`
	Cost   *int64   `placeholder:"N" help:"What it costs (default 1, or what the rule's cost table says)."`
	Unit   string   `placeholder:"UNIT" help:"The unit of --cost (default requests); its limits are shown."`
	Peek   bool     `help:"Only look: nothing is taken."`
	Detail bool     `help:"Show every limit that was looked at."`
	JSON   bool     `help:"Print the node's answer as it is."`
	dataPlane
}

// Help implements kong.HelpProvider.
func (checkCmd) Help() string {
	return `Examples:

  rlnode check --rule login --key 198.51.100.7
  rlnode check --rule chat --key acme --key /chat/completions
  rlnode check --attr ip=198.51.100.7 --attr tenant=acme --cost 900 --unit tokens

Exit codes: 0 allowed, 1 refused, 2 no decision (the command line is wrong, the node can't be reached, or it
answers with an error).`
}

// Run asks and prints the answer.
func (c *checkCmd) Run(env *environment) error {
	allowed, err := c.ask(env)
	switch {
	case err != nil:
		return &exit{code: exitUsage, err: err} // 1 would mean refused
	case !allowed:
		return &exit{code: exitFailed}
	}
	return nil
}

func (c *checkCmd) ask(env *environment) (allowed bool, err error) {
	body, err := c.body()
	if err != nil {
		return false, err
	}
	n, err := c.node()
	if err != nil {
		return false, err
	}
	r, err := n.exchange(env.ctx, request{method: http.MethodPost, path: "/v1/check", contentType: "application/json", body: body})
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
	if c.JSON {
		_, err = fmt.Fprintf(env.stdout, "%s\n", bytes.TrimSpace(r.body))
	} else {
		if !c.Detail {
			d.Limits = slices.DeleteFunc(d.Limits, func(l client.LimitDecision) bool { return l.Unit != c.Unit || d.Unit == c.Unit })
		}
		_, err = fmt.Fprint(env.stdout, decisionText(&d))
	}
	return d.Allowed, err
}

// body returns the check as JSON.
func (c *checkCmd) body() ([]byte, error) {
	check := map[string]any{}
	if c.Rule != "" {
		check["rule"] = c.Rule
	}
	switch {
	case len(c.Key) > 0 && len(c.Attr) > 0:
		return nil, fmt.Errorf("--key and --attr exclude each other")
	case len(c.Key) > 0 && c.Rule == "":
		return nil, fmt.Errorf("--key needs --rule: a key is one rule's")
	case len(c.Key) == 1:
		check["key"] = c.Key[0]
	case len(c.Key) > 1:
		check["key"] = c.Key
	case len(c.Attr) > 0:
		attributes := map[string]string{}
		for _, a := range c.Attr {
			name, value, ok := strings.Cut(a, "=")
			if _, twice := attributes[name]; !ok || name == "" || twice {
				return nil, fmt.Errorf("--attr %q: name=value is wanted, each name once", a)
			}
			attributes[name] = value
		}
		check["attributes"] = attributes
	case c.Rule == "":
		return nil, fmt.Errorf("nothing to ask about: give --rule and --key, or --attr (see rlnode check --help)")
	default:
		check["key"] = []string{} // a rule with one counter for all
	}
	cost := int64(1)
	if c.Cost != nil {
		cost = *c.Cost
	}
	switch {
	case c.Unit != "":
		check["costs"] = map[string]int64{c.Unit: cost}
	case c.Cost != nil:
		check["cost"] = cost
	}
	if c.Peek {
		check["peek"] = true
	}
	if c.Detail || c.Unit != "" && !c.JSON {
		check["detail"] = true
	}
	return json.Marshal(check)
}

// decisionText describes a decision for people.
func decisionText(a *client.Decision) string {
	var b strings.Builder
	b.WriteString(verdict(a.Allowed))
	switch {
	case a.Rule != "":
		fmt.Fprintf(&b, " by %s: %d of %d %s left", a.Rule, a.Remaining, a.Limit, a.Unit)
		fmt.Fprintf(&b, "%s", waits(a.Allowed, a.RetryAfter, a.ResetAfter))
		if a.Delay > 0 {
			fmt.Fprintf(&b, ", after a delay of %v", a.Delay)
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
		fmt.Fprintf(&b, "  %-7s %s (%s%s): %d of %d %s left%s\n", verdict(l.Allowed), l.Name, l.Algorithm, shadow,
			l.Remaining, l.Limit, l.Unit, waits(l.Allowed, l.RetryAfter, l.ResetAfter))
	}
	return b.String()
}

func verdict(allowed bool) string {
	if allowed {
		return "allowed"
	}
	return "refused"
}

func waits(allowed bool, retry, reset time.Duration) string {
	switch {
	case !allowed && retry < 0:
		return ", never: it costs more than the limit"
	case !allowed:
		return fmt.Sprintf(", retry after %v", retry)
	case reset > 0:
		return fmt.Sprintf(", fresh again after %v", reset)
	}
	return ""
}
