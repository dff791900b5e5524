package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/rlnode/rlnode/api/admin"
)

// loadCmd reports a load, or lists the known loads.
type loadCmd struct {
	Source string        `arg:"" optional:"" help:"The source of the load, as adaptive.source in the rules names it."`
	Load   *float64      `arg:"" optional:"" help:"The load: 1 is as much as the source can bear."`
	TTL    time.Duration `name:"ttl" default:"10s" help:"How long the report is valid (default ${default})."`
	answerFlags
}

func (c *loadCmd) Run(env *environment) error {
	if c.Source == "" {
		return sendAndPrint(env, c.client, c.JSON, request{path: "/v1/load"}, printLoads)
	}
	if c.Load == nil {
		return usageError("the load is missing: rlnode load %s 0.9", printable(c.Source))
	}

	body, err := json.Marshal(map[string]any{"source": c.Source, "load": *c.Load, "ttl_ms": c.TTL.Milliseconds()})
	if err != nil {
		return usageError("the load is %g: want a number, such as 0.9", *c.Load)
	}

	type taken struct {
		Rules []string `json:"rules"`
	}
	return sendAndPrint(env, c.client, c.JSON, post("/v1/load", body), func(w io.Writer, t *taken) error {
		follow := "no rule follows it"
		if len(t.Rules) > 0 {
			follow = "followed by " + printable(strings.Join(t.Rules, ", "))
		}
		_, err := fmt.Fprintf(w, "the load of %s is %g for %v: %s\n", printable(c.Source), *c.Load, c.TTL, follow)
		return err
	})
}

func printLoads(w io.Writer, l *admin.LoadReport) error {
	err := printTable(w, "SOURCE\tLOAD\tFOR", l.Sources, func(s admin.SourceReport) string {
		holds := "-"
		if s.TTL != nil {
			holds = durationText(millis(*s.TTL))
		}
		return fmt.Sprintf("%s\t%.3g\t%s", printable(s.Source), s.Load, holds)
	})
	if err != nil || len(l.Rules) == 0 {
		return err
	}

	fmt.Fprintln(w)
	return printTable(w, "RULE\tFOLLOWS\tLIMITS ARE LOWERED TO", l.Rules, func(r admin.AdaptiveReport) string {
		return fmt.Sprintf("%s\t%s\t%.3g", printable(r.Rule), printable(r.Source), r.Factor)
	})
}
