package main

import (
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
)

// tiersCmd lists tiers.
type tiersCmd struct{ answerFlags }

// tiersAnswer is a page of tiers.
type tiersAnswer struct {
	Tiers []struct {
		Name   string      `json:"name"`
		Limits []tierLimit `json:"limits"`
	} `json:"tiers"`
	Next string `json:"next"`
}

// tierLimit is a limit in the rules.
type tierLimit struct {
	Name      string `json:"name"`
	Limit     int64  `json:"limit"`
	Per       string `json:"per"`
	Algorithm string `json:"algorithm"`
	Burst     int64  `json:"burst"`
	Unit      string `json:"unit"`
	TZ        string `json:"tz"`
}

// text returns the limit in the form of --limit.
func (l *tierLimit) text() string {
	text := fmt.Sprintf("%d/%s", l.Limit, l.Per)
	for _, f := range [...]struct{ name, value string }{{"algorithm", l.Algorithm},
		{"unit", l.Unit}, {"name", l.Name}, {"tz", l.TZ}} {
		if f.value != "" {
			text += "," + f.name + "=" + f.value
		}
	}
	if l.Burst != 0 {
		text += ",burst=" + strconv.FormatInt(l.Burst, 10)
	}
	return text
}

// Run prints the tiers, page by page.
func (c *tiersCmd) Run(env *environment) error {
	query := url.Values{"n": {"1000"}}
	var rows []string
	for {
		var page tiersAnswer
		err := sendAndPrint(env, c.client, c.JSON, request{path: "/v1/tiers", query: query},
			func(_ io.Writer, p *tiersAnswer) error { page = *p; return nil })
		if err != nil || c.JSON {
			return err // --json prints the first page, which names the next
		}

		for _, t := range page.Tiers {
			limits := make([]string, len(t.Limits))
			for i := range t.Limits {
				limits[i] = printable(t.Limits[i].text())
			}
			rows = append(rows, printable(t.Name)+"\t"+strings.Join(limits, "  "))
		}

		if page.Next == "" {
			break
		}

		query.Set("after", page.Next)
	}

	if len(rows) == 0 {
		_, err := fmt.Fprintln(env.stdout, "the rules have no tiers")
		return err
	}

	return printTable(env.stdout, "TIER\tLIMITS", rows, func(row string) string { return row })
}
