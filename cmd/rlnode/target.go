package main

import (
	"fmt"
	"strconv"
	"strings"
)

// subjectFlags has the flags that name a subject: one of a rule, or one with inline limits.
type subjectFlags struct {
	Rule      string   `placeholder:"RULE" help:"The rule; no other rule applies."`
	Key       []string `sep:"none" placeholder:"VALUE" help:"The subject; once for each key attribute of the rule, in its order."`
	Limit     []string `sep:"none" placeholder:"N/PER[,NAME=VALUE…]" help:"Instead of a rule: a limit that comes with the call, such as 5/1m or 900/day,unit=tokens; repeat for more. Names: algorithm, burst, unit, name, tz, from. With algorithm=concurrency, PER is the ttl of slots."`
	Namespace string   `placeholder:"NAME" help:"With limits that come with the call: keeps equal keys of different services apart (with --limit, default inline)."`
}

// isInline reports whether the subject's limits come with the call.
func (f *subjectFlags) isInline() bool { return len(f.Limit) > 0 || f.Namespace != "" }

// fields returns the subject as fields of a request body. A rule with one
// counter for all has no key.
func (f *subjectFlags) fields() (map[string]any, error) {
	fields := map[string]any{}
	switch {
	case f.isInline() && f.Rule != "":
		return nil, usageError("--rule excludes --limit and --namespace")
	case f.isInline() && len(f.Key) == 0:
		return nil, usageError("--key is missing: the subject of --limit or --namespace")
	case f.Rule != "":
		fields["rule"] = f.Rule
	case !f.isInline() && len(f.Key) > 0:
		return nil,
			usageError("--key needs --rule or --limit; to show or reset all counters of a key, give --namespace (calls that give none are in namespace inline)")
	case !f.isInline():
		return nil, usageError("no subject: give --rule and --key, or --limit and --key")
	}

	fields["key"] = append([]string{}, f.Key...)
	if len(f.Key) == 1 {
		fields["key"] = f.Key[0]
	}
	if f.Namespace != "" {
		fields["namespace"] = f.Namespace
	}

	if len(f.Limit) == 0 {
		return fields, nil
	}

	limits := make([]any, len(f.Limit))
	for i, text := range f.Limit {
		l, err := parseLimit(text)
		if err != nil {
			return nil, usageError("--limit %q: %w", text, err)
		}
		limits[i] = l
	}

	fields["limits"] = limits
	return fields, nil
}

// slotAlgorithm is the algorithm of limits of slots.
const slotAlgorithm = "concurrency"

// parseLimit reads a limit such as 5/1m,algorithm=token-bucket,burst=10. It
// leaves checking the values to the node.
func parseLimit(text string) (map[string]any, error) {
	rate, options, _ := strings.Cut(text, ",")
	amount, per, ok := strings.Cut(rate, "/")
	n, err := strconv.ParseInt(amount, 10, 64)
	if !ok || err != nil || per == "" {
		return nil, fmt.Errorf("want an amount and a window, such as 5/1m, 100/7d or 1000/day")
	}

	limit := map[string]any{"limit": n, "per": per}
	for options != "" {
		var field string
		field, options, _ = strings.Cut(options, ",")
		name, value, _ := strings.Cut(field, "=")
		_, twice := limit[name]
		switch {
		case twice || value == "":
			return nil, fmt.Errorf("%q: want name=value, each name once", field)
		case name == "burst":
			limit[name], err = strconv.ParseInt(value, 10, 64)
			if err != nil {
				return nil, fmt.Errorf("%q: want a whole number", field)
			}
		case name == "algorithm", name == "unit", name == "name", name == "tz", name == "from":
			limit[name] = value
		default:
			return nil, fmt.Errorf("%q is not one of algorithm, burst, unit, name, tz, from", name)
		}
	}

	if limit["algorithm"] == slotAlgorithm {
		delete(limit, "per")
		limit["ttl"] = per
	}

	return limit, nil
}

// costFlags are the costs of the --cost flags: plain in requests, the others by unit.
type costFlags struct {
	plain *int64
	units map[string]int64
}

// parseCosts reads the values of --cost: N, or UNIT=N.
func parseCosts(list []string) (c costFlags, err error) {
	c.units = map[string]int64{}
	for _, text := range list {
		unit, number, named := strings.Cut(text, "=")
		if !named {
			number = text
		}

		n, err := strconv.ParseInt(number, 10, 64)
		_, twice := c.units[unit]
		if err != nil || named && unit == "" || named && twice || !named && c.plain != nil {
			return c, usageError("--cost %q: want a whole number or unit=number, each once", text)
		}

		if named {
			c.units[unit] = n
		} else {
			c.plain = &n
		}
	}

	return c, nil
}

// add adds the costs to the fields of a body.
func (c *costFlags) add(fields map[string]any) {
	if c.plain != nil {
		fields["cost"] = *c.plain
	}
	if len(c.units) > 0 {
		fields["costs"] = c.units
	}
}

// parsePairs reads NAME=VALUE arguments. Each name may occur once.
func parsePairs(what string, list []string) (map[string]string, error) {
	all := map[string]string{}
	for _, a := range list {
		name, value, ok := strings.Cut(a, "=")
		_, twice := all[name]
		if !ok || name == "" || twice {
			return nil, fmt.Errorf("%s %q: want name=value, each name once", what, a)
		}
		all[name] = value
	}
	return all, nil
}
