package codec

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"reflect"
	"testing"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/document"
)

var printVectors = flag.Bool("print-vectors", false, "print the vectors of headers as this package answers them")

// headerVector is a rule, and checks of one subject of it, in order.
type headerVector struct {
	Name   string          `json:"name"`
	Rule   json.RawMessage `json:"rule"`
	Checks []*headerCheck  `json:"checks"`
}

// headerCheck is a check at a time after the first one, and its answer.
type headerCheck struct {
	AtMS    int64             `json:"at_ms"`
	Costs   map[string]int64  `json:"costs"`
	Mode    string            `json:"mode,omitempty"`
	Status  int               `json:"status"`
	Answer  json.RawMessage   `json:"answer"`
	Headers map[string]string `json:"headers"`
}

// TestHeaderVectors: the answers and headers of a node are those from which the
// clients of all languages make the same headers.
func TestHeaderVectors(t *testing.T) {
	var all struct{ Headers []*headerVector }
	text, err := os.ReadFile("../../client/vectors.json")
	if err == nil {
		err = json.Unmarshal(text, &all)
	}
	if err != nil || len(all.Headers) == 0 {
		t.Fatal(err)
	}
	for _, v := range all.Headers {
		t.Run(v.Name, v.run)
	}
	if *printVectors {
		for _, v := range all.Headers {
			line, err := json.Marshal(v)
			expect.NoError(t, err)
			fmt.Printf("%s,\n", line)
		}
	}
}

func (v *headerVector) run(t *testing.T) {
	text := fmt.Sprintf(`{"version": 1, "headers": {"reset": "delta"}, "rules": [%s]}`, v.Rule)
	doc, err := document.Parse([]byte(text))
	expect.NoError(t, err)
	set, err := rules.Compile(doc, 1)
	expect.NoError(t, err)
	l := limiter.New(counters.New(1000), nil)
	l.SetRules(set)
	began := time.Unix(1_800_000_000, 0) // a minute, an hour and a day begin then
	for i, c := range v.Checks {
		now := algorithms.At(began.Add(time.Duration(c.AtMS) * time.Millisecond))
		c.run(t, i, l, now)
	}
}

func (c *headerCheck) run(t *testing.T, i int, l *limiter.Limiter, now algorithms.Instant) {
	q := Request{Detail: true}
	q.Query = limiter.Query{Rule: "r", Key: []string{"k"}, ByKey: true, Mode: counters.CheckMode}
	if c.Mode == "peek" {
		q.Mode = counters.PeekMode
	}
	for unit, cost := range c.Costs {
		q.Costs = append(q.Costs, limiter.UnitCost{Unit: unit, Cost: cost})
	}
	var a limiter.Answer
	expect.NoError(t, l.CheckAt(now, &q.Query, &a))

	r := &Reply{}
	r.Compose(&a, &q, 0, false, []byte(`"n1"`))
	headers := map[string]string{}
	for _, h := range r.Headers {
		headers[h.Name] = string(h.Value)
	}
	if *printVectors {
		c.Status, c.Answer, c.Headers = r.Status, bytes.Clone(r.Body), headers
		return
	}

	var got, want any
	expect.NoError(t, json.Unmarshal(r.Body, &got))
	expect.NoError(t, json.Unmarshal(c.Answer, &want))
	if r.Status != c.Status || !reflect.DeepEqual(got, want) {
		t.Errorf("check %d: got %d %s, want %d %s", i, r.Status, r.Body, c.Status, c.Answer)
	}
	expect.DeepEqual(t, headers, c.Headers, "check %d: got the headers", i)
}
