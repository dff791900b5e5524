package main

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/rlnode/rlnode/cluster"
)

// levelCmd shows and raises the feature level.
type levelCmd struct {
	Raise bool   `help:"Raise the level to the highest that all members know, for good."`
	To    *int64 `placeholder:"N" help:"With --raise: to this level and no higher."`
	answerFlags
}

func (c *levelCmd) Run(env *environment) error {
	switch {
	case c.To != nil && !c.Raise:
		return usageError("--to: needs --raise")
	case c.To != nil && (*c.To < 1 || *c.To > 1<<31-1):
		return usageError("--to: %d is not in 1…%d", *c.To, 1<<31-1)
	case !c.Raise:
		return sendAndPrint(env, c.client, c.JSON, request{path: "/v1/level"}, printLevel)
	}

	query := url.Values{}
	if c.To != nil {
		query.Set("to", strconv.FormatInt(*c.To, 10))
	}

	r := request{method: http.MethodPost, path: "/v1/level", query: query}
	return sendAndPrint(env, c.client, c.JSON, r, func(w io.Writer, done *cluster.Levels) error {
		_, err := fmt.Fprintf(w, "the feature level is %d\n", done.Agreed)
		return err
	})
}

func printLevel(w io.Writer, l *cluster.Levels) error {
	fmt.Fprintf(w, "feature level %d", l.Agreed)
	if l.Highest > l.Agreed {
		fmt.Fprintf(w,
			"; all members know %d: the level rises an hour after they did, or now with rlnode level --raise",
			l.Highest)
	}
	fmt.Fprintln(w)

	return printTable(w, "NAME\tKNOWS\tRELEASE\tZONES\tID", l.Members, func(m cluster.MemberLevel) string {
		knows := strconv.Itoa(int(m.Knows))
		if m.Knows == 0 {
			knows = "unknown"
		}
		return fmt.Sprintf("%s\t%s\t%s\t%s\t%s", printable(m.Name), knows, printable(m.Release),
			printable(m.Zones), m.ID)
	})
}
