package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/rlnode/rlnode/client"
	"github.com/rlnode/rlnode/rules"
)

// tryCmd shows what a check would get, and which rules apply to it.
type tryCmd struct {
	checkFlags
	adminPlane
}

// tried is a node's answer to a try.
type tried struct {
	Status int                 `json:"status"`
	Answer json.RawMessage     `json:"answer"`
	Rules  []rules.Explanation `json:"rules"`
}

func (c *tryCmd) Run(env *environment) error {
	return exitOf(c.ask(env))
}

func (c *tryCmd) ask(env *environment) (allowed bool, err error) {
	fields, err := c.body()
	if err != nil {
		return false, err
	}

	n, err := c.client()
	if err != nil {
		return false, err
	}

	r, err := n.send(env.ctx, postFields("/v1/try", fields))
	if err != nil {
		return false, err
	}

	var answer tried
	var d client.Decision

	if err := r.decode(&answer); err != nil {
		return false, err
	}
	if err := json.Unmarshal(answer.Answer, &d); err != nil {
		return false, fmt.Errorf("read the node's answer: %w", err)
	}
	if c.JSON {
		_, err = fmt.Fprintf(env.stdout, "%s\n", bytes.TrimSpace(r.body))
		return d.Allowed, err
	}

	c.hideLimits(&d, fields)
	if _, err := fmt.Fprint(env.stdout, decisionText(&d, colours(env.stdout))); err != nil {
		return false, err
	}

	return d.Allowed, printExplanations(env.stdout, answer.Rules)
}

// printExplanations prints whether each rule applies, and why not.
func printExplanations(w io.Writer, list []rules.Explanation) error {
	if len(list) == 0 {
		return nil
	}
	return printTable(w, "RULE\tAPPLIES\tWHY NOT", list, func(e rules.Explanation) string {
		var why []string
		for _, reason := range e.Why {
			why = append(why, oneLine(reason))
		}
		return fmt.Sprintf("%s\t%s\t%s", printable(e.Rule), yesNo(e.Applies), strings.Join(why, "; "))
	})
}
